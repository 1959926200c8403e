"""HopRAG's steps over its graph: start vertices, out-edges to follow, and similarity of vertices.

Everywhere SIM(q, x) = (Jaccard of keywords + cosine) / 2, see `gpu_rag.graph.frontier`. The keywords of an edge are
those of its two questions. Those of a vertex depend on `about`:
  text    all keywords of its title and text
  topics  the keywords of its passage's title, and the subjects of the passage's triples
A step returns rows and scores, at most k for each vertex.

The random walk of a question with text t follows all edges in both directions, over the V vertices:
  x(v)      = 2 * TEMPERATURE * SIM(q, v)
  r(v)      = the restart by x and, for WORD_SHARE of it, by the BM25 of passages, and titles that t names; a passage's
              weight is divided equally among its vertices; see program.walk
  p         = (1 - DAMPING) r + DAMPING P^T p, see graph.pagerank
  score(v)  = minmax(log p(v)) + FUSION * minmax(SIM(q, v))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

from gpu_rag.graph.common.arrays import to_device, to_host
from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.csr import csr_from_edges, row_of_entry
from gpu_rag.graph.frontier import (
    Described,
    FrontierQuery,
    HopEdges,
    described,
    frontier_topk,
    hop_edges,
    score_lists,
)
from gpu_rag.graph.memory import halved
from gpu_rag.graph.pagerank import PageRankGraph, personalized_pagerank, prepare
from gpu_rag.graph.ragged import ragged_of_lists, some_lists
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import words_of
from gpu_rag.index.names import SortedRows, TextColumn
from gpu_rag.methods.hoprag.tables import EDGES, KEYWORDS, LISTS, QUESTIONS, VERTICES, lists_of
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.search import Ranking, rankings, stacked
from gpu_rag.program.seeds import spread, title_names, title_seeds
from gpu_rag.program.walk import TITLE_SHARE, blended, passages_of, ranked, restart, walk_tile, word_weights
from gpu_rag.runtime.step import batched
from gpu_rag.types import CSR, Ragged

T = TypeVar("T")

TEMPERATURE, WORD_SHARE, DAMPING, FUSION = 30.0, 0.4, 0.5, 0.5  # parameters of the random walk
TOL = 1e-6  # L1 error bound of PageRank


@dataclass(frozen=True)
class HopQuestion:
    """A question in the form that is compared with the graph. vector: f32[D], unit; words: its keywords, normalised."""

    vector: np.ndarray
    words: frozenset[str]


@dataclass(frozen=True)
class HopGraph:
    """Vertices (passages or sentences) and their out-edges. V vertices, E edges, Q in-questions, W keywords.

    indptr: i64[V+1]; target: i32[E]: the out-edges of vertex v are the rows indptr[v]:indptr[v+1], by ascending target,
    each target once, never v itself. question: i32[E], the in-question that each edge carries, a row of question_texts
    and question_vectors.
    edge_keywords: E lists of i32, the keywords of both questions, ascending; vertex_keywords, topics: V lists of i32.
    keyword_ids: the number of each keyword, [0, W) in alphabetical order; topic_words: topics that are not keywords,
    which are numbered from W.
    question_vectors, vertex_vectors: unit rows [Q, D] and [V, D], see `Index.vectors`.
    vertex_passage: i32[V], the passage of each vertex, ascending; the identity when vertices are passages.

    All tensors are on the device of the index. Derived data is made on first use.
    """

    index: Index
    indptr: torch.Tensor
    target: torch.Tensor
    question: torch.Tensor
    edge_keywords: Ragged
    vertex_keywords: Ragged
    topics: Ragged
    keyword_ids: SortedRows
    topic_words: SortedRows
    question_texts: TextColumn[str]
    question_vectors: torch.Tensor
    vertex_vectors: torch.Tensor
    vertex_passage: torch.Tensor

    @property
    def n_vertices(self) -> int:
        """Number of vertices V."""
        return int(self.indptr.shape[0]) - 1

    @cached_property
    def on_host(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(i32[E] target of each edge, i32[E] its question, i32[V] the passage of each vertex), on the host."""
        target, question, passage = (t.cpu().numpy() for t in (self.target, self.question, self.vertex_passage))
        return target, question, passage

    @cached_property
    def n_sharing(self) -> torch.Tensor:
        """f64[n_passages]: the number of vertices of each passage, which share its weight; 1 for none."""
        counts = np.bincount(self.on_host[2], minlength=self.index.n_passages)
        return torch.from_numpy(np.maximum(counts, 1.0)).to(self.target.device)

    @cached_property
    def both_ways(self) -> PageRankGraph:
        """The graph of the edges without questions and directions."""
        source = row_of_entry(CSR(self.indptr, self.target))
        return prepare(csr_from_edges(source, self.target, self.n_vertices))

    @cached_property
    def edges(self) -> HopEdges:
        """The edges with the vectors and keywords of their questions."""
        sides = self.indptr, self.target, self.question, self.question_vectors, self.edge_keywords
        return hop_edges(*sides, len(self.keyword_ids))

    @cached_property
    def in_edges(self) -> tuple[HopEdges, np.ndarray]:
        """The edges in the order of the vertex where they end, then of the edge; and the number of each: i64[E]."""
        edges = torch.argsort(self.target.long(), stable=True)
        starts = offsets_of(torch.bincount(self.target, minlength=self.n_vertices))
        source = row_of_entry(CSR(self.indptr, self.target))[edges].int()
        sides = starts, source, self.question[edges], self.question_vectors, some_lists(self.edge_keywords, edges)
        return hop_edges(*sides, len(self.keyword_ids)), edges.cpu().numpy()

    def vertices(self, about: str) -> Described:
        """The vertices with their vectors and the keywords that `about` names, see the module."""

        def load(_: Index) -> Described:
            lists = self.vertex_keywords if about == "text" else self.topics
            return described(self.vertex_vectors, lists, len(self.keyword_ids) + len(self.topic_words))

        return self.index.loaded(f"hop vertices {about}", load)

    def _number(self, word: str) -> int | None:
        """The number of a keyword or topic; None for other words."""
        if word in self.keyword_ids:
            return self.keyword_ids[word]
        return len(self.keyword_ids) + self.topic_words[word] if word in self.topic_words else None

    def numbered(self, questions: Sequence[HopQuestion]) -> FrontierQuery:
        """The questions in the form of the ops. Unknown words count only in the size of a set."""
        lists, beyond = [], len(self.keyword_ids) + len(self.topic_words)
        for question in questions:
            known = sorted(number for number in map(self._number, question.words) if number is not None)
            lists.append([*known, *range(beyond, beyond + len(question.words) - len(known))])
        vectors = stacked([question.vector for question in questions], self.index.device)
        return FrontierQuery(vectors, ragged_of_lists(lists, self.indptr.device))


