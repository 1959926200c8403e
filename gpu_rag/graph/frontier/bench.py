"""The case `frontier`: HopRAG's search over edges with one question each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse

from gpu_rag.bench.case import Case, Checked, Config
from gpu_rag.bench.inputs import check_memory, lists_of, part, seeded, unit_rows
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph import frontier as search
from gpu_rag.graph.frontier import (
    FrontierQuery,
    HopEdges,
    frontier_topk,
    hop_edges,
)
from gpu_rag.types import Ragged, TopK

DIMS = 384
DEGREE = 6  # out-edges of a vertex, as in the paper's graphs (5.87)
FRONTIER = 20  # vertices of a question's frontier: the paper's top_k
WORDS, QUESTION_WORDS = 5, 4  # keywords of an edge and of a question
VOCABULARY = 5000
CHECKED = 8  # questions recomputed in f64
ERROR = 2e-7  # error of a score, rounded to f32

Given = tuple[FrontierQuery, Ragged]
Exact = Callable[["Graph", int, Any], tuple[np.ndarray, np.ndarray]]  # one question's edges and scores in a dtype


@dataclass(frozen=True)
class Graph:
    """Edges, the same in numpy form, and the questions: vectors f32[P, DIMS], words i64[P, QUESTION_WORDS], frontier
    i64[P, FRONTIER]. words_of: f32[E, VOCABULARY], keywords as 0 and 1."""

    edges: HopEdges
    rows: np.ndarray
    words_of: sparse.csr_matrix
    vectors: torch.Tensor
    words: torch.Tensor
    frontier: torch.Tensor

    @property
    def labels(self) -> dict[str, int]:
        """The labels of its rows."""
        return {"n": self.edges.n, "m": self.edges.target.shape[0], "dims": DIMS}

    def given(self, start: int, count: int) -> Given:
        """Questions start..start+count with their frontiers, on the device of the edges."""
        device = self.edges.indptr.device
        vectors, words, frontier = (part(rows, start, count) for rows in (self.vectors, self.words, self.frontier))
        return FrontierQuery(vectors.to(device), lists_of(words, device)), lists_of(frontier, device)

    def scores(self, question: int, edges: Any, dtype: Any) -> np.ndarray:
        """SIM of a question and some edges, by numpy and scipy."""
        own = np.zeros(VOCABULARY, np.float32)
        own[self.words[question].numpy()] = 1
        shared = (self.words_of[edges] @ own).astype(dtype)
        vectors = self.edges.vectors.cpu().numpy()[self.rows[edges]].astype(dtype)
        return (shared / (WORDS + QUESTION_WORDS - shared) + vectors @ self.vectors[question].numpy().astype(dtype)) / 2


def made(n: int, config: Config) -> Graph:
    """A random graph of n vertices and n vectors. Raises UsageError if it does not fit."""
    device = torch.device(config.device)
    check_memory(f"{n:,} vectors and their edges", 4 * n * (2 * DIMS + DEGREE * 16), config)
    r, m, generator = np.random.default_rng(config.seed), n * DEGREE, seeded(config)
    base, vectors = unit_rows(n, DIMS, generator), unit_rows(config.pool, DIMS, generator)
    rows = r.integers(0, n, m)
    words, own_words = _distinct(r, m, WORDS), _distinct(r, config.pool, QUESTION_WORDS)
    ends = torch.arange(n + 1) * DEGREE, torch.from_numpy(r.integers(0, n, m)).int(), torch.from_numpy(rows).int()
    keywords = lists_of(torch.from_numpy(words).int(), device)
    indptr, target, numbers, vectors_of = (tensor.to(device) for tensor in (*ends, base))
    edges = hop_edges(indptr, target, numbers, vectors_of, keywords, VOCABULARY)
    ones = np.ones(m * WORDS, np.float32)
    words_of = sparse.csr_matrix((ones, words.reshape(-1), np.arange(m + 1) * WORDS), (m, VOCABULARY))
    frontier = torch.from_numpy(r.integers(0, n, (config.pool, FRONTIER)))
    return Graph(edges, rows, words_of, vectors, torch.from_numpy(own_words), frontier)


def _distinct(r: np.random.Generator, n: int, size: int) -> np.ndarray:
    """Keywords i64[n, size], each row ascending, each once: one from each of `size` parts of the vocabulary."""
    width = VOCABULARY // size
    return r.integers(0, width, (n, size)) + np.arange(size) * width


def cases(config: Config) -> Iterator[Case]:
    """One hop: the best out-edge of each vertex; with `--hops` the ends of these edges are the next frontier."""
    for n in config.sizes:
        graph = made(n, config)
        for hops in config.hops or (1,):
            yield _frontier(graph, hops, config)


def _frontier(graph: Graph, hops: int, config: Config) -> Case:
    def run(given: Given) -> TopK:
        frontier = given[1]
        for _ in range(hops):
            top = frontier_topk(given[0], graph.edges, frontier, 1, threads=config.threads)
            frontier = Ragged(graph.edges.target[top.ids[:, 0]].long(), frontier.offsets)
        return top

    exact = partial(step_alone, hops=hops)
    return Case(
        op="frontier",
        implementation=search.pick_search(graph.edges.indptr.device),
        labels={**graph.labels, "hops": hops, "k": 1},
        inputs=graph.given,
        run=run,
        check=lambda result, count: check(result, count, graph, exact, 1),
        bytes_of=lambda batch: frontier_bytes(batch, hops),
        memory_of=lambda batch: (64 * FRONTIER * DEGREE + 8 * DIMS) * batch,
        peers=lambda: [peer_file("frontier").by_numpy(graph, exact)],
    )


def frontier_bytes(batch: int, hops: int = 1) -> int:
    """Bytes of every hop: questions, the vector number, keywords and vector of each out-edge, and the result."""
    return hops * batch * (4 * DIMS + FRONTIER * (DEGREE * (4 + 4 * WORDS + 4 * DIMS) + 8))


def step_alone(graph: Graph, question: int, dtype: Any, hops: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The best out-edge of each vertex of one question's frontier, after `hops`: (edges [FRONTIER, 1], scores)."""
    frontier, target = graph.frontier[question].numpy(), graph.edges.target.cpu().numpy()
    for _ in range(hops):
        edges = frontier[:, None].astype(np.int64) * DEGREE + np.arange(DEGREE)
        scores = graph.scores(question, edges.reshape(-1), dtype).reshape(edges.shape)
        best = scores.argmax(1)[:, None]
        chosen = np.take_along_axis(edges, best, 1), np.take_along_axis(scores, best, 1)
        frontier = target[chosen[0][:, 0]]
    return chosen


def check(result: Any, count: int, graph: Graph, exact: Exact, k: int) -> Checked:
    """Check in f64 that scores belong to their edges and are the best; the order of nearly equal scores is free."""
    ids, scores = torch.as_tensor(result.ids).cpu().numpy(), torch.as_tensor(result.scores).cpu().numpy()
    each = len(exact(graph, 0, np.float64)[0])
    if ids.shape != (count * each, k) or scores.shape != ids.shape:
        return Checked(f"the shape is {ids.shape} instead of {(count * each, k)}")
    for question in sorted({int(q) for q in np.linspace(0, count - 1, CHECKED)}):
        span = slice(question * each, question * each + each)
        if (ids[span] < 0).any() or (ids[span] >= len(graph.rows)).any():
            return Checked("an edge is out of range")
        own = graph.scores(question, ids[span].reshape(-1), np.float64).reshape(each, k)
        error = np.abs(np.stack([own, exact(graph, question, np.float64)[1]]) - scores[span]).max()
        if not error <= ERROR:
            return Checked(f"a score is off by {error:.2g}, more than {ERROR:g}")
    return Checked()
