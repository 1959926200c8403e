"""HydraRAG, step III: candidate paths by relevance (W1), by cross-source verification (W2), by the decider (W_max).

For a question with indicator I and topics T, and candidate paths p:
  rel(p)   = .7 cos(I, p) + .3 |T & Ent(p)| / |T or Ent(p)|; the W1 best are the pool
  f1(p)    = reliability of p's kind of source
  f2(p)    = min(|Supp(p)|, W_max) / W_max; Supp(p) = the OTHER kinds with a path of cosine >= gamma to p in the pool
  f3(p)    = share of p's entities that are in the evidence subgraph
  ver(p)   = (f1 + f2 + f3) / 3,  cross(p) = .7 rel + .3 ver; the W2 best are kept
A path along relations that the question asks for (`chains`) gets a bonus in each ranking.

A topic is one mention of the question, although it may denote several nodes (homonyms, a node of each source). T has
one node per mention: the one on p, if p has one. Other homonyms on p are ordinary entities. A path that several kinds
of sources state, hop for hop, is a path of each of them, so these kinds support it too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_rag.methods.hydrarag.asks import PATHS
from gpu_rag.methods.hydrarag.batched.prune import Candidates, prune_paths
from gpu_rag.methods.hydrarag.state import Analysis, FoundPath, Search
from gpu_rag.program.decide import decide
from gpu_rag.program.embed import embed
from gpu_rag.types import Pool


async def pruned(
    analysis: Analysis, paths: Sequence[FoundPath], query: np.ndarray, phase: str, search: Search
) -> list[FoundPath]:
    """The at most w_max remaining paths, best first. Intermediate results are recorded in `search`."""
    paths, params = once(paths), search.params
    _pool(f"{phase} found", paths, search)
    if not paths:
        for step in ("w1", "w2", "w_max"):
            _pool(f"{phase} {step}", (), search)
        return []
    vectors, verified = await embed([path.text for path in paths]), params.pruning == "verified"
    candidates = Candidates(query, vectors, tuple(paths), analysis.topics)
    best, kept = await prune_paths(candidates, params)
    _pool(f"{phase} w1", best, search)
    _pool(f"{phase} w2", kept, search)
    scores = [(path.scores.cross if verified else path.scores.rel) + path.asked for path in kept]
    texts = [f"{path.text} ({path.said_by}; score {score:.2f})" for path, score in zip(kept, scores)]
    fields = {**analysis.shown, "options": texts, "scores": scores, "k": params.w_max, "step": phase, "paths": kept}
    chosen = await decide(search.run, PATHS, **fields)
    remaining = [kept[i] for i in chosen]
    _pool(f"{phase} w_max", remaining, search)
    search.run.note(f"{phase}/scores", len(paths), tuple(map(_scores, remaining)))
    search.kept = [*remaining, *(path for path in kept if path not in remaining)]
    return remaining


def allowed(paths: Sequence[FoundPath], search: Search) -> list[FoundPath]:
    """The paths without the answers that the question rules out, and without those that lead to nothing else."""
    barred, kept = search.asked.barred, list[FoundPath]()
    for path in paths:
        answers = tuple(node for node in path.answers if node not in barred)
        if answers or not path.answers:
            kept.append(path._replace(answers=answers))
    return kept


def once(paths: Sequence[FoundPath]) -> list[FoundPath]:
    """Merge paths with the same text and sources, joining their answers: homonyms, or a path found in two phases."""
    merged: dict[tuple[str, str], FoundPath] = {}
    for path in paths:
        key = path.text, path.sources
        if before := merged.get(key):
            answers = tuple(dict.fromkeys((*before.answers, *path.answers)))
            path = path._replace(answers=answers, asked=max(before.asked, path.asked))
        merged[key] = path
    return list(merged.values())


def _scores(path: FoundPath) -> str:
    scores = path.scores
    support = ", ".join(scores.support) or "no other kind"
    return (
        f"{path.text} [{path.kind}]: rel {scores.rel:.3f}, reliability {scores.f1:.2f}, "
        f"support {scores.f2:.2f} ({support}), known {scores.f3:.2f}, cross {scores.cross:.3f}"
    )


def _pool(name: str, paths: Sequence[FoundPath], search: Search) -> None:
    """Record the names of all entities on the paths, including members of clusters."""
    names = search.kb.node_names
    nodes = dict.fromkeys(node for path in paths for place in path.places for node in place if node >= 0)
    entities = dict.fromkeys([*(names[node] for node in nodes), *(name for path in paths for name in path.names)])
    search.pools.append(Pool(name, len(paths), tuple(entities)))
