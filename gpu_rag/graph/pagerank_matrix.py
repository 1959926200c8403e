"""Tiles of PageRank by a sparse matrix product: scipy on the CPU, torch on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gpu_rag_kernels import ppr_spmm

from gpu_rag.graph.pagerank_graph import PageRankGraph
from gpu_rag.graph.pagerank_plan import COARSE_GAP, ROUNDING, Array, Plan
from gpu_rag.graph.pagerank_teleport import Teleport


class ScipyProduct:
    """d A X + (1-d) pi by scipy's CSR times dense."""

    def __init__(self, graph: PageRankGraph):
        self.graph = graph
        self.matrices: dict[torch.dtype, Any] = {}

    def __call__(self, x: torch.Tensor, pi: torch.Tensor, damping: float) -> torch.Tensor:
        if x.dtype not in self.matrices:
            self.matrices[x.dtype] = _scipy_matrix(self.graph, x.dtype)
        pulled = torch.from_numpy(self.matrices[x.dtype] @ x.numpy())
        return pulled.mul_(damping).add_(pi, alpha=1 - damping)


def _scipy_matrix(graph: PageRankGraph, dtype: torch.dtype) -> Any:
    from scipy.sparse import csr_matrix

    pull = graph.pull
    weight = torch.ones(pull.m) if pull.weight is None else pull.weight
    shape = (graph.n, graph.n)
    return csr_matrix((weight.to(dtype).numpy(), pull.indices.numpy(), pull.indptr.numpy()), shape=shape)


class TorchProduct:
    """d A X + (1-d) pi by the `ppr_spmm` kernel."""

    def __init__(self, graph: PageRankGraph):
        self.graph = graph

    def __call__(self, x: torch.Tensor, pi: torch.Tensor, damping: float) -> torch.Tensor:
        return ppr_spmm.ppr_spmm(self.graph.pull, x, pi, damping)


class MatrixTile:
    """`Tile` of `width` questions over a product. result: f32[>= questions, hi - lo] on the graph's device."""

    def __init__(
        self, graph: PageRankGraph, product: ScipyProduct | TorchProduct, plan: Plan, teleport: Teleport,
        questions: Array, result: torch.Tensor, lo: int, width: int, dtype: torch.dtype,
    ):  # fmt: skip
        self.product, self.damping, self.result, self.lo = product, plan.damping, result, lo
        self.width = width
        self.slack, self.coarsest = (ROUNDING, COARSE_GAP) if dtype == torch.float32 else (0.0, 0.0)
        self.scale = graph.scale[:, None]
        self.scale_state, self.inverse = self.scale.to(dtype), (1 / self.scale).to(dtype)
        pi = teleport.dense(questions, width, graph)
        self.pi = pi.to(dtype)
        if plan.known_mass:
            pi[graph.dangling] *= 1 - plan.damping
        self.x = (pi / self.scale).to(dtype)
        self.y = torch.zeros_like(self.x)

    def sweep(self, omega: Array, fine: bool) -> Array:
        """See `Tile.sweep`."""
        if fine:
            x, pi, scale, inverse = self.x.double(), self.pi.double(), self.scale, 1 / self.scale
        else:
            x, pi, scale, inverse = self.x, self.pi, self.scale_state, self.inverse
        z = self.product(x, pi, self.damping).mul_(inverse)
        change = (z - x).abs_().mul_(scale).sum(0, dtype=torch.float64)
        y = self.y.to(z)
        self.y.copy_(y + z.sub_(y).mul_(torch.from_numpy(omega).to(z)))
        self.x, self.y = self.y, self.x
        return change.cpu().numpy()

    def check(self, rows: Array) -> tuple[Array, Array]:
        """See `Tile.check`."""
        x = self.x.double()
        q = self.product(x, self.pi.double(), self.damping)
        gap = (q - x * self.scale).abs_().sum(0)
        lanes = np.flatnonzero(rows >= 0)
        to, lane = (torch.from_numpy(a).to(q.device) for a in (rows[lanes], lanes))
        kept = q[self.lo : self.lo + self.result.shape[1]]
        self.result[to] = kept[:, lane].T.float()
        return gap.cpu().numpy(), q.sum(0).cpu().numpy()
