"""The exact best K of rows of scores; ties go to the smaller id."""

from __future__ import annotations

from collections.abc import Callable

from gpu_rag_kernels.dispatch import is_cpu

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import check_form
from gpu_rag.graph.memory import check_memory
from gpu_rag.lazy import torch
from gpu_rag.types import TopK

MAX_K = 2**31 - 1  # there are no more ids
QUERY_TILE = 256  # maximum queries of a product
ROW_TILE = 65536  # rows of a product
SCORES_GPU = 1 << 25  # scores of a product on a GPU for few queries: each has 60 launches
BLOCK = 32  # columns of a row that are first compared by their maximum


def tile_of(queries: torch.Tensor) -> int:
    """Rows of a product with these queries."""
    if is_cpu(queries.device):
        return ROW_TILE
    return max(ROW_TILE, SCORES_GPU // min(max(len(queries), 1), QUERY_TILE))


def topk_rows(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    """The k best of each row, by (-score, id); id = column + lo.

    scores: f32[B, N]; -inf marks a column that is not a candidate and is never returned; NaN is an error. k >= 0; a row
    with fewer than k candidates is padded with (-1, -inf). Equal scores are in ascending id, also at the cut;
    `torch.topk` would pick any of them. Returns TopK(i32[B, k], f32[B, k]). Raises BadInput.
    Memory: 16 bytes an entry for rows shorter than 128 k, little for longer ones. The host waits for a device once.

    Scores [1, 3, 3, 2] with k = 2 give ids [1, 2]; with k = 1 id 1.
    """
    check_form(scores, "scores are not a matrix", ["f32"], ["B", "N"])
    if not 0 <= k <= MAX_K or lo < 0 or lo + scores.shape[1] > 2**31 - 1:
        raise BadInput("k or lo is out of range", given=f"k={k}, lo={lo}", expected=">= 0, k and ids below 2^31")
    check_memory(8 * k * scores.shape[0], scores.device, "the result", "ask for fewer or for fewer rows at a time")
    width = min(k, scores.shape[1])
    if scores.numel() and bool(scores.sum().isnan()) and bool(scores.isnan().any()):  # a sum is cheap; inf - inf is NaN
        row = int(scores.isnan().any(1).nonzero()[0, 0])
        raise BadInput("a score is not a number", given=f"NaN in row {row}", expected="numbers")
    if not scores.numel() or not width:
        return topk_of(scores[:, :0], torch.zeros_like(scores[:, :0], dtype=torch.int32), k)
    columns, values = selected(scores, width)
    return topk_of(values, torch.where(values > -torch.inf, columns + lo, -1), k)


def selected(scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns i64[B, width] and their scores, by (-score, column); no NaN, width <= N. No wait for a device.

    Long rows use the peaks of their blocks: the best `width` blocks by (-peak, block) hold the best `width` columns,
    because a block before another one has an entry before every entry of the other.
    """
    if scores.shape[1] < 4 * BLOCK * width:
        return _selected_directly(scores, width)
    whole = scores.shape[1] // BLOCK * BLOCK
    peaks = scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(2)
    blocks = selected(peaks, width)[0].sort(dim=1).values
    columns = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    tail = torch.arange(whole, scores.shape[1], device=scores.device).expand(scores.shape[0], -1)
    columns = torch.cat([columns, tail], 1)
    picked, values = _selected_directly(scores.gather(1, columns), width)
    return columns.gather(1, picked), values


def _selected_directly(scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`selected` in one piece, by unique keys: float bits, inverted after a minus sign, sort like floats."""
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0: they are equal
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    last = 2**32 - 1
    keys = ordered | torch.arange(last, last - scores.shape[1], -1, device=scores.device)
    columns = last - (torch.topk(keys, width, dim=1).values & last)
    return columns, scores.gather(1, columns)


def refuse_infinite(vectors: torch.Tensor, name: str, first: int = 0) -> None:
    """Raise BadInput if a row is not finite; `first` is the number of the first row."""
    bad = ~torch.isfinite(vectors).all(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        what = "NaN" if bool(vectors[row].isnan().any()) else "infinity"
        raise BadInput(f"{name} are not finite", given=f"{what} in row {first + row}", expected="finite numbers")


def by_exact_scores(
    ids: torch.Tensor, score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(scores f32[B, C], ids i64[B, C]) of candidates i64[B, C], by (-score, id); -1 gets -inf.

    score(query i64[P], row i64[P]): f64[P]. Padding is scored as row 0, so that no wait is needed to find it.
    """
    ids = ids.sort(dim=1).values
    rows = torch.arange(ids.shape[0], device=ids.device)[:, None].expand_as(ids)
    scores = score(rows.flatten(), ids.flatten().clamp(min=0)).float().view(ids.shape)
    scores, order = torch.where(ids >= 0, scores, -torch.inf).sort(dim=1, descending=True, stable=True)
    return scores, ids.gather(1, order)


def topk_of(scores: torch.Tensor, ids: torch.Tensor, k: int) -> TopK:
    """The first k of sorted candidates f32, i64[B, C], padded with (-1, -inf)."""
    width = min(k, ids.shape[1])
    best_ids = torch.full((ids.shape[0], k), -1, dtype=torch.int32, device=scores.device)
    best = torch.full((ids.shape[0], k), -torch.inf, device=scores.device)
    best_ids[:, :width], best[:, :width] = ids[:, :width].int(), scores[:, :width]
    return TopK(best_ids, best)


def on_host(top: TopK) -> TopK:
    """`top` on the CPU; copied from a device in one copy, because each copy waits."""
    if is_cpu(top.ids.device):
        return top
    ids, scores = torch.stack([top.ids, top.scores.view(torch.int32)]).cpu()
    return TopK(ids, scores.view(torch.float32))


def best_of_two(first: TopK, second: TopK, k: int) -> TopK:
    """The best k of both; every id of `first` is below every id of `second`: a stable sort keeps ties in order."""
    scores, order = torch.cat([first.scores, second.scores], 1).sort(dim=1, descending=True, stable=True)
    ids = torch.cat([first.ids, second.ids], 1).gather(1, order)
    return TopK(ids[:, :k].contiguous(), scores[:, :k].contiguous())
