"""Personalized PageRank over entities and passages, seeded by facts near the question; then the shared reader.

Seeding with facts, and passages as nodes, are ideas of HippoRAG 2 (Gutierrez et al. 2025). The seed weights, the
passage prior and the final fusion are our own, see `batched`.
"""

from __future__ import annotations

from gpu_rag.methods.ppr.batched import Params, rank_by_graph
from gpu_rag.program.embed import embed
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.types import Evidence, Path, Question


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The run.limit passages of highest fused score, and the seed facts as paths."""
    (vector,) = await embed([question.text])
    query, why = (question.text, vector), "reached in the graph from facts near the question"
    evidence, ranking = await run.searched(lambda k: rank_by_graph(query, params, k), why, "rank_by_graph")
    paths = seed_paths(run, ranking.facts, evidence)
    run.note("seed_facts", run.index.n_relations, tuple(path.text for path in paths))
    return Support(evidence, paths)


def seed_paths(run: Run, facts: tuple[int, ...], evidence: tuple[Evidence, ...]) -> tuple[Path, ...]:
    """Each seed fact as a path of one edge. A passage in the evidence that states it is preferred."""
    shown = {e.passage_id for e in evidence}
    paths = []
    for row in facts:
        subject, label, object_, passages = run.fact(row)
        passage = next((p for p in passages if p in shown), passages[0])
        paths.append(Path(f"{subject} - {label} - {object_}", ((subject, label, object_, passage),), "graph"))
    return tuple(paths)
