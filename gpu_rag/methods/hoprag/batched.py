"""HopRAG's steps over its graph: where to enter it, which out-edges to follow, how near vertices are.

Everywhere SIM(q, x) = (Jaccard of keywords + cosine) / 2, see `gpu_rag.graph.frontier`. The keywords of an edge are
those of its two questions. Those of a vertex depend on `about`:
  text    all keywords of its title and text
  topics  the keywords of its passage's title, and the subjects of the passage's triples: what the passage is about
A step returns rows and scores, at most k for each vertex.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from gpu_rag.graph.frontier import frontier_topk, score_lists, top_edges
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.index.index import Index
from gpu_rag.methods.hoprag.graph import HopGraph, HopQuestion, hop_graph
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.search import Ranking, rankings
from gpu_rag.runtime.step import batched
from gpu_rag.types import Ragged

T = TypeVar("T")
AtVertices = tuple[HopQuestion, tuple[int, ...]]  # a question at some vertices of the graph


@dataclass(frozen=True)
class OutEdge:
    """An edge that a question may follow. edge: its row; target: the vertex it leads to; score: SIM(q, edge)."""

    edge: int
    target: int
    score: float


@batched(GRAPH)
def enter_hops(index: Index, queries: list[HopQuestion], entry: str, about: str, k: int) -> list[Ranking]:
    """k distinct vertices to start from, best first.

    entry: "edges": the end vertices met on the way down the ranking of all edges by SIM(q, edge);
    "vertices": those of highest SIM(q, vertex), with the keywords that `about` names (not used for edges).
    """
    graph = hop_graph(index)
    edges = graph.loops(about) if entry == "vertices" else graph.edges  # then the questions: loops may add words
    top = top_edges(graph.numbered(queries), edges, min(k, graph.n_vertices), threads=index.threads)
    if entry == "vertices":
        return rankings(top)
    return [Ranking(tuple(graph.on_host[0][list(r.rows)].tolist()), r.scores) for r in rankings(top)]


@batched(GRAPH)
def out_edges(index: Index, queries: list[AtVertices], k: int) -> list[list[list[OutEdge]]]:
    """For each vertex its k out-edges of highest SIM(q, edge), ties to the lower edge; none where it has none."""
    graph = hop_graph(index)
    k, targets = min(k, graph.n_vertices), graph.on_host[0]  # a vertex has at most one edge to each
    questions, lists = graph.numbered([question for question, _ in queries]), _vertices(graph, queries)
    found = rankings(frontier_topk(questions, graph.edges, lists, k, threads=index.threads))
    return _split([[OutEdge(e, int(targets[e]), s) for e, s in zip(r.rows, r.scores)] for r in found], queries)


@batched(GRAPH)
def near_vertices(index: Index, queries: list[AtVertices], about: str) -> list[list[float]]:
    """SIM(q, vertex) of each vertex, with the keywords that `about` names."""
    graph = hop_graph(index)
    vertices, lists = graph.vertices(about), _vertices(graph, queries)
    questions = graph.numbered([question for question, _ in queries])
    return _split(score_lists(questions, vertices, lists, threads=index.threads).tolist(), queries)


def _vertices(graph: HopGraph, queries: Sequence[AtVertices]) -> Ragged:
    return ragged_of_lists([vertices for _, vertices in queries], graph.indptr.device)


def _split(rows: Sequence[T], queries: Sequence[AtVertices]) -> list[list[T]]:
    """Rows for all vertices of all queries as a list for each query."""
    left = iter(rows)
    return [list(islice(left, len(vertices))) for _, vertices in queries]


def edge_question(index: Index, edge: int) -> str:
    """The text of the question that an edge carries."""
    graph = hop_graph(index)
    return graph.question_texts[graph.on_host[1][edge]]


def vertex_passage(index: Index, vertex: int) -> int:
    """The passage row of a vertex."""
    return int(hop_graph(index).on_host[2][vertex])
