"""Exact best-K selection, and nearest neighbours by dot product."""

from __future__ import annotations

import torch

from gpu_rag.errors import BadInput
from gpu_rag.types import TopK

QUERY_TILE = 64  # queries of every product, padded: a row's bits then do not depend on its batch
BLOCK = 32  # columns of a row that are compared by their largest first


def topk_rows(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    """The k best of each row, by (-score, id); id = column + lo.

    scores: f32[B, N], -inf marks a column that is no candidate and is never returned; NaN is an error. k >= 0; where
    a row has fewer than k candidates it is padded with (-1, -inf). Equal scores come in ascending id, also at the cut:
    `torch.topk` picks any of them. Returns TopK(i32[B, k], f32[B, k]). Raises BadInput.
    Memory: a copy of the rows that have ties at the cut.

    Scores [1, 3, 3, 2] with k = 2 give ids [1, 2]; with k = 1 id 1.
    """
    if scores.dim() != 2 or scores.dtype != torch.float32:
        raise BadInput("scores are no matrix", given=f"{scores.dtype} {tuple(scores.shape)}", expected="f32 [B, N]")
    if k < 0 or lo < 0 or lo + scores.shape[1] > 2**31 - 1:
        raise BadInput("k or lo is out of range", given=f"k={k}, lo={lo}", expected=">= 0, ids below 2^31")
    width = min(k, scores.shape[1])
    ids = torch.full((scores.shape[0], k), -1, dtype=torch.int32, device=scores.device)
    best = torch.full((scores.shape[0], k), -torch.inf, dtype=torch.float32, device=scores.device)
    if scores.numel():
        if bool(scores.sum().isnan()) and bool(scores.isnan().any()):  # a sum is cheap; inf - inf is NaN too
            row = int(scores.isnan().any(1).nonzero()[0, 0])
            raise BadInput("a score is not a number", given=f"NaN in row {row}", expected="numbers")
        if width:
            columns, values = _selected(scores, width)
            real = values > -torch.inf
            ids[:, :width] = torch.where(real, columns + lo, -1).int()
            best[:, :width] = values
    return TopK(ids, best)


def _selected(scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns i64[B, width] and their scores, by (-score, column).

    Long rows by the peaks of their blocks: the best `width` blocks by (-peak, block) hold the best `width` columns,
    since each block before another has an entry before every entry of the other.
    """
    if scores.shape[1] < 4 * BLOCK * width:
        return _selected_directly(scores, width)
    whole = scores.shape[1] // BLOCK * BLOCK
    peaks = scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(2)
    blocks = _selected(peaks, width)[0].sort(dim=1).values
    columns = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    rest = torch.arange(whole, scores.shape[1], device=scores.device).expand(scores.shape[0], -1)
    columns = torch.cat([columns, rest], 1)
    picked, values = _selected_directly(scores.gather(1, columns), width)
    return columns.gather(1, picked), values


def _selected_directly(scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`_selected` in one piece."""
    values, columns = torch.topk(scores, min(width + 1, scores.shape[1]), dim=1)  # one more shows a tie at the cut
    cut, following, columns = values[:, width - 1 : width], values[:, width:], columns[:, :width]
    tied = ((following == cut) & (cut > -torch.inf)).any(1).nonzero()[:, 0]
    if tied.numel():  # which of the equal ones were taken is unspecified: take the first ones
        part, edge = scores[tied], cut[tied]
        above, equal = part > edge, part == edge
        room = width - above.sum(1, keepdim=True)
        taken = above | (equal & (equal.cumsum(1) <= room))
        columns[tied] = taken.nonzero()[:, 1].view(-1, width)
    columns = columns.sort(dim=1).values
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return columns.gather(1, order), values


def nearest(queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536) -> TopK:
    """The k rows of `base` with the largest dot product with each query, by (-product, row).

    queries: f32[B, D]; base: f16 or f32[N, D], on the same device; both finite (NaN is an error). Products are taken
    in f32, 64 queries (padded) by `tile` rows at a time, so never more than [64, tile] scores are alive and a query
    gives the same bits alone or in any batch. Returns TopK(i32[B, k], f32[B, k]). Raises BadInput.
    """
    _check_vectors(queries, base, tile)
    found = [_nearest_tile(queries[i : i + QUERY_TILE], base, k, tile) for i in range(0, queries.shape[0], QUERY_TILE)]
    if not found:
        return topk_rows(queries.new_zeros(0, base.shape[0]), k)
    return TopK(torch.cat([f.ids for f in found]), torch.cat([f.scores for f in found]))


def _check_vectors(queries: torch.Tensor, base: torch.Tensor, tile: int) -> None:
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


def _nearest_tile(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int) -> TopK:
    """`nearest` of at most QUERY_TILE queries, tile after tile of the base in ascending rows."""
    n_queries = queries.shape[0]
    padded = queries.new_zeros(QUERY_TILE, queries.shape[1])
    padded[:n_queries] = queries
    best = topk_rows(queries.new_zeros(n_queries, 0), k)
    for lo in range(0, base.shape[0], tile):
        scores = (padded @ base[lo : lo + tile].float().T)[:n_queries]
        best = _merged(best, topk_rows(scores, k, lo=lo), k)
    return best


def _merged(first: TopK, second: TopK, k: int) -> TopK:
    """The best k of two; every id of `first` is smaller than every id of `second`, so a stable sort keeps ties."""
    scores, order = torch.cat([first.scores, second.scores], 1).sort(dim=1, descending=True, stable=True)
    ids = torch.cat([first.ids, second.ids], 1).gather(1, order)
    return TopK(ids[:, :k].contiguous(), scores[:, :k].contiguous())
