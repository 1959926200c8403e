"""What a program may say to search: passages by vector, by words, by both, and by the graph.

Law: a call returns row numbers and scores, at most k, never a vector over all passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpu_rag.graph.fuse import rrf
from gpu_rag.graph.nearest import on_host
from gpu_rag.index.index import Index
from gpu_rag.methods.ppr.batched import Asked, GraphRank, graph_ranker
from gpu_rag.program.nearest import nearest_rows
from gpu_rag.runtime.call import RANK_GRAPH, RANK_TEXT, Call, Executor
from gpu_rag.types import TopK


@dataclass(frozen=True)
class Ranking:
    """Passage rows, best first, with their scores."""

    rows: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class GraphRanking(Ranking):
    """A Ranking by the graph, with the relation rows that seeded it (best first)."""

    facts: tuple[int, ...] = ()


def rankings(top: TopK) -> list[Ranking]:
    """The rows of a TopK as Rankings without padding."""
    top = on_host(top)
    ids, scores = top.ids.numpy(), top.scores.numpy()
    return [Ranking(tuple(i[i >= 0].tolist()), tuple(s[i >= 0].tolist())) for i, s in zip(ids, scores)]


def _stack(vectors: Sequence[np.ndarray], device: str) -> torch.Tensor:
    return torch.from_numpy(np.stack(vectors).astype(np.float32)).to(device)


def _dense(index: Index, vectors: Sequence[np.ndarray], k: int) -> TopK:
    return nearest_rows(index, "passage_vectors", _stack(vectors, index.device), k)


def _bm25(index: Index, texts: Sequence[str], k: int) -> TopK:
    ids, scores = index.bm25.search(texts, min(k, max(1, index.n_passages)))
    return TopK(torch.from_numpy(ids), torch.from_numpy(scores))


def _dense_executor(index: Index) -> Executor:
    def run(static: tuple[Any, ...], args: list[np.ndarray]) -> list[Ranking]:
        return rankings(_dense(index, args, static[0]))

    return Executor(run, "graph", RANK_GRAPH)


def _bm25_executor(index: Index) -> Executor:
    def run(static: tuple[Any, ...], args: list[str]) -> list[Ranking]:
        return rankings(_bm25(index, args, static[0]))

    return Executor(run, "text", RANK_TEXT)


def _hybrid_executor(index: Index) -> Executor:
    def run(static: tuple[Any, ...], args: list[tuple[str, np.ndarray]]) -> list[Ranking]:
        k, depth, constant = static
        words = _bm25(index, [text for text, _ in args], depth)
        dense = _dense(index, [vector for _, vector in args], depth)
        return rankings(rrf([on_host(dense), words], k, constants=[constant, constant]))

    return Executor(run, "graph", RANK_GRAPH)


def _by_graph_executor(index: Index, threads: int) -> Executor:
    rank = graph_ranker(index, threads)

    def run(static: tuple[Any, ...], args: list[Asked]) -> list[GraphRanking]:
        top, facts = rank(static[0], args)
        return [GraphRanking(r.rows, r.scores, tuple(f)) for r, f in zip(rankings(top), facts)]

    return Executor(run, "graph", RANK_GRAPH)


def retrieve_executors(index: Index, threads: int = 1) -> dict[str, Executor]:
    """The executors of all search verbs over one index."""
    return {
        "search_dense": _dense_executor(index),
        "search_bm25": _bm25_executor(index),
        "search_hybrid": _hybrid_executor(index),
        "rank_by_graph": _by_graph_executor(index, threads),
    }


class RetrieveVerbs:
    """The search verbs of one question."""

    async def search_dense(self, vector: np.ndarray, k: int) -> Ranking:
        """The k passages of highest cosine to a unit vector f32[D]."""
        return await Call("search_dense", (k,), vector)

    async def search_bm25(self, text: str, k: int) -> Ranking:
        """The k passages of highest BM25 score (above 0) for a text."""
        return await Call("search_bm25", (k,), text)

    async def search_hybrid(
        self, text: str, vector: np.ndarray, k: int, *, depth: int = 100, constant: float = 60.0
    ) -> Ranking:
        """Reciprocal rank fusion of the `depth` best of both searches."""
        return await Call("search_hybrid", (k, depth, constant), (text, vector))

    async def rank_by_graph(self, text: str, vector: np.ndarray, params: GraphRank) -> GraphRanking:
        """Seeds from facts, names and passages, personalized PageRank and final fusion in one, see `verbs.graph`."""
        return await Call("rank_by_graph", (params,), (text, vector))
