"""What a program may say to HopRAG's graph: where to enter it, which out-edges to follow, how near vertices are.

Everywhere SIM(q, x) = (Jaccard of keywords + cosine) / 2, see `gpu_rag.graph.frontier`. The keywords of an edge are
those of its two questions. Those of a vertex depend on `about`:
  text    all keywords of its title and text
  topics  the keywords of its passage's title, and the subjects of the passage's triples: what the passage is about
Law: a call returns rows and scores, at most k for each thing asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import UsageError
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
from gpu_rag.program.search import Ranking, rankings
from gpu_rag.runtime.call import RANK_GRAPH, Call, Executor
from gpu_rag.text.keywords import keywords
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Ragged, TopK

ENTRIES = ("vertices", "edges")
ABOUT = ("topics", "text")


@dataclass(frozen=True)
class HopQuestion:
    """A question as the graph compares it. vector: f32[D], unit; words: its keywords, normalised."""

    vector: np.ndarray
    words: frozenset[str]


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

    def asked(self, questions: Sequence[HopQuestion]) -> FrontierQuery:
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


def hop_executors(index: Index, threads: int = 1) -> dict[str, Executor]:
    """The executors of the hop verbs; the graph is loaded when it is first asked."""

    def enter(static: tuple[Any, ...], args: list[HopQuestion]) -> list[Ranking]:
        entry, about, k = static
        search = hop_search(index)
        k = search.at_most(k)
        if entry == "vertices":
            loops = search.loops(about)  # before the questions are numbered: it may add words
            return rankings(top_edges(search.asked(args), loops, k, threads=threads))
        top = top_edges(search.asked(args), search.edges, k, threads=threads)
        return [Ranking(tuple(search.targets[list(r.rows)].tolist()), r.scores) for r in rankings(top)]

    def leave(static: tuple[Any, ...], args: list[tuple[HopQuestion, Sequence[int]]]) -> list[list[list[OutEdge]]]:
        search = hop_search(index)
        lists = ragged_of_lists([vertices for _, vertices in args], search.graph.indptr.device)
        k = search.at_most(static[0])  # a vertex has at most one edge to each
        top = frontier_topk(search.asked([q for q, _ in args]), search.edges, lists, k, threads=threads)
        rows = _out_edges(search, top)
        ends = np.cumsum([0, *(len(vertices) for _, vertices in args)])
        return [rows[start:end] for start, end in zip(ends, ends[1:])]

    def near(static: tuple[Any, ...], args: list[tuple[HopQuestion, Sequence[int]]]) -> list[list[float]]:
        search = hop_search(index)
        vertices = search.vertices(static[0])
        lists = ragged_of_lists([listed for _, listed in args], search.graph.indptr.device)
        scores = score_lists(search.asked([q for q, _ in args]), vertices, lists, threads=threads).tolist()
        ends = np.cumsum([0, *(len(listed) for _, listed in args)])
        return [scores[start:end] for start, end in zip(ends, ends[1:])]

    return {
        "enter_hops": Executor(enter, "graph", RANK_GRAPH),
        "out_edges": Executor(leave, "graph", RANK_GRAPH),
        "near_vertices": Executor(near, "graph", RANK_GRAPH),
    }


def _out_edges(search: HopSearch, top: TopK) -> list[list[OutEdge]]:
    """The rows of a TopK over edges."""
    return [[OutEdge(e, int(search.targets[e]), s) for e, s in zip(r.rows, r.scores)] for r in rankings(top)]


class HopVerbs:
    """The hop verbs of one question."""

    index: Index

    async def enter_hops(self, question: HopQuestion, k: int, *, entry: str, about: str) -> Ranking:
        """k distinct vertices to start from, best first.

        entry: "edges": the end vertices met on the way down the ranking of all edges by SIM(q, edge);
        "vertices": those of highest SIM(q, vertex), with the keywords that `about` names (not used for edges).
        """
        if entry not in ENTRIES:
            raise UsageError("unknown way into the hop graph", given=entry, expected=" | ".join(ENTRIES))
        return await Call("enter_hops", (entry, _known(about) if entry == "vertices" else "", k), question)

    async def out_edges(self, question: HopQuestion, vertices: Sequence[int], k: int) -> list[list[OutEdge]]:
        """For each vertex its k out-edges of highest SIM(q, edge), ties to the lower edge; none where it has none."""
        return await Call("out_edges", (k,), (question, tuple(vertices)))

    async def near_vertices(self, question: HopQuestion, vertices: Sequence[int], *, about: str) -> list[float]:
        """SIM(q, vertex) of each vertex."""
        return await Call("near_vertices", (_known(about),), (question, tuple(vertices)))

    def edge_question(self, edge: int) -> str:
        """The text of the question that an edge carries."""
        search = hop_search(self.index)
        return search.graph.question_texts[search.questions[edge]]

    def vertex_passage(self, vertex: int) -> int:
        """The passage row of a vertex."""
        return int(hop_search(self.index).passages[vertex])


def _known(about: str) -> str:
    if about not in ABOUT:
        raise UsageError("unknown description of a vertex", given=about, expected=" | ".join(ABOUT))
    return about
