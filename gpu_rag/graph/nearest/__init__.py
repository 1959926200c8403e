"""Exact nearest neighbours by dot product; the best K of rows of scores are in `best`."""

from __future__ import annotations

from gpu_rag_kernels.dispatch import loaded, pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import FLOATS, check_form
from gpu_rag.graph.common.threads import check_threads
from gpu_rag.graph.memory import check_memory
from gpu_rag.graph.nearest.best import MAX_K, QUERY_TILE, on_host, tile_of, topk_rows
from gpu_rag.lazy import torch
from gpu_rag.types import TopK

__all__ = ["MAX_K", "QUERY_TILE", "nearest", "on_host", "topk_rows"]

COMPILED = "gpu_rag.graph.nearest.numba_path"


def nearest(
    queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int | None = None, implementation: str = "auto",
    threads: int = 1,
) -> TopK:  # fmt: skip
    """The k rows of `base` with the largest dot product with each query, by (-score, row).

    score: the products are taken in f64, where a product of two f32 numbers is exact. They are added in f64 in 32 sums
    (sum l has the components l, l + 32, .. of the first D - D % 32, in this order). The upper half of the sums is added
    to the lower half until one is left; then the other D % 32 products are added in order; the result is rounded once
    to f32. So a query gives the same bits alone, in any batch, implementation and on any device, and equal rows tie.

    queries: f32[B, D]; base: f16 or f32[N, D], on the same device; both finite (NaN and infinity are errors). tile:
    maximum base rows in a product (None: 65,536; on a GPU more for few queries). implementation: numba | torch | auto.
    threads: ranges of rows at once (numba). Fast scores come from products of any shape with a proved error (in bf16 if
    the CPU has instructions for it); rows that remain in doubt are scored exactly. Returns TopK(i32[B, k], f32[B, k]),
    padded with (-1, -inf). Time: B N D multiply-adds. Additional memory: a few tiles, at most 256 queries by `tile`
    rows (numba: by 4,096), and in torch 12 bytes for each of k + 32 rows a query, k + 1,024 if more than 32 others are
    close to the k-th; a base that is not contiguous is copied. More than k rows with equal scores (torch: k + 1,024)
    are slow: all of them are scored exactly. The host waits for a device once, a second time for such close rows, and
    with so many equal ones once more for each tile. Raises BadInput, UsageError, MissingBackend.

    Rows [1, 0], [0, 1], [0.6, 0.8] and the query [0, 1] with k = 2 give rows [1, 2] with 1 and 0.8.
    """
    check_threads(threads)
    tile = tile_of(queries) if tile is None else tile
    _check_vectors(queries, base, k, tile)
    check_memory(8 * k * queries.shape[0], base.device, "the result", "ask for fewer rows or queries at a time")
    chosen = pick_implementation(base.device, implementation, "nearest")
    if queries.requires_grad or base.requires_grad:
        queries, base = queries.detach(), base.detach()
    if not queries.shape[0] or not base.shape[0] or not k:
        return topk_rows(queries.new_zeros(queries.shape[0], 0), k)
    if chosen == "numba":
        return loaded(COMPILED).nearest_by_numba(queries, base, k, tile, threads)
    from gpu_rag.graph.nearest.torch_path import nearest_by_torch

    return nearest_by_torch(queries, base, k, tile)


def _check_vectors(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int) -> None:
    check_form(queries, "queries are not a matrix", ["f32"], ["B", "D"])
    check_form(base, "base is not a matrix of that dimension", FLOATS, ["N", queries.shape[1]], queries.device)
    if tile < 1:
        raise BadInput("tile is out of range", given=tile, expected=">= 1")
    if not 0 <= k <= MAX_K or base.shape[0] > 2**31 - 2:
        given, expected = f"k={k}, {base.shape[0]} rows", ">= 0, k and rows below 2^31"
        raise BadInput("k is out of range", given=given, expected=expected)
