"""Fuse rankings and scores of the same items."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import INTEGERS, check_form
from gpu_rag.graph.memory import check_memory
from gpu_rag.graph.nearest.best import topk_of
from gpu_rag.lazy import torch
from gpu_rag.types import TopK

_WIDE = 1 << 20  # numbers that are in f64 at a time


def rrf(rankings: Sequence[TopK], k: int, *, constants: Sequence[float]) -> TopK:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009): score(i) = sum over r of 1 / (constants[r] + rank).

    rankings: TopK of the same B rows, K may differ. The rank of an item is its position from 1, and the best
    position if it occurs twice; padding (id -1) is ignored; an item gets no term from a ranking that lacks it.
    constants: one finite number > -1 for each, 60 in the paper. Summed in f64 in the order of the rankings, returned as
    f32; equal f32 scores are ordered by id. Returns TopK(i32[B, k], f32[B, k]), padded with (-1, -inf).
    Raises BadInput.

    Rankings [5, 7] and [7, 9] with constants 1 give 7: 1/3 + 1/2, 5: 1/2, 9: 1/3.
    """
    _check_rankings(rankings, k, constants)
    ids = rankings[0].ids
    check_memory(8 * k * ids.shape[0], ids.device, "the result", "ask for fewer items or questions at a time")
    ids = torch.cat([r.ids.long() for r in rankings], 1)
    ranks = [torch.arange(1, r.ids.shape[1] + 1, dtype=torch.float64, device=ids.device) for r in rankings]
    terms = torch.cat([1.0 / (c + rank) for c, rank in zip(constants, ranks, strict=True)]).expand(ids.shape)
    origin = torch.cat([torch.full((r.ids.shape[1],), i) for i, r in enumerate(rankings)]).to(ids.device)
    # equal items are adjacent, by ranking, best rank first; padding sorts before the rest
    ids, order = ids.sort(dim=1, stable=True)
    terms, origin = terms.gather(1, order), origin.expand_as(ids).gather(1, order)
    is_repeat = (ids[:, 1:] == ids[:, :-1]) & (origin[:, 1:] == origin[:, :-1])
    terms[:, 1:][is_repeat] = 0.0
    total = terms.clone()
    for shift in range(1, ids.shape[1]):  # a group has one place for each entry of the item: few unless it is repeated
        same = (ids[:, shift:] == ids[:, :-shift]) & (ids[:, shift:] >= 0)
        if not bool(same.any()):
            break
        total[:, :-shift] += torch.where(same, terms[:, shift:], 0.0)
    leads = ids >= 0
    leads[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    score = torch.where(leads, total, -torch.inf).float()
    score, order = score.sort(dim=1, descending=True, stable=True)
    return topk_of(score, torch.where(score > -torch.inf, ids.gather(1, order), -1), k)


def _check_rankings(rankings: Sequence[TopK], k: int, constants: Sequence[float]) -> None:
    if not rankings:
        raise BadInput("nothing to fuse", given="no ranking", expected="one or more")
    if len(constants) != len(rankings):
        raise BadInput(
            "each ranking needs a constant", given=f"{len(constants)} constants", expected=f"{len(rankings)}"
        )
    if any(not -1 < c < float("inf") for c in constants):
        raise BadInput("a constant is out of range", given=list(constants), expected="finite, above -1")
    if k < 0:
        raise BadInput("a negative number of results", given=f"k={k}", expected=">= 0")
    for r in rankings:
        questions = rankings[0].ids.shape[0] if rankings[0].ids.dim() else "B"
        check_form(
            r.ids,
            "ids of rankings are not integers, or not of the same questions",
            INTEGERS,
            [questions, "K"],
            rankings[0].ids.device,
        )
        if bool((r.ids < -1).any()):
            raise BadInput("an id is negative", given=int(r.ids.min()), expected=">= 0, or -1 for padding")
        if bool((r.ids > 2**31 - 1).any()):
            raise BadInput("an id is too large", given=int(r.ids.max()), expected="below 2^31")


def minmax_rows(x: torch.Tensor) -> torch.Tensor:
    """(x - min) / (max - min) of each row: f32[B, N] in [0, 1]; a constant row becomes zeros.

    x: f32[B, N], finite (unchecked: the host would wait for a device). Computed in f64, so that no range overflows.
    """
    if x.numel() == 0:
        return x.clone()
    lowest, highest = (bound.double() for bound in torch.aminmax(x, dim=1, keepdim=True))
    span, result = highest - lowest, torch.empty(x.shape, device=x.device)
    step = len(x) if x.device.type != "cpu" else max(_WIDE // x.shape[1], 1)
    for first in range(0, len(x), step):  # in f64, a CPU has a cache for few rows
        rows = slice(first, first + step)
        result[rows] = x[rows].double().sub_(lowest[rows]).div_(torch.where(span[rows] > 0, span[rows], 1.0))
    return result