def hop_graph(index: Index) -> HopGraph:
    """The hop graph of an index, loaded once. Raises MissingLayer, IndexCorrupt."""
    return index.loaded("hops", _load)


def _load(index: Index) -> HopGraph:
    edges = index.table("hop_edges", "edges.parquet", EDGES)
    passage = index.table("hop_vertices", "vertices.parquet", VERTICES, ["passage"])["passage"]
    device = index.device
    source, target, question = (
        torch.from_numpy(edges[name].to_numpy().copy()) for name in ("source", "target", "question")
    )

    def lists(stage: str, file: str) -> Ragged:
        stored = lists_of(index.table(stage, file, LISTS))
        return Ragged(stored.values.to(device), stored.offsets.to(device))

    return HopGraph(
        index,
        indptr=torch.searchsorted(source, torch.arange(len(passage) + 1, dtype=source.dtype)).to(device),
        target=target.to(device),
        question=question.to(device),
        edge_keywords=lists("hop_words", "edges.parquet"),
        vertex_keywords=lists("hop_keywords", "vertex.parquet"),
        topics=lists("hop_words", "topics.parquet"),
        keyword_ids=SortedRows(index.table("hop_keywords", "keywords.parquet", KEYWORDS)["keyword"]),
        topic_words=SortedRows(index.table("hop_words", "topic_words.parquet", KEYWORDS)["keyword"]),
        question_texts=TextColumn(index.table("hop_questions", "in_questions.parquet", QUESTIONS)["text"]),
        question_vectors=index.vectors("hop_in_vectors"),
        vertex_vectors=index.vectors("hop_vertex_vectors"),
        vertex_passage=torch.from_numpy(passage.to_numpy().copy()).to(device),
    )


# --- steps -------------------------------------------------------------------------------------------

AtVertices = tuple[HopQuestion, tuple[int, ...]]  # a question at some vertices of the graph


@dataclass(frozen=True)
class OutEdge:
    """An edge that a question may follow. edge: its row; target: its end vertex; score: SIM(q, edge)."""

    edge: int
    target: int
    score: float


