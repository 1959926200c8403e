"""Where the walks of a batch of questions restart, as `ppr_step` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Restart:
    """rows: f32/f64[S, B], the restart probabilities of the nodes at which any question restarts; at: i32[N], the row
    of each node, or -1. S is far below N where questions start from a few seeds. of_all: row v is that of node v, for
    every node, as of a dense prior: no one need look."""

    rows: torch.Tensor
    at: torch.Tensor
    of_all: bool = False

    @cached_property
    def nodes(self) -> torch.Tensor | None:
        """The node of each row, i64[S]; None where row v is that of node v for every node, as `of_all` says. The host
        waits for a device once."""
        if self.of_all:
            return None
        nodes = (self.at >= 0).nonzero()[:, 0]
        return nodes[torch.argsort(self.at[nodes])]

    def add_to(self, z: torch.Tensor, factor: float) -> None:
        """z[N, B] += factor * pi, in place; the rows of z are distinct, so no order matters."""
        rows = self.rows.to(z)
        if self.nodes is None:
            z.add_(rows, alpha=factor)
        else:
            z.index_add_(0, self.nodes, rows, alpha=factor)
