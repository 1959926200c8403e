"""HydraRAG, step III: candidate paths by relevance (W1), by cross-source verification (W2), by the decider (W_max)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_rag.methods.hydrarag.batched.pruning import Candidates, prune_paths
from gpu_rag.methods.hydrarag.state import Analysis, FoundPath, Search
from gpu_rag.program.ask import embed
from gpu_rag.types import Pool


async def pruned(
    analysis: Analysis, paths: Sequence[FoundPath], query: np.ndarray, phase: str, search: Search
) -> list[FoundPath]:
    """The w_max paths that are left, best first; what was left before goes to `search`."""
    paths, params = once(paths), search.params
    _pool(f"{phase} found", paths, search)
    if not paths:
        for step in ("w1", "w2", "w_max"):
            _pool(f"{phase} {step}", (), search)
        return []
    vectors = await embed([path.text for path in paths])
    found = await prune_paths(Candidates(query, vectors, tuple(paths), analysis.topics), params.prune())
    _pool(f"{phase} w1", found.by_relevance, search)
    _pool(f"{phase} w2", found.kept, search)
    verified = params.pruning == "verified"
    scores = [path.scores.cross if verified else path.scores.rel for path in found.kept]
    texts = [path.text for path in found.kept]
    chosen = await search.choose("select", analysis, texts, params.w_max, f"{phase}/paths", scores)
    left = [found.kept[i] for i in chosen]
    _pool(f"{phase} w_max", left, search)
    search.run.note(f"{phase}/scores", len(paths), tuple(map(_scores, left)))
    search.kept = [*left, *(path for path in found.kept if path not in left)]
    return left


def once(paths: Sequence[FoundPath]) -> list[FoundPath]:
    """Paths of one text and source as one, with the answers of all: homonyms, or one path found in two phases."""
    found: dict[tuple[str, str], FoundPath] = {}
    for path in paths:
        key = path.text, path.sources
        before = found[key].answers if key in found else ()
        found[key] = replace(path, answers=tuple(dict.fromkeys((*before, *path.answers))))
    return list(found.values())


def _scores(path: FoundPath) -> str:
    scores = path.scores
    support = ", ".join(scores.support) or "no other kind"
    return (
        f"{path.text} [{path.kind}]: rel {scores.rel:.3f}, reliability {scores.f1:.2f}, "
        f"support {scores.f2:.2f} ({support}), known {scores.f3:.2f}, cross {scores.cross:.3f}"
    )


def _pool(name: str, paths: Sequence[FoundPath], search: Search) -> None:
    """Keeps the names of all entities on some paths, members of clusters too."""
    names = search.kb.node_names
    nodes = dict.fromkeys(node for path in paths for place in path.places for node in place if node >= 0)
    found = dict.fromkeys([*(names[node] for node in nodes), *(name for path in paths for name in path.names)])
    search.pools.append(Pool(name, len(paths), tuple(found)))
