"""What `join_top1` takes and gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Side:
    """N described rows. vectors: f16 or f32[N, D], unit rows or zero; head: f16[N, C] of 0 and 1, which of the C common
    keywords a row has; size: i32[N], how many keywords it has in all; group: i64[N], rows of one group are never
    matched, or None."""

    vectors: torch.Tensor
    head: torch.Tensor
    size: torch.Tensor
    group: torch.Tensor | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.vectors.shape[0])

    def rows(self, first: int, last: int) -> Side:
        """Rows first..last."""
        group = None if self.group is None else self.group[first:last]
        return Side(self.vectors[first:last], self.head[first:last], self.size[first:last], group)


@dataclass(frozen=True)
class Strips:
    """Of every left row in every strip of right rows. best: f32[Nl, S], its largest score, -inf without a candidate;
    index: i32[Nl, S], the lowest right row that has it, or -1; second: f32[Nl, S], the largest score of the others."""

    best: torch.Tensor
    index: torch.Tensor
    second: torch.Tensor
