"""Exact best-K selection, and nearest neighbours by dot product."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.backend import is_cpu, pick_implementation
from gpu_rag.graph.memory import check_room
from gpu_rag.types import TopK

MOST_BEST = 2**31 - 1  # there are no more ids
QUERY_TILE = 256  # queries of a product, at most
BLOCK = 32  # columns of a row that are compared by their largest first


def topk_rows(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    """The k best of each row, by (-score, id); id = column + lo.

    scores: f32[B, N], -inf marks a column that is no candidate and is never returned; NaN is an error. k >= 0; where
    a row has fewer than k candidates it is padded with (-1, -inf). Equal scores come in ascending id, also at the cut:
    `torch.topk` picks any of them. Returns TopK(i32[B, k], f32[B, k]). Raises BadInput.
    Memory: 16 bytes an entry of rows shorter than 128 k, little beside longer ones. The host waits for a device once.

    Scores [1, 3, 3, 2] with k = 2 give ids [1, 2]; with k = 1 id 1.
    """
    if scores.dim() != 2 or scores.dtype != torch.float32:
        raise BadInput("scores are no matrix", given=f"{scores.dtype} {tuple(scores.shape)}", expected="f32 [B, N]")
    if not 0 <= k <= MOST_BEST or lo < 0 or lo + scores.shape[1] > 2**31 - 1:
        raise BadInput("k or lo is out of range", given=f"k={k}, lo={lo}", expected=">= 0, k and ids below 2^31")
    check_room(8 * k * scores.shape[0], scores.device, "the result", "ask for fewer or for fewer rows at a time")
    width = min(k, scores.shape[1])
    ids = torch.full((scores.shape[0], k), -1, dtype=torch.int32, device=scores.device)
    best = torch.full((scores.shape[0], k), -torch.inf, dtype=torch.float32, device=scores.device)
    if scores.numel():
        if bool(scores.sum().isnan()) and bool(scores.isnan().any()):  # a sum is cheap; inf - inf is NaN too
            row = int(scores.isnan().any(1).nonzero()[0, 0])
            raise BadInput("a score is not a number", given=f"NaN in row {row}", expected="numbers")
        if width:
            columns, values = selected(scores, width)
            real = values > -torch.inf
            ids[:, :width] = torch.where(real, columns + lo, -1).int()
            best[:, :width] = values
    return TopK(ids, best)


def selected(scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns i64[B, width] and their scores, by (-score, column); no NaN, width <= N. No wait for a device.

    Long rows by the peaks of their blocks: the best `width` blocks by (-peak, block) hold the best `width` columns,
    since each block before another has an entry before every entry of the other.
    """
    if scores.shape[1] < 4 * BLOCK * width:
        return _selected_directly(scores, width)
    whole = scores.shape[1] // BLOCK * BLOCK
    peaks = scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(2)
    blocks = selected(peaks, width)[0].sort(dim=1).values
    columns = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    rest = torch.arange(whole, scores.shape[1], device=scores.device).expand(scores.shape[0], -1)
    columns = torch.cat([columns, rest], 1)
    picked, values = _selected_directly(scores.gather(1, columns), width)
    return columns.gather(1, picked), values


