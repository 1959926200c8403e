"""Tiles of PageRank on the CPU by numba: WIDE questions, or NARROW for a few, side by side in each row of the state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpu_rag.graph.pagerank_graph import PageRankGraph
from gpu_rag.graph.pagerank_kernels import finish, sweep
from gpu_rag.graph.pagerank_plan import COARSE_GAP, ROUNDING, Array, Plan
from gpu_rag.graph.pagerank_teleport import Teleport

WIDE, NARROW = 32, 8  # with fewer lanes a row takes no less than half a cache line
_CACHE_LINE = 64


def lanes_for(n_questions: int) -> int:
    """How many questions a row of the state holds; a question's bits do not depend on it."""
    return NARROW if n_questions <= NARROW else WIDE


class NumbaGraph:
    """Views of a prepared graph for the kernels, in the dtype of the state. Shared by threads; read only."""

    def __init__(self, graph: PageRankGraph, dtype: Any):
        self.n, self.graph, self.dtype = graph.n, graph, np.dtype(dtype)
        pull = graph.pull
        self.indptr, self.indices = pull.indptr.contiguous().numpy(), pull.indices.contiguous().numpy()
        self.weight = None if pull.weight is None else pull.weight.contiguous().numpy()
        self.scale64 = graph.scale.numpy()
        self.inverse64 = 1 / self.scale64
        self.scale, self.inverse = self.scale64.astype(dtype), self.inverse64.astype(dtype)
        self.dangling = graph.dangling.numpy()


class NumbaTile:
    """`Tile` of up to WIDE questions. result: f32[>= questions, hi - lo], where the checks write nodes lo..hi."""

    def __init__(self, graph: NumbaGraph, plan: Plan, teleport: Teleport, questions: Array, result: Array, lo: int):
        self.graph, self.result, self.lo = graph, result, lo
        self.slack, self.coarsest = (ROUNDING, COARSE_GAP) if graph.dtype == np.float32 else (0.0, 0.0)
        self.damping, self.width = plan.damping, lanes_for(len(questions))
        self.lanes = (0,) * self.width
        self.x = _state(graph.n, self.width, graph.dtype)
        self.y = self.x if plan.in_place else _state(graph.n, self.width, graph.dtype)
        self.at = np.zeros(graph.n, np.int32)
        self.source = self._start(plan, teleport, questions)

    def _start(self, plan: Plan, teleport: Teleport, questions: Array) -> Array:
        """Sets x to pi (to its own fixpoint on dangling nodes of a symmetric graph) and returns the rows of (1-d) pi;
        row 0 is zero, for the nodes without any."""
        g = self.graph
        if teleport.prior is None:
            node, lane, mass = teleport.entries(questions)
            nodes, row = np.unique(node, return_inverse=True)
            pi = np.zeros((len(nodes), self.width))
            np.add.at(pi, (row, lane), mass)
        else:
            nodes, pi = np.arange(g.n), teleport.dense(questions, self.width, g.graph).numpy()
        self.at[nodes] = np.arange(1, len(nodes) + 1)
        source = np.zeros((len(nodes) + 1, self.width), g.dtype)
        source[1:] = (1 - plan.damping) * pi
        first = np.where(g.dangling[nodes, None], 1 - plan.damping, 1.0) if plan.known_mass else 1.0
        self.x[nodes] = first * pi / g.scale64[nodes, None]
        return source

    def sweep(self, omega: Array, fine: bool) -> Array:
        """See `Tile.sweep`."""
        g, change = self.graph, np.zeros(self.width)
        scale, inverse = (g.scale64, g.inverse64) if fine else (g.scale, g.inverse)
        sweep(
            g.indptr, g.indices, g.weight, scale, inverse, self.at, scale.dtype.type(self.damping), self.source,
            omega.astype(g.dtype), self.x, self.y, change, self.lanes,
        )  # fmt: skip
        self.x, self.y = self.y, self.x
        return change

    def check(self, rows: Array) -> tuple[Array, Array]:
        """See `Tile.check`."""
        g, gap, mass = self.graph, np.zeros(self.width), np.zeros(self.width)
        finish(
            g.indptr, g.indices, g.weight, g.scale64, self.at, self.damping, self.source, self.x, self.lo,
            rows, self.result, gap, mass, self.lanes,
        )  # fmt: skip
        return gap, mass


def _state(n: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Zeros [n, width] that start on a cache line, so that a row of 32 f32 is two lines and not three."""
    raw = torch.zeros(n * width * dtype.itemsize + _CACHE_LINE, dtype=torch.uint8).numpy()
    start = -raw.ctypes.data % _CACHE_LINE
    return raw[start : start + n * width * dtype.itemsize].view(dtype).reshape(n, width)
