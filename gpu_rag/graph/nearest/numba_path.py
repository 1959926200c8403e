"""`nearest` on the CPU: fast scores by torch products of any shape, exact scores by numba if they can matter.

Equal bits do not need equal products. A fast score is within a proved distance of the exact score; a row is scored
exactly only if its fast score comes within that distance of the worst of a query's best so far. So products have the
size that suits the caches, in bf16 if the processor multiplies it. Few queries are scored directly, at the speed of
reading rows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

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
Search: TypeAlias = "Callable[[int, int], TopK]"

FEW = 16  # queries: up to here, products row by row cost less than rounding rows
SCORES = 1 << 18  # scores of a product, so that they stay in a cache of 1 MB
MIN_ROWS, MAX_ROWS = 1024, 4096  # per product
PART = 16384  # minimum rows for a thread


def nearest_by_numba(
    queries: torch.Tensor, base: torch.Tensor, k: int, tile: int, threads: int, dtype: torch.dtype | None = None
) -> TopK:
    """`nearest` of checked vectors, k >= 1. dtype: data type of the products, f32 or bf16; None: the fastest. Threads
    take ranges of rows."""
    base, n = base.contiguous(), base.shape[0]
    threads = max(1, min(threads, n // PART))
    if queries.shape[0] <= FEW and dtype is None:
        search = _alone(queries, base, k)
    else:
        search = _by_products(queries, base, k, tile, dtype or fastest_dtype())
    bounds = [n * t // threads for t in range(threads + 1)]
    best, *others = run_parts(lambda rows: search(*rows), pairwise(bounds), threads)
    for other in others:
        best = best_of_two(best, other, k)
    return best


def _alone(queries: torch.Tensor, base: torch.Tensor, k: int) -> Search:
    """Search of a range of rows, with every row multiplied once."""
    questions, rows, unit = queries.contiguous().numpy(), component_bits(base), unit_of(base.shape[1])

    def search(low: int, high: int) -> TopK:
        bad, scores, ids = search_rows(questions, rows, low, high, k, unit)
        if bad >= 0:
            refuse_infinite(queries, "queries")
            refuse_infinite(base[bad : bad + 1], "base", bad)
        return TopK(torch.from_numpy(ids), torch.from_numpy(scores))

    return search


def _by_products(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int, dtype: torch.dtype) -> Search:
    """Search of a range of rows by fast products."""
    n_queries = queries.shape[0]
    wide = queries.double().contiguous().numpy()  # torch aligns memory to cache lines, so no load crosses one
    bits, relative, left = component_bits(base), rounding_of(dtype), low_precision_rows(queries, dtype)
    if not left.is_finite:
        refuse_infinite(queries, "queries")
    step = min(tile, max(MIN_ROWS, min(MAX_ROWS, SCORES // n_queries)))

    def search(low: int, high: int) -> TopK:
        scores, ids = np.full((n_queries, k), -np.inf, np.float32), np.full((n_queries, k), NOBODY, np.int32)
        buffer = torch.empty(min(n_queries, QUERY_TILE) * min(step, high - low), dtype=dtype)
        for j0 in range(low, high, step):
            vectors = base[j0 : min(j0 + step, high)]
            rows = low_precision_rows(vectors, dtype)
            if not rows.is_finite:
                refuse_infinite(vectors, "base", j0)
            slack = slack_of(left, rows)
            for first in range(0, n_queries, QUERY_TILE):
                own = slice(first, first + QUERY_TILE)
                part = left.rows[own]
                fast = buffer[: len(part) * len(rows.rows)].view(len(part), len(rows.rows))
                torch.mm(part, rows.rows.T, out=fast)
                search_tile(score_bits(fast), j0, slack[own], relative, wide[own], bits, scores[own], ids[own])
        sort_heaps(scores, ids)
        return TopK(torch.from_numpy(ids), torch.from_numpy(scores))

    return search
