"""Rows ranked on a device by the words of queries: the scores that a query's words give to a row are summed.

Words are added one after another, so that a sum has the same bits in any batch, and on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_rag.graph.common.arrays import to_device
from gpu_rag.graph.nearest.best import selected, topk_of
from gpu_rag.lazy import torch
from gpu_rag.types import TopK

MAX_ENTRIES = 1 << 25  # sums and postings of the queries that are ranked together


@dataclass(frozen=True)
class Postings:
    """Scores of n rows by V words: word w gives data[indptr[w]:indptr[w + 1]] to the rows in the same places of
    indices, each once. indptr: i64[V + 1], on the host; indices: i32, data: f32, on the device."""

    indptr: np.ndarray
    indices: torch.Tensor
    data: torch.Tensor
    n: int


def best_rows(postings: Postings, queries: Sequence[Sequence[int]], k: int) -> TopK:
    """The k >= 1 rows of highest score above 0 for each query, a list of words; a repeated word counts again.

    By (-score, row), padded with (-1, -inf). Returns TopK(i32[B, k], f32[B, k]) on the device. Nothing waits. Memory:
    40 bytes for each of MAX_ENTRIES, or of one query if it has more.
    """
    words = np.full((max(map(len, queries), default=0), len(queries)), -1, np.int64)
    for column, query in enumerate(queries):
        words[: len(query), column] = query
    begins = postings.indptr[words]  # a number that stands for no word gets the end of all
    lengths = np.where(words < 0, 0, postings.indptr[words + 1] - begins)
    batch = np.cumsum(np.maximum(lengths.sum(0), postings.n)) // MAX_ENTRIES
    cuts = [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(queries)]
    parts = [_sums(postings, begins[:, a:b], lengths[:, a:b]) for a, b in zip(cuts, cuts[1:])]
    tops = [_best(sums, k) for sums in parts]
    return TopK(torch.cat([top.ids for top in tops]), torch.cat([top.scores for top in tops]))


def _best(sums: torch.Tensor, k: int) -> TopK:
    if not sums.numel():
        return topk_of(sums[:, :0], sums[:, :0].int(), k)
    rows, scores = selected(sums, min(k, sums.shape[1]))
    return topk_of(torch.where(scores > 0, scores, -torch.inf), torch.where(scores > 0, rows, -1), k)


def _sums(postings: Postings, begins: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
    """The score of each row for B queries: f32[B, n]. begins, lengths: i64[W, B] of each query's words."""
    n_queries, total, device = lengths.shape[1], int(lengths.sum()), postings.data.device
    sums = torch.zeros(n_queries * postings.n, device=device)
    shifts = (begins.ravel() + lengths.ravel()) - np.cumsum(lengths)  # from a place in the list below to a posting
    first = np.tile(np.arange(n_queries) * postings.n, len(lengths))
    counts, shift, row = to_device(device, lengths.ravel(), shifts, first)
    word = torch.repeat_interleave(counts, output_size=total)
    entry = torch.arange(total, device=device) + shift[word]
    places, scores, start = row[word] + postings.indices[entry], postings.data[entry], 0
    for size in lengths.sum(1).tolist():  # the next word of every query: no place twice
        place = places[start : start + size]
        sums[place] += scores[start : start + size]
        start += size
    return sums.view(n_queries, postings.n)
