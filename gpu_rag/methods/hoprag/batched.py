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
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch

from gpu_rag.graph.frontier import (
    Described,
    FrontierQuery,
    HopEdges,
    described,
    frontier_topk,
    hop_edges,
    score_lists,
    top_edges,
)
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.index.index import Index
from gpu_rag.methods.hoprag.graph import HopGraph, load_hop_graph
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.search import Ranking, rankings
from gpu_rag.runtime.step import batched
from gpu_rag.text.keywords import keywords
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Ragged

T = TypeVar("T")


@dataclass(frozen=True)
class HopQuestion:
    """A question as the graph compares it. vector: f32[D], unit; words: its keywords, normalised."""

    vector: np.ndarray
    words: frozenset[str]


@dataclass(frozen=True)
class AtVertices:
    """A question at some vertices of the graph."""

    question: HopQuestion
    vertices: tuple[int, ...]


@dataclass(frozen=True)
class OutEdge:
    """An edge that a question may follow. edge: its row; target: the vertex it leads to; score: SIM(q, edge)."""

    edge: int
    target: int
    score: float


class HopSearch:
    """The hop graph of an index, prepared for search; parts are made when they are first needed."""

    def __init__(self, index: Index, graph: HopGraph):
        self._index, self.graph = index, graph
        self._numbers = dict(graph.keyword_ids)
        self._vertices: dict[str, Described] = {}

    @cached_property
    def targets(self) -> np.ndarray:
        """i32[E]: where each edge leads."""
        return np.asarray(self.graph.target.cpu().numpy())

    @cached_property
    def passages(self) -> np.ndarray:
        """i32[V]: the passage of each vertex."""
        return np.asarray(self.graph.vertex_passage.cpu().numpy())

    def at_most(self, k: int) -> int:
        """k, or the number of vertices where that is less: the ops make room for k results, and no more exist."""
        return min(k, max(1, self.graph.n_vertices))

    @cached_property
    def questions(self) -> np.ndarray:
        """i32[E]: the question that each edge carries."""
        return np.asarray(self.graph.question.cpu().numpy())

    @cached_property
    def edges(self) -> HopEdges:
        """The edges, by their questions' vectors and keywords."""
        g = self.graph
        return hop_edges(g.indptr, g.target, g.question, g.question_vectors, g.edge_keywords, len(g.keyword_ids))

    def vertices(self, about: str) -> Described:
        """The vertices by their vectors and the keywords that `about` names."""
        if about not in self._vertices:
            lists = self.graph.vertex_keywords if about == "text" else self._topics()
            self._vertices[about] = described(self.graph.vertex_vectors, lists, len(self._numbers))
        return self._vertices[about]

    def loops(self, about: str) -> HopEdges:
        """The vertices as edges from each to itself, so that `top_edges` ranks them."""
        part = f"hop loops {about}"
        return self._index.loaded(part, lambda index: self._loops(self.vertices(about)))

    def _loops(self, vertices: Described) -> HopEdges:
        rows = torch.arange(vertices.n + 1, device=vertices.vectors.device)
        own = rows[:-1].int()
        return hop_edges(rows, own, own, vertices.vectors, vertices.keywords, vertices.n_keywords)

    def _topics(self) -> Ragged:
        """What each vertex's passage is about; words that no question has get numbers of their own."""
        titles = self._index.passages["title"].to_pylist()
        topics = [{self._number(word) for word in keywords(title)} for title in titles]
        subjects, _ = self._index.relation_ends
        stated = self._index.relations["passages"].combine_chunks()
        names = [normalise_name(name) for name in self._index.entity_names]
        for row, start, end in zip(subjects, stated.offsets.to_numpy(), stated.offsets.to_numpy()[1:]):
            for passage in stated.values.to_numpy()[start:end]:
                topics[passage].add(self._number(names[row]))
        lists = [sorted(topics[passage]) for passage in self.passages]
        offsets = np.cumsum([0, *map(len, lists)])
        values = np.fromiter((number for row in lists for number in row), np.int64, int(offsets[-1]))
        device = self.graph.indptr.device
        return Ragged(torch.from_numpy(values).to(device), torch.from_numpy(offsets).to(device))

    def _number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    def numbered(self, questions: Sequence[HopQuestion]) -> FrontierQuery:
        """The questions in the form of the ops. Words that the graph does not know count in a set's size alone."""
        lists = []
        for question in questions:
            known = {self._numbers[word] for word in question.words if word in self._numbers}
            beyond = len(self._numbers)
            lists.append([*sorted(known), *range(beyond, beyond + len(question.words) - len(known))])
        device = self.graph.indptr.device
        vectors = torch.from_numpy(np.stack([q.vector for q in questions]).astype(np.float32)).to(device)
        return FrontierQuery(vectors, ragged_of_lists(lists, device))


def hop_search(index: Index) -> HopSearch:
    """The search over an index's hop graph, prepared once. Raises MissingLayer."""
    return index.loaded("hop search", lambda index: HopSearch(index, index.loaded("hops", load_hop_graph)))


@batched(GRAPH)
def enter_hops(index: Index, queries: list[HopQuestion], entry: str, about: str, k: int) -> list[Ranking]:
    """k distinct vertices to start from, best first.

    entry: "edges": the end vertices met on the way down the ranking of all edges by SIM(q, edge);
    "vertices": those of highest SIM(q, vertex), with the keywords that `about` names (not used for edges).
    """
    search = hop_search(index)
    k = search.at_most(k)
    if entry == "vertices":
        loops = search.loops(about)  # before the questions are numbered: it may add words
        return rankings(top_edges(search.numbered(queries), loops, k, threads=index.threads))
    top = top_edges(search.numbered(queries), search.edges, k, threads=index.threads)
    return [Ranking(tuple(search.targets[list(r.rows)].tolist()), r.scores) for r in rankings(top)]


@batched(GRAPH)
def out_edges(index: Index, queries: list[AtVertices], k: int) -> list[list[list[OutEdge]]]:
    """For each vertex its k out-edges of highest SIM(q, edge), ties to the lower edge; none where it has none."""
    search = hop_search(index)
    lists = ragged_of_lists([query.vertices for query in queries], search.graph.indptr.device)
    k = search.at_most(k)  # a vertex has at most one edge to each
    questions = search.numbered([query.question for query in queries])
    found = rankings(frontier_topk(questions, search.edges, lists, k, threads=index.threads))
    edges = [[OutEdge(e, int(search.targets[e]), s) for e, s in zip(r.rows, r.scores)] for r in found]
    return _split(edges, queries)


@batched(GRAPH)
def near_vertices(index: Index, queries: list[AtVertices], about: str) -> list[list[float]]:
    """SIM(q, vertex) of each vertex, with the keywords that `about` names."""
    search = hop_search(index)
    vertices = search.vertices(about)
    lists = ragged_of_lists([query.vertices for query in queries], search.graph.indptr.device)
    questions = search.numbered([query.question for query in queries])
    return _split(score_lists(questions, vertices, lists, threads=index.threads).tolist(), queries)


def _split(rows: list[T], queries: Sequence[AtVertices]) -> list[list[T]]:
    """Rows for all vertices of all queries as a list for each query."""
    ends = np.cumsum([0, *(len(query.vertices) for query in queries)])
    return [rows[start:end] for start, end in zip(ends, ends[1:])]


def edge_question(index: Index, edge: int) -> str:
    """The text of the question that an edge carries."""
    search = hop_search(index)
    return search.graph.question_texts[search.questions[edge]]


def vertex_passage(index: Index, vertex: int) -> int:
    """The passage row of a vertex."""
    return int(hop_search(index).passages[vertex])