@batched(GRAPH, tile=walk_tile)
@halved
def walk_hops(index: Index, queries: list[tuple[str, HopQuestion]], about: str, k: int) -> list[Ranking]:
    """The k best vertices by the random walk from each text and its question, see the module."""
    graph, n = hop_graph(index), len(queries)
    vertices, questions = graph.vertices(about), graph.numbered([question for _, question in queries])
    vertex, starts = (torch.arange(size, device=graph.indptr.device) for size in (graph.n_vertices, n + 1))
    everywhere = Ragged(vertex.repeat(n), starts * graph.n_vertices)
    with trusted():
        near = score_lists(questions, vertices, everywhere, threads=index.threads).float().view(n, graph.n_vertices)
    texts, passage_of = [text for text, _ in queries], (graph.vertex_passage, index.n_passages)
    titles = spread(title_seeds(title_names(index), [words_of(text) for text in texts]))
    words, by_words = word_weights(index, texts)
    titled, by_title = to_device(index.device, *titles)
    shared = graph.n_sharing
    prior = restart(2 * TEMPERATURE * near, words, by_words / shared[words], WORD_SHARE, passage_of)
    prior = blended(prior, titled, by_title / shared[titled], TITLE_SHARE, passage_of)
    ranks = personalized_pagerank(graph.both_ways, prior=prior, damping=DAMPING, tol=TOL, threads=index.threads)
    top = ranked(ranks, near, FUSION, k)
    return passages_of(*to_host(top.ids, top.scores))


@batched(GRAPH, tile=walk_tile)
@trusted()
def enter_hops(index: Index, queries: list[HopQuestion], k: int) -> list[Ranking]:
    """The first k distinct end vertices in the ranking of all edges by (-SIM(q, edge), edge)."""
    graph, n = hop_graph(index), len(queries)
    edges, number = graph.in_edges
    vertex, starts = (torch.arange(size, device=graph.indptr.device) for size in (graph.n_vertices, n + 1))
    everywhere = Ragged(vertex.repeat(n), starts * graph.n_vertices)
    best = frontier_topk(graph.numbered(queries), edges, everywhere, 1, threads=index.threads)
    ids, scores = (part.reshape(n, graph.n_vertices).numpy() for part in to_host(best.ids, best.scores))
    chosen = []
    for row, score in zip(ids, scores):
        (ends,) = np.nonzero(row >= 0)
        ends = ends[np.lexsort((number[row[ends]], -score[ends]))[:k]]
        chosen.append(Ranking(tuple(ends.tolist()), tuple(score[ends].tolist())))
    return chosen


@batched(GRAPH)
@trusted()
def out_edges(index: Index, queries: list[AtVertices], k: int) -> list[list[list[OutEdge]]]:
    """For each vertex its k out-edges of highest SIM(q, edge), ties to the lower edge; an empty list if it has none."""
    graph = hop_graph(index)
    k, targets = min(k, graph.n_vertices), graph.on_host[0]  # a vertex has at most one edge to each other
    questions, lists = graph.numbered([question for question, _ in queries]), _vertices(graph, queries)
    ranked = rankings(frontier_topk(questions, graph.edges, lists, k, threads=index.threads))
    return _split([[OutEdge(e, int(targets[e]), s) for e, s in zip(r.rows, r.scores)] for r in ranked], queries)


@batched(GRAPH)
@trusted()
def near_vertices(index: Index, queries: list[AtVertices], about: str) -> list[list[float]]:
    """SIM(q, vertex) of each vertex, with the keywords that `about` names."""
    graph = hop_graph(index)
    vertices, lists = graph.vertices(about), _vertices(graph, queries)
    questions = graph.numbered([question for question, _ in queries])
    return _split(score_lists(questions, vertices, lists, threads=index.threads).float().tolist(), queries)


def _vertices(graph: HopGraph, queries: Sequence[AtVertices]) -> Ragged:
    return ragged_of_lists([vertices for _, vertices in queries], graph.indptr.device)


def _split(rows: Sequence[T], queries: Sequence[AtVertices]) -> list[list[T]]:
    """Split rows for all vertices of all queries into one list per query."""
    remaining = iter(rows)
    return [list(islice(remaining, len(vertices))) for _, vertices in queries]


def edge_question(index: Index, edge: int) -> str:
    """The text of the question that an edge carries."""
    graph = hop_graph(index)
    return graph.question_texts[graph.on_host[1][edge]]


def vertex_passage(index: Index, vertex: int) -> int:
    """The passage row of a vertex."""
    return int(hop_graph(index).on_host[2][vertex])
