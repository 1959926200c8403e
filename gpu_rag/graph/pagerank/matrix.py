"""Tiles of PageRank by a sparse matrix product: scipy on the CPU, torch and Triton on any device."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.pagerank import Restart, finish_step, ppr_step

from gpu_rag.graph.pagerank.inputs import PageRankGraph, Teleport, restart_rows
from gpu_rag.graph.pagerank.plan import COARSE_GAP, ROUNDING, Array, Plan

F16_RANGE = 2.0**14  # f16 ends at 4 times this; an iterate stays below 3 times the largest that pi / degree can be


Product = Callable[..., torch.Tensor | None]
"""A step of all questions, with the arguments of `ppr_step` behind the matrix."""


def torch_product(graph: PageRankGraph) -> Product:
    """Steps by the kernel `ppr_step`."""
    return partial(ppr_step, graph.pull)


def scipy_product(graph: PageRankGraph) -> Product:
    """Steps by scipy's CSR times dense."""
    from scipy.sparse import csr_matrix

    @cache
    def matrix(dtype: torch.dtype) -> Any:
        weight = torch.ones(graph.pull.m) if graph.pull.weight is None else graph.pull.weight
        arrays = (weight.to(dtype).numpy(), graph.pull.indices.numpy(), graph.pull.indptr.numpy())
        return csr_matrix(arrays, shape=(graph.n, graph.n))

    def step(
        x: torch.Tensor, y: torch.Tensor, restart: Restart, damping: float, degree: torch.Tensor,
        inverse: torch.Tensor, omega: torch.Tensor, *, scale: float = 1.0, measured: bool = True,
    ) -> torch.Tensor | None:  # fmt: skip
        pulled = torch.from_numpy(matrix(inverse.dtype) @ x.to(inverse.dtype).numpy())
        return finish_step(pulled, x, y, restart, damping, degree, inverse, omega, scale, measured)

    return step


class MatrixTile:
    """`Tile` of `width` questions over a product. result: f32[>= questions, hi - lo] on the graph's device."""

    def __init__(
        self, graph: PageRankGraph, product: Product, plan: Plan, teleport: Teleport, width: int, dtype: torch.dtype,
        questions: Array, result: torch.Tensor, lo: int,
    ):  # fmt: skip
        self.product, self.plan, self.damping, self.result, self.lo = product, plan, plan.damping, result, lo
        self.width = width
        self.slack, self.coarsest = (ROUNDING, COARSE_GAP) if dtype == torch.float32 else (0.0, 0.0)
        self.scale = graph.scale[:, None]
        self.degrees = {t: (graph.scale.to(t), (1 / graph.scale).to(t)) for t in {dtype, torch.float64}}
        nodes, pi = restart_rows(teleport, questions, width, graph)
        at = torch.full((graph.n,), -1, dtype=torch.int32, device=graph.device)
        at[nodes] = torch.arange(nodes.shape[0], dtype=torch.int32, device=graph.device)
        self.restart = Restart(pi.to(dtype), at, of_all=teleport.prior is not None)
        self.x = torch.zeros(graph.n, width, dtype=dtype, device=graph.device)
        lost = graph.dangling[nodes, None] if plan.known_mass else torch.zeros_like(nodes[:, None], dtype=torch.bool)
        self.x[nodes] = (torch.where(lost, pi * (1 - plan.damping), pi) / self.scale[nodes]).to(dtype)
        self.y = torch.zeros_like(self.x)

    def step_in_f16(self, n_steps: int) -> None:
        """The first steps of all columns, with a state of half the bytes of f32 and sums in f32.

        V = q / degree is at most 1 / the least degree, and three times that on the way of Chebyshev's iteration (an
        iterate is no farther from the fixpoint than the start, in the norm of sqrt(degree) V): times `scale` it is in
        the range of f16. What is rounded off or lost below 2^-24 is found again by the steps that must follow. Each
        step's rounding fades like the start's error, see `pagerank.plan`.
        """
        scale = F16_RANGE * 2.0 ** math.floor(math.log2(float(self.scale.min()))) if len(self.scale) else 1.0
        x, y = (a.mul(scale).half() for a in (self.x, self.y))
        degree, inverse = (a.float() for a in self.degrees[torch.float64])
        omegas = torch.from_numpy(np.tile(self.plan.omega[:n_steps, None], self.width)).to(inverse)
        for omega in omegas:
            self.product(x, y, self.restart, self.damping, degree, inverse, omega, scale=scale, measured=False)
            x, y = y, x
        self.x, self.y = (a.to(self.x.dtype).div_(scale) for a in (x, y))

    def sweep(self, omegas: Array, fine: bool) -> Array:
        """See `Tile.sweep`."""
        degree, inverse = self.degrees[torch.float64 if fine else self.x.dtype]
        change = None
        for left, omega in zip(range(len(omegas) - 1, -1, -1), torch.from_numpy(omegas).to(inverse)):  # one copy a look
            change = self.product(
                self.x, self.y, self.restart, self.damping, degree, inverse, omega, measured=left == 0
            )
            self.x, self.y = self.y, self.x
        return self._sizes(change)

    def _sizes(self, change: torch.Tensor | None) -> Array:
        return np.full(self.width, np.inf) if change is None else np.asarray(change.cpu().numpy())

    def check(self, rows: Array) -> tuple[Array, Array]:
        """See `Tile.check`."""
        degree, inverse = self.degrees[torch.float64]
        q = torch.zeros_like(self.x, dtype=torch.float64)
        gap = self.product(self.x, q, self.restart, self.damping, degree, inverse, torch.ones_like(q[0]))
        q.mul_(degree[:, None])
        lanes = np.flatnonzero(rows >= 0)
        to, lane = (torch.from_numpy(a).to(q.device) for a in (rows[lanes], lanes))
        kept = q[self.lo : self.lo + self.result.shape[1]]
        self.result[to] = kept[:, lane].T.float()
        return self._sizes(gap), q.sum(0).cpu().numpy()
