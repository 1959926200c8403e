"""Personalized PageRank of a graph whose rows are spread over several GPUs or machines, with a proved error.

One process a GPU (torchrun), a process group of torch.distributed, and on every rank the same calls. A step is the
product of a rank's rows with the state of all ranks, followed by one gather of the new rows: 4 N bytes a question.
It has run on CPUs with gloo; it has NOT yet run on GPUs.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from gpu_rag_kernels.dispatch import chosen

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.graph.common.arrays import ANY_FLOAT, check_form
from gpu_rag.graph.nearest import topk_rows
from gpu_rag.graph.pagerank import Options, planned, tiles_of
from gpu_rag.graph.pagerank.inputs import Teleport, teleport_of_seeds, unnormalised
from gpu_rag.graph.pagerank.plan import COARSE_GAP, ROUNDING, Array, Plan, solve_questions
from gpu_rag.graph.pagerank.sharded.graph import Shard, shard_edges, shard_graph
from gpu_rag.types import Ragged, TopK

__all__ = [
    "IMPLEMENTATIONS", "Shard", "gather_rows", "pagerank_residual_sharded", "pagerank_topk_sharded",
    "personalized_pagerank_sharded", "shard_edges", "shard_graph",
]  # fmt: skip

IMPLEMENTATIONS = ("torch", "cugraph")


def personalized_pagerank_sharded(
    shard: Shard,
    seeds: Ragged,
    weights: Ragged | None = None,
    *,
    damping: float = 0.85,
    tol: float = 1e-6,
    max_iter: int = 200,
    solver: str = "auto",
    block: int = 64,
    implementation: str = "torch",
    start: torch.Tensor | None = None,
) -> torch.Tensor:
    """PageRank for B questions of the nodes of this rank, shard.lo <= v < shard.hi: f32[B, rows] on its device.

    To be called by every rank of the group with the same arguments (checked; `start` apart). seeds, weights, damping,
    tol, max_iter and block as in `personalized_pagerank`, with the same meaning and proof of the error: every rank
    comes to the same bound. solver: power | chebyshev (symmetric graphs) | auto.
    implementation: torch, or cugraph, which lets cuGraph find the start (see `cugraph_multi`) and is not
    reproducible. start: an estimate f32[B, rows of this rank] to begin with, such as the result at another tol.
    With torch a row has the same bits alone, in any batch and from run to run, and for any number of ranks as far as
    the product of a row has: the CPU's and Triton's do. Of `personalized_pagerank` it is within `tol`, not equal.
    Raises BadInput, UsageError, MissingBackend, and GpuRagError when a row is not within `tol` after max_iter steps,
    each on every rank; a rank that dies leaves the others waiting until the timeout of their process group.
    Memory a rank: its rows and the result; a state of 4 N block bytes (at most about twice that where rows are uneven),
    and two more of that size while a step or a check is in f64.

    Path 0 - 1 - 2 and node 3 alone on one rank, d = 0.5, seed 0: [0.5833, 0.3333, 0.0833, 0].
    """
    run = _Run(shard, seeds, weights, Options(damping, tol, max_iter, solver, block, 1), implementation, start)
    result = torch.empty(seeds.batch, shard.rows, dtype=torch.float32, device=shard.device)
    for first, last in tiles_of(seeds.batch, block):
        run.solve(first, last, result[first:last])
    return result


def pagerank_topk_sharded(
    shard: Shard,
    seeds: Ragged,
    weights: Ragged | None = None,
    *,
    k: int,
    ids: tuple[int, int] | None = None,
    damping: float = 0.85,
    tol: float = 1e-6,
    max_iter: int = 200,
    solver: str = "auto",
    block: int = 64,
    implementation: str = "torch",
) -> TopK:
    """The k best nodes of the whole graph in the range ids = (lo, hi), the same on every rank: ids i32, scores f32
    [B, k], sorted by (-score, id), on the device of the rank.

    Arguments, errors and reproducibility as in `personalized_pagerank_sharded`; equal to `topk_rows` of its rows side
    by side. Ranks send their k best only; one tile of rows is alive at a time. A question without seeds gets padding.
    """
    lo, hi = (0, shard.n) if ids is None else ids
    if not 0 <= lo <= hi <= shard.n:
        raise BadInput("the range of nodes is not in the graph", given=f"ids=({lo}, {hi})", expected=f"0..{shard.n}")
    if k < 0:
        raise BadInput("a negative number of results", given=f"k={k}", expected=">= 0")
    run = _Run(shard, seeds, weights, Options(damping, tol, max_iter, solver, block, 1), implementation, None)
    first_own = min(max(lo, shard.lo), shard.hi)
    last_own = max(first_own, min(hi, shard.hi))
    best = TopK(
        torch.empty(seeds.batch, k, dtype=torch.int32, device=shard.device),
        torch.empty(seeds.batch, k, dtype=torch.float32, device=shard.device),
    )
    for first, last in tiles_of(seeds.batch, block):
        rows = torch.empty(last - first, shard.rows, dtype=torch.float32, device=shard.device)
        run.solve(first, last, rows)
        rows[torch.from_numpy(run.teleport.is_empty(np.arange(first, last))).to(rows.device)] = -torch.inf
        here = rows[:, first_own - shard.lo : last_own - shard.lo]
        best.ids[first:last], best.scores[first:last] = _merged(shard, topk_rows(here, k, lo=first_own), k)
    return best


def gather_rows(shard: Shard, rows: torch.Tensor) -> torch.Tensor:
    """[B, N] on every rank, columns in the order of nodes, of the [B, rows of each rank] that a sharded op gives.

    To be called by every rank, with one B and one dtype. Raises BadInput. Memory: twice the result.
    """
    check_form(rows, "rows do not fit the shard", ANY_FLOAT, ["B", shard.rows])
    state = shard.gather_state(rows.T)
    parts = zip(state.split(shard.stride), shard.sizes)
    return torch.cat([part[:size] for part, size in parts]).T.contiguous()


def pagerank_residual_sharded(
    shard: Shard, ranks: torch.Tensor, seeds: Ragged, weights: Ragged | None = None, *, damping: float = 0.85
) -> Array:
    """f64[B], the same on every rank: how far rows f32[B, rows of this rank] are from a PageRank, in L1, by their
    residual in f64 over 1 - d. It knows nothing of how they were computed."""
    teleport = teleport_of_seeds(shard.n, seeds, weights)
    check_form(ranks, "ranks do not fit the shard", ANY_FLOAT, [seeds.batch, shard.rows])
    return residual(shard, ranks, teleport, np.arange(seeds.batch), damping) / (1 - damping)


class _Run:
    """One call: its inputs checked on all ranks, its tiles solved one after the other."""

    def __init__(
        self, shard: Shard, seeds: Ragged, weights: Ragged | None, options: Options, implementation: str,
        start: torch.Tensor | None,
    ):  # fmt: skip
        self.shard, self.block = shard, options.block
        self.teleport = teleport_of_seeds(shard.n, seeds, weights)
        self.plan, self.dtypes = planned(
            "torch", options, symmetric=shard.symmetric, has_dangling=shard.has_dangling, in_range=shard.in_range
        )
        shard.agree("seeds or options", _digest(self.teleport, (options, implementation)))
        self.start = self._start(implementation, start)

    def _start(self, implementation: str, start: torch.Tensor | None) -> torch.Tensor | None:
        if implementation not in IMPLEMENTATIONS:
            raise UsageError("no such PageRank of shards", given=implementation, expected=", ".join(IMPLEMENTATIONS))
        shape = (self.teleport.batch, self.shard.rows)
        if start is not None:
            check_form(start, "start does not fit the shard", ANY_FLOAT, shape, self.shard.device)
        chosen("personalized_pagerank_sharded", implementation)
        if implementation == "cugraph":
            from gpu_rag.graph.pagerank.sharded.cugraph import estimates

            return estimates(self.shard, self.teleport, self.plan)
        return start

    def solve(self, first: int, last: int, result: torch.Tensor) -> None:
        """Writes own rows of questions first..last; columns that f32 cannot bring within the tolerance go on in f64."""

        def new_tile(dtype: torch.dtype, questions: Array) -> ShardedTile:
            start = None if self.start is None else self.start[torch.from_numpy(questions).to(result.device)]
            return ShardedTile(self.shard, self.plan, self.teleport, questions, result, self.block, dtype, start)

        dangling = self.shard.dangling if self.shard.has_dangling else None
        solve_questions(new_tile, self.teleport, self.plan, dangling, self.dtypes, first, last, result)


def _digest(teleport: Teleport, options: object) -> int:
    """63 bits of the questions and the options of a call."""
    text = hashlib.sha256(repr(options).encode())
    for array in (teleport.offsets, teleport.nodes, teleport.mass):
        text.update(np.ascontiguousarray(array).tobytes())
    return int.from_bytes(text.digest()[:8], "big") >> 1


def _merged(shard: Shard, best: TopK, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of all ranks' own k best. Ranks hold ascending ids, so a stable sort keeps ties right."""
    ids, scores = (shard.gather(part).transpose(0, 1).flatten(1) for part in (best.ids, best.scores))
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k]
    return ids.gather(1, order), scores.gather(1, order)


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
            ranks = start.T.double()
            sums = [torch.from_numpy(shard.total(a)).to(ranks) for a in (ranks, ranks * lost[:, None])]
            first[:, : len(questions)] = unnormalised(ranks, sums[0], sums[1], plan.damping)
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
