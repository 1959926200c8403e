"""Plain torch reference of `join_top1`, for any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ROWS = 1024  # rows whose scores are made at a time


@dataclass(frozen=True)
class Side:
    """N rows with keywords. vectors: f16 or f32[N, D], unit rows or zero; head: f16[N, C] of 0 and 1, the row's
    keywords among the C common ones; size: i32[N], the number of all its keywords; group: i64[N] or None, rows of one
    group never match."""

    vectors: torch.Tensor
    head: torch.Tensor
    size: torch.Tensor
    group: torch.Tensor | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.vectors.shape[0])

    def rows(self, first: int, last: int) -> Side:
        """The rows first..last."""
        group = None if self.group is None else self.group[first:last]
        return Side(self.vectors[first:last], self.head[first:last], self.size[first:last], group)


@dataclass(frozen=True)
class Strips:
    """The best match of every left row in every strip of right rows. best: f32[Nl, S], the largest score, or -inf;
    index: i32[Nl, S], the lowest right row with it, or -1; second: f32[Nl, S], the largest score of the other rows."""

    best: torch.Tensor
    index: torch.Tensor
    second: torch.Tensor


def join_top1(left: Side, right: Side, strip: int) -> Strips:
    """See `gpu_rag_kernels.join`."""
    shape, device = (left.n, -(-right.n // strip)), left.vectors.device
    found = Strips(
        torch.full(shape, -torch.inf, device=device),
        torch.full(shape, -1, dtype=torch.int32, device=device),
        torch.full(shape, -torch.inf, device=device),
    )
    for s in range(shape[1]):
        columns = right.rows(s * strip, min((s + 1) * strip, right.n))
        for i0 in range(0, left.n, _ROWS):
            part = slice(i0, min(i0 + _ROWS, left.n))
            score = scores(left.rows(part.start, part.stop), columns)
            best = score.amax(1)
            # the lowest index of equal scores; argmax may return any of them
            at = torch.where(score == best[:, None], torch.arange(columns.n, device=device), columns.n).amin(1)
            found.best[part, s] = best
            found.index[part, s] = torch.where(best > -torch.inf, at + s * strip, -1).int()
            found.second[part, s] = score.scatter(1, at[:, None], -torch.inf).amax(1)
    return found


def scores(left: Side, right: Side) -> torch.Tensor:
    """f32[Nl, Nr]: (shared / union + dot) / 2 with the shared keywords of the heads; -inf within a group."""
    shared = left.head.float() @ right.head.float().T  # whole numbers below 2^24: exact
    union = (left.size[:, None] + right.size[None, :] - shared).clamp_(min=1)
    score = (shared / union + left.vectors.float() @ right.vectors.float().T) * 0.5
    if left.group is not None and right.group is not None:
        score[left.group[:, None] == right.group[None, :]] = -torch.inf
    return score
