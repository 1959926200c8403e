"""`nearest` on the CPU: fast scores by torch products of any shape, exact scores by numba if they can matter.

Equal bits do not need equal products. A fast score is within a proved distance of the exact score; a row is scored
exactly only if its fast score comes within that distance of the worst of a query's best so far. So products have the
size that suits the caches, in bf16 if the processor multiplies it. Few queries are scored directly, at the speed of
reading rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dots.numba import NOBODY, search_rows, search_tile, sort_heaps

from gpu_rag.graph.common.arrays import component_bits, score_bits
from gpu_rag.graph.common.dots import unit_of
from gpu_rag.graph.common.low_precision import fastest_dtype, low_precision_rows, rounding_of, slack_of
from gpu_rag.graph.common.threads import run_parts
from gpu_rag.graph.nearest.best import QUERY_TILE, best_of_two, refuse_infinite
from gpu_rag.types import TopK

Array = np.ndarray[Any, Any]

FEW = 16  # queries: up to here, products row by row cost less than rounding rows
SCORES = 1 << 18  # scores of a product, so that they stay in a cache of 1 MB
MIN_ROWS, MAX_ROWS = 1024, 4096  # per product
PART = 16384  # minimum rows for a thread
QUERY_PART = 32  # minimum queries for a thread


def nearest_by_numba(
    queries: torch.Tensor, base: torch.Tensor, k: int, tile: int, dtype: torch.dtype | None = None
) -> TopK:
    """`nearest` of checked vectors, k >= 1. dtype: data type of the products, f32 or bf16; None: the fastest."""
    base = base.contiguous()
    if queries.shape[0] <= FEW and dtype is None:
        return _alone(queries, base, k)
    return _by_products(queries, base, k, tile, dtype or fastest_dtype())


def _alone(queries: torch.Tensor, base: torch.Tensor, k: int) -> TopK:
    """Search with every row multiplied once; threads take ranges of rows."""
    questions, rows, n = queries.contiguous().numpy(), component_bits(base), base.shape[0]
    threads, unit = max(1, min(torch.get_num_threads(), n // PART)), unit_of(base.shape[1])

    def search(t: int) -> TopK:
        bad, scores, ids = search_rows(questions, rows, n * t // threads, n * (t + 1) // threads, k, unit)
        if bad >= 0:
            refuse_infinite(queries, "queries")
            refuse_infinite(base[bad : bad + 1], "base", bad)
        return TopK(torch.from_numpy(ids), torch.from_numpy(scores))

    if threads == 1:
        return search(0)
    best, *others = run_parts(search, range(threads), threads)
    for other in others:
        best = best_of_two(best, other, k)
    return best


def _by_products(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int, dtype: torch.dtype) -> TopK:
    n_queries, n, threads = queries.shape[0], base.shape[0], torch.get_num_threads()
    wide = queries.double().contiguous().numpy()  # torch aligns memory to cache lines, so no load crosses one
    scores, ids = np.full((n_queries, k), -np.inf, np.float32), np.full((n_queries, k), NOBODY, np.int32)
    bits, relative = component_bits(base), rounding_of(dtype)

    def update(approx: Array, first: int, j0: int, slack: Array) -> None:
        """Update the heaps of queries from `first` on with fast scores of rows from j0 on, within `slack` f64[B]."""
        size = -(-len(approx) // max(1, min(threads, len(approx) // QUERY_PART)))

        def search(start: int) -> None:
            own = slice(first + start, first + min(start + size, len(approx)))
            part = approx[start : start + size]
            search_tile(part, j0, slack[own], relative, wide[own], bits, scores[own], ids[own])

        run_parts(search, range(0, len(approx), size), threads)

    left = low_precision_rows(queries, dtype)
    if not left.is_finite:
        refuse_infinite(queries, "queries")
    step = min(tile, n, max(MIN_ROWS, min(MAX_ROWS, SCORES // n_queries)))
    buffer = torch.empty(min(n_queries, QUERY_TILE) * step, dtype=dtype)
    for j0 in range(0, n, step):
        rows = low_precision_rows(base[j0 : j0 + step], dtype)
        if not rows.is_finite:
            refuse_infinite(base[j0 : j0 + step], "base", j0)
        slack = slack_of(left, rows)
        for first in range(0, n_queries, QUERY_TILE):
            part = left.rows[first : first + QUERY_TILE]
            tile_scores = buffer[: len(part) * len(rows.rows)].view(len(part), len(rows.rows))
            torch.mm(part, rows.rows.T, out=tile_scores)
            update(score_bits(tile_scores), first, j0, slack)
    sort_heaps(scores, ids)
    return TopK(torch.from_numpy(ids), torch.from_numpy(scores))
