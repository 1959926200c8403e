"""Passage search by vector, by words and by both. The steps return row numbers and scores, at most k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gpu_rag_kernels.dispatch import is_cpu

from gpu_rag.graph.common.arrays import to_device, to_host
from gpu_rag.graph.fuse import rrf
from gpu_rag.graph.nearest import on_host
from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.graph.postings import Postings, best_rows
from gpu_rag.index.index import Index
from gpu_rag.lazy import torch
from gpu_rag.program.kinds import GRAPH, TEXT
from gpu_rag.runtime.step import batched
from gpu_rag.types import TopK


@dataclass(frozen=True)
class Ranking:
    """Passage rows, best first, with their scores."""

    rows: tuple[int, ...]
    scores: tuple[float, ...]


@batched(GRAPH)
def search_dense(index: Index, queries: list[np.ndarray], k: int) -> list[Ranking]:
    """The k passages of highest cosine to each unit vector f32[D]."""
    (top,) = nearest_of(index, ["passage_vectors"], stacked(queries, index.device), k)
    return rankings(top)


@batched(TEXT)
def search_bm25(index: Index, queries: list[str], k: int) -> list[Ranking]:
    """The k passages of highest BM25 score (above 0) for each text."""
    return rankings(best_by_words(index, queries, k))


@batched(GRAPH)
def search_hybrid(
    index: Index, queries: list[tuple[str, np.ndarray]], k: int, depth: int = 100, constant: float = 60.0
) -> list[Ranking]:
    """Reciprocal rank fusion of the `depth` best of both searches, for each text and its unit vector."""
    words = best_by_words(index, [text for text, _ in queries], depth)
    dense = _dense(index, [vector for _, vector in queries], depth)
    return rankings(fused(dense, words, k, constant))


def nearest_rows(index: Index, stage: str, queries: torch.Tensor, k: int) -> TopK:
    """The k rows of a stage's vectors with the largest dot product with each query f32[B, D], see `NearestRows`.

    The result is never wider than the number of rows, so a huge k takes no more memory than all rows.
    """
    rows = stage_rows(index, stage)
    return rows.search(queries, min(k, rows.base.shape[0]))


def nearest_of(index: Index, stages: Sequence[str], queries: torch.Tensor, k: int) -> list[TopK]:
    """`nearest_rows` of each stage, on the host. One wait for a GPU, and more for queries with many rows of equal or
    close scores."""
    tables = [stage_rows(index, stage) for stage in stages]
    proposed = [rows.proposed(queries, min(k, rows.base.shape[0])) for rows in tables]
    columns = iter(to_host(*(part for top, sure in proposed for part in (top.ids, top.scores, sure))))
    best = []
    for rows, (ids, scores, sure) in zip(tables, zip(columns, columns, columns)):
        unproved = np.flatnonzero(~sure.numpy())
        if len(unproved):
            unproved_queries = queries[to_device(index.device, unproved)[0]]
            again, proved = rows.proposed(unproved_queries, ids.shape[1], again=True)
            ids[unproved], scores[unproved], proved = to_host(again.ids, again.scores, proved)
            if not bool(proved.all()):
                again = on_host(rows.search(unproved_queries, ids.shape[1]))
                ids[unproved], scores[unproved] = again.ids, again.scores
        best.append(TopK(ids, scores))
    return best


def stage_rows(index: Index, stage: str) -> NearestRows:
    """The vectors of a stage, prepared for search."""
    return index.loaded(f"rows of {stage}", lambda _: NearestRows(index.vectors(stage), index.threads))


def rankings(top: TopK) -> list[Ranking]:
    """The rows of a TopK as Rankings, without padding."""
    top = on_host(top)
    columns = top.ids.tolist(), top.scores.tolist(), (top.ids >= 0).sum(1).tolist()
    return [Ranking(tuple(ids[:n]), tuple(scores[:n])) for ids, scores, n in zip(*columns)]


def stacked(vectors: Sequence[np.ndarray], device: str) -> torch.Tensor:
    """Vectors f32[D] as one tensor f32[B, D] on a device. No wait."""
    return to_device(device, np.stack(vectors).astype(np.float32))[0]


def _dense(index: Index, vectors: Sequence[np.ndarray], k: int) -> TopK:
    return nearest_rows(index, "passage_vectors", stacked(vectors, index.device), k)


def best_by_words(index: Index, texts: Sequence[str], k: int, stage: str = "bm25", name: str = "") -> TopK:
    """The k rows of highest BM25 score (above 0) for each text, see `Index.words`, on the device of the index. On a GPU
    nothing waits; a CPU gives equal bits."""
    bm25, device = index.words(stage, name), torch.device(index.device)
    k = min(k, max(1, bm25.n))
    if is_cpu(device):
        ids, scores = bm25.search(texts, k)
        return TopK(torch.from_numpy(ids), torch.from_numpy(scores))

    def load(_: Index) -> Postings:
        indices, data = (torch.from_numpy(part).to(device) for part in (bm25.arrays["indices"], bm25.all_scores()))
        return Postings(bm25.arrays["indptr"], indices, data, bm25.n)

    return best_rows(index.loaded(f"postings of {stage}/{name}", load), [bm25.ids(text) for text in texts], k)


def fused(dense: TopK, words: TopK, k: int, constant: float) -> TopK:
    """Reciprocal rank fusion of two rankings, on the host; both are copied to it at once."""
    ids, scores, *other = to_host(dense.ids, dense.scores, words.ids, words.scores)
    return rrf([TopK(ids, scores), TopK(*other)], k, constants=[constant, constant])
