"""Step 7 of BubbleRAG: evidence graphs as one, its passages in reading order, its relations as paths.

Passages by `order`:
  fused   reciprocal rank fusion, 1 / (constant + rank) summed, of two rankings: the passages of the graphs by (best
          graph, sum of 1 / (passages of a node) over the nodes that they hold, cosine), and those of the pre-retrieval.
          A node that half of the corpus mentions says little of any one passage, so rare nodes count.
  trees   BubbleRAG's specification: by (best graph, number of nodes, cosine), then the pre-retrieved ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_rag.methods.bubblerag.batched import TreePassage, bubble_passages
from gpu_rag.methods.bubblerag.graph import node_text
from gpu_rag.methods.bubblerag.params import Params
from gpu_rag.methods.bubblerag.trees import EvidenceGraph
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.types import Evidence, Path

DEPTH = 100  # of each ranking that is fused


async def read_passages(
    run: Run, vector: np.ndarray, graphs: Sequence[EvidenceGraph], before: Ranking, order: str, limit: int
) -> tuple[Evidence, ...]:
    """The first `limit` passages of evidence graphs (best first) and of the pre-retrieval, noted in the trace."""
    tree_of: dict[int, int] = {}
    for number, graph in enumerate(graphs):
        for v in (*graph.entities, *graph.relations):
            tree_of.setdefault(v, number)
    k = DEPTH if order == "fused" else limit
    found = await bubble_passages((vector, tree_of), order, k)
    rows = fused(found, before, Params.fusion_constant, limit) if order == "fused" else appended(found, before, limit)
    of_graphs = {passage.row: passage for passage in found}
    plain = run.index.evidence([row for row, _ in rows], [value for _, value in rows], "")
    evidence = tuple(replace(e, why=_why(of_graphs.get(row), len(graphs))) for (row, _), e in zip(rows, plain))
    titles = tuple(f"{e.passage_id} {e.title}" for e in evidence)
    run.note("bubble_passages", len({*of_graphs, *before.rows}), titles)
    return evidence


def fused(found: Sequence[TreePassage], before: Ranking, constant: float, limit: int) -> list[tuple[int, float]]:
    """The first `limit` (passage row, fused score), equal scores by lower row."""
    scores: dict[int, float] = {}
    for ranking in ([passage.row for passage in found], before.rows):
        for rank, row in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + 1 / (constant + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]


def appended(found: Sequence[TreePassage], before: Ranking, limit: int) -> list[tuple[int, float]]:
    """The first `limit` (passage row, cosine): those of the graphs, then of the pre-retrieval."""
    cosines = {passage.row: passage.cosine for passage in found}
    for row, value in zip(before.rows, before.scores):
        cosines.setdefault(row, value)
    return list(cosines.items())[:limit]


def _why(passage: TreePassage | None, n_graphs: int) -> str:
    if passage is None:
        return "nearest by vector, before the graph was asked"
    nodes = f"{passage.n_nodes} node{'s' if passage.n_nodes != 1 else ''}"
    return f"holds {nodes} of the evidence graphs, first of graph {passage.tree + 1} of {n_graphs}"


def facts(run: Run, graphs: Sequence[EvidenceGraph]) -> list[str]:
    """The relations of all graphs as "A - R - B", each once."""
    return [node_text(run.index, v) for v in dict.fromkeys(v for graph in graphs for v in graph.relations)]


def paths(run: Run, graphs: Sequence[EvidenceGraph], evidence: Sequence[Evidence]) -> tuple[Path, ...]:
    """Each graph with relations as a path; of the passages that state a relation, one in the evidence if any is."""
    shown = {e.passage_id for e in evidence}
    found = []
    for graph in graphs:
        edges = []
        for v in graph.relations:
            subject, label, object_, stated = run.fact(v - run.index.n_entities)
            edges.append((subject, label, object_, next((p for p in stated if p in shown), (*stated, "")[0])))
        if edges:
            found.append(Path("; ".join(" - ".join(edge[:3]) for edge in edges), tuple(edges), "graph"))
    return tuple({path.edges: path for path in found}.values())