def _selected_directly(scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`selected` in one piece, by keys that no two columns share: `torch.topk` picks any of equal ones.

    The bits of a float, those below the sign turned over where it is negative, are in the order of the floats.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0: they are equal
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    last = 2**32 - 1
    keys = ordered | torch.arange(last, last - scores.shape[1], -1, device=scores.device)
    columns = last - (torch.topk(keys, width, dim=1).values & last)
    return columns, scores.gather(1, columns)


def nearest(
    queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536, implementation: str = "auto"
) -> TopK:
    """The k rows of `base` with the largest dot product with each query, by (-score, row).

    score = the products, taken in f64, where that of two f32 numbers is exact; added in f64 in 32 sums (number l holds
    the components l, l + 32, .. of the first D - D % 32, in this order), of which the upper half is added to the lower
    half until one is left; then the other D % 32 in order; rounded once to f32. So a query gives the same bits alone,
    in any batch, by any implementation and on any device, and rows that are equal tie.

    queries: f32[B, D]; base: f16 or f32[N, D], on the same device; both finite (NaN and infinity are errors). tile:
    rows of the base in a product, at most. implementation: numba | torch | auto. Rough scores come from products
    of any shape with a proved error (in bf16 where the CPU has instructions for it); rows that this leaves in doubt
    are scored. Returns TopK(i32[B, k], f32[B, k]), padded with (-1, -inf). Time: B N D of multiply and add. Memory
    beside the result: a few tiles, at most 256 queries by `tile` rows (numba: by 4,096), and by torch 12 bytes for each
    of k + 32 rows a query; a base that is not contiguous is copied. More rows with equal scores than k (torch: k + 32)
    are slow: all of them are scored. The host waits for a device once, where there are so many for each tile. Raises
    BadInput, UsageError, MissingBackend.

    Rows [1, 0], [0, 1], [0.6, 0.8] and the query [0, 1] with k = 2 give rows [1, 2] with 1 and 0.8.
    """
    _check_vectors(queries, base, k, tile)
    check_room(8 * k * queries.shape[0], base.device, "the result", "ask for fewer rows or queries at a time")
    chosen = pick_implementation(base.device, implementation, "nearest")
    if queries.requires_grad or base.requires_grad:
        queries, base = queries.detach(), base.detach()
    if not queries.shape[0] or not base.shape[0] or not k:
        return topk_rows(queries.new_zeros(queries.shape[0], 0), k)
    if chosen == "numba":
        return _compiled().nearest_by_numba(queries, base, k, tile)
    from gpu_rag.graph.nearest.torch_path import nearest_by_torch

    return nearest_by_torch(queries, base, k, tile)


@cache
def _compiled() -> Any:
    """The module of the numba version; kept, as an import statement in a call of 20 us is seen."""
    from gpu_rag.graph.nearest import numba_path as nearest_numba

    return nearest_numba


def _check_vectors(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int) -> None:
    if queries.dim() != 2 or queries.dtype != torch.float32:
        raise BadInput("queries are no matrix", given=f"{queries.dtype} {tuple(queries.shape)}", expected="f32 [B, D]")
    if base.dim() != 2 or base.dtype not in (torch.float16, torch.float32):
        raise BadInput("base is no matrix", given=f"{base.dtype} {tuple(base.shape)}", expected="f16 or f32 [N, D]")
    if queries.shape[1] != base.shape[1]:
        raise BadInput("queries and base differ in dimension", given=queries.shape[1], expected=base.shape[1])
    if queries.device != base.device:
        raise BadInput("queries and base are on different devices", given=queries.device, expected=base.device)
    if tile < 1:
        raise BadInput("tile is out of range", given=tile, expected=">= 1")
    if not 0 <= k <= MOST_BEST or base.shape[0] > 2**31 - 2:
        given, expected = f"k={k}, {base.shape[0]} rows", ">= 0, k and rows below 2^31"
        raise BadInput("k is out of range", given=given, expected=expected)


def refuse_infinite(vectors: torch.Tensor, name: str, first: int = 0) -> None:
    """Raises BadInput where a row is not finite; `first` is the number of the first row."""
    bad = ~torch.isfinite(vectors).all(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        what = "NaN" if bool(vectors[row].isnan().any()) else "infinity"
        raise BadInput(f"{name} are no finite numbers", given=f"{what} in row {first + row}", expected="finite numbers")


def topk_of(scores: torch.Tensor, ids: torch.Tensor, k: int) -> TopK:
    """The first k of sorted candidates f32, i64[B, C], filled up with (-1, -inf)."""
    width = min(k, ids.shape[1])
    best_ids = torch.full((ids.shape[0], k), -1, dtype=torch.int32, device=scores.device)
    best = torch.full((ids.shape[0], k), -torch.inf, device=scores.device)
    best_ids[:, :width], best[:, :width] = ids[:, :width].int(), scores[:, :width]
    return TopK(best_ids, best)


def on_host(top: TopK) -> TopK:
    """`top` on the CPU; from a device in one copy, as each is a wait."""
    if is_cpu(top.ids.device):
        return top
    ids, scores = torch.stack([top.ids, top.scores.view(torch.int32)]).cpu()
    return TopK(ids, scores.view(torch.float32))


def best_of_two(first: TopK, second: TopK, k: int) -> TopK:
    """The best k of two; every id of `first` is smaller than every id of `second`, so a stable sort keeps ties."""
    scores, order = torch.cat([first.scores, second.scores], 1).sort(dim=1, descending=True, stable=True)
    ids = torch.cat([first.ids, second.ids], 1).gather(1, order)
    return TopK(ids[:, :k].contiguous(), scores[:, :k].contiguous())
