"""HydraRAG, step III: candidate paths by relevance (W1), by cross-source verification (W2), by the decider (W_max)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_rag.methods.hydrarag.params import Params
from gpu_rag.methods.hydrarag.schemas import PROMPTS
from gpu_rag.methods.hydrarag.scores import Judged, PathPool
from gpu_rag.methods.hydrarag.state import Analysis, Candidate, Chosen, Progress
from gpu_rag.program.verbs import Verbs
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Pool


async def prune(
    analysis: Analysis,
    candidates: Sequence[Candidate],
    query: np.ndarray,
    phase: str,
    progress: Progress,
    verbs: Verbs,
    params: Params,
) -> list[Chosen]:
    """The w_max paths that are left, best first; what was left before goes to `progress`."""
    candidates = once(candidates)
    progress.pools.append(_pool(f"{phase} found", candidates, verbs))
    if not candidates:
        progress.pools.extend(Pool(f"{phase} {step}", 0, ()) for step in ("w1", "w2", "w_max"))
        return []
    vectors = await verbs.embed([c.shown.text for c in candidates])
    kinds = tuple(c.shown.kinds for c in candidates)
    entities = tuple(c.entities for c in candidates)
    known = tuple(c.known for c in candidates)
    found = await verbs.prune_paths(params.prune(), PathPool(query, vectors, kinds, entities, analysis.topics, known))
    kept = [Chosen(candidates[judged.row], judged, phase) for judged in found.kept]
    progress.pools.append(_pool(f"{phase} w1", [candidates[row] for row in found.by_relevance], verbs))
    progress.pools.append(_pool(f"{phase} w2", [c.candidate for c in kept], verbs))
    best = [judged.cross if params.pruning == "verified" else judged.rel for judged in found.kept]
    chosen = await verbs.choose(
        Prompt.read(PROMPTS, "select"),
        {"question": analysis.question, "indicator": analysis.indicator},
        [c.candidate.shown.text for c in kept],
        query=analysis.indicator,
        k=params.w_max,
        similarity=best,
        name=f"{phase}/paths",
    )
    left = [kept[i] for i in chosen]
    progress.pools.append(_pool(f"{phase} w_max", [c.candidate for c in left], verbs))
    verbs.ctx.note(f"{phase}/scores", len(candidates), tuple(_told(c.candidate, c.judged) for c in left))
    progress.kept = [*left, *(c for c in kept if c not in left)]
    return left


def once(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Paths of one text and source as one, with the answers of all: homonyms, or one path found in two phases."""
    found: dict[tuple[str, str], Candidate] = {}
    for candidate in candidates:
        key = candidate.shown.text, candidate.shown.sources
        before = found[key].answers if key in found else ()
        found[key] = replace(candidate, answers=tuple(dict.fromkeys((*before, *candidate.answers))))
    return list(found.values())


def _told(candidate: Candidate, judged: Judged) -> str:
    support = ", ".join(judged.support) or "no other kind"
    return (
        f"{candidate.shown.text} [{candidate.shown.kind}]: rel {judged.rel:.3f}, reliability {judged.f1:.2f}, "
        f"support {judged.f2:.2f} ({support}), known {judged.f3:.2f}, cross {judged.cross:.3f}"
    )


def _pool(name: str, candidates: Sequence[Candidate], verbs: Verbs) -> Pool:
    """The names of all entities on some paths, members of clusters too."""
    names = verbs.kb.node_names
    nodes = dict.fromkeys(node for c in candidates for place in c.shown.places for node in place if node >= 0)
    found = dict.fromkeys([*(names[node] for node in nodes), *(name for c in candidates for name in c.names)])
    return Pool(name, len(candidates), tuple(found))
