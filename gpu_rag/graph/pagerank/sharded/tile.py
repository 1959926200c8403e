"""Tiles of PageRank whose rows are spread over ranks: `Tile` with a state gathered after every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpu_rag.graph.pagerank.plan import COARSE_GAP, ROUNDING, Array, Plan
from gpu_rag.graph.pagerank.sharded.graph import Shard
from gpu_rag.graph.pagerank.teleport import Teleport, unnormalised


class ShardedTile:
    """`Tile` of up to `width` questions. Every rank makes one, and the same calls of it.

    result: f32[>= questions, rows of this rank]. start: [questions, rows of this rank], an estimate to begin with, or
    None for the restart distribution. Memory: the state of all ranks, and another in f64 while steps or checks are in
    f64; own rows a few times.
    """

    def __init__(
        self, shard: Shard, plan: Plan, teleport: Teleport, questions: Array, result: torch.Tensor, width: int,
        dtype: torch.dtype, start: torch.Tensor | None,
    ):  # fmt: skip
        self.shard, self.damping, self.result, self.width = shard, plan.damping, result, width
        self.slack, self.coarsest = (ROUNDING, COARSE_GAP) if dtype == torch.float32 else (0.0, 0.0)
        self.scale = shard.scale[:, None]
        pi = restart_rows(shard, teleport, questions, width)
        self.pi = pi.to(dtype)
        lost = shard.dangling[shard.lo : shard.hi].to(shard.device)
        first = pi.clone()  # in f64 self.pi is pi itself
        if start is not None:
            first[:, : len(questions)] = _from_estimate(shard, start.T.double(), lost, plan.damping)
        elif plan.known_mass:
            first[lost] *= 1 - plan.damping
        self.x = shard.gather_state((first / self.scale).to(dtype))
        self.y = torch.zeros_like(self.x[shard.own])

    def sweep(self, omegas: Array, fine: bool) -> Array:
        """See `Tile.sweep`."""
        changes = [self._step(omega, fine, looked_at=step + 1 == len(omegas)) for step, omega in enumerate(omegas)]
        return changes[-1]

    def _step(self, omega: Array, fine: bool, looked_at: bool) -> Array:
        kind = torch.float64 if fine else self.x.dtype
        x, pi, scale = self.x.to(kind), self.pi.to(kind), self.scale.to(kind)
        own = x[self.shard.own]
        z = self.shard.product(x, pi, self.damping).mul_(1 / scale)
        change = self.shard.total((z - own).abs_().mul_(scale)) if looked_at else np.full(self.width, np.inf)
        y = self.y.to(kind)
        moved = y + z.sub_(y).mul_(torch.from_numpy(omega).to(z))
        self.y = self.x[self.shard.own].clone()
        self.x = self.shard.gather_state(moved.to(self.x.dtype), self.x)
        return change

    def check(self, rows: Array) -> tuple[Array, Array]:
        """See `Tile.check`."""
        x = self.x.double()
        q = self.shard.product(x, self.pi.double(), self.damping)
        gap = self.shard.total((q - x[self.shard.own] * self.scale).abs_())
        lanes = np.flatnonzero(rows >= 0)
        to, lane = (torch.from_numpy(a).to(q.device) for a in (rows[lanes], lanes))
        self.result[to] = q[:, lane].T.float()
        return gap, self.shard.total(q)


def restart_rows(shard: Shard, teleport: Teleport, questions: Array, width: int) -> torch.Tensor:
    """f64[rows of this rank, width]: column c is the restart distribution of questions[c], further columns are zero."""
    pi = torch.zeros(shard.rows, width, dtype=torch.float64)
    node, lane, mass = teleport.entries(questions)
    here = (node >= shard.lo) & (node < shard.hi)
    np.add.at(pi.numpy(), (node[here] - shard.lo, lane[here]), mass[here])
    return pi.to(shard.device)


def residual(shard: Shard, ranks: torch.Tensor, teleport: Teleport, questions: Array, damping: float) -> Array:
    """f64[B]: |(1-d) pi + d (P^T p + lost(p) pi) - p|_1 over all ranks, in f64, for own rows ranks [B, rows] of p.

    Divided by 1 - d it bounds the L1 distance of p from the PageRank: the map contracts by d. Of results in f32 it is
    at least their rounding, about 6e-8.
    """
    p = ranks.T.double()
    lost = torch.from_numpy(shard.total(p * shard.dangling[shard.lo : shard.hi].to(p)[:, None])).to(p.device)
    pi = restart_rows(shard, teleport, questions, p.shape[1])
    x = shard.gather_state(p / shard.scale[:, None])
    pulled = shard.product(x, pi, damping).add_(pi * (damping * lost))
    return shard.total(pulled.sub_(p).abs_())


def _from_estimate(shard: Shard, ranks: torch.Tensor, lost: torch.Tensor, damping: float) -> torch.Tensor:
    """f64[rows, B] of an estimate of PageRank, own rows [rows, B]."""

    def total(values: torch.Tensor) -> torch.Tensor:
        sums: Any = shard.total(values)
        return torch.from_numpy(sums).to(values.device)

    return unnormalised(ranks, total(ranks), total(ranks * lost[:, None]), damping)
