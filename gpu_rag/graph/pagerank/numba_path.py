"""Tiles of PageRank on the CPU by numba: up to 32 questions side by side in each row of the state.

A pass reads the state of a node once for each edge, in random order: with fewer bytes in a row, more of it is in a
cache. So the rows of a large graph of documents are in another order: nodes of one document are near each other.
"""

from __future__ import annotations

from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.pagerank.numba import finish, order_by_document, reorder, sweep_until

from gpu_rag.graph.common.threads import run_parts
from gpu_rag.graph.pagerank.inputs import PageRankGraph, Teleport, restart_rows
from gpu_rag.graph.pagerank.plan import COARSE_GAP, LANES, ROUNDING, Array, Plan

REORDERED = 1 << 18  # nodes from which on rows are reordered: smaller states are in a cache in any order
_CACHE_LINE = 64
_VIEWING = Lock()


def lanes_for(n_questions: int) -> int:
    """The number of questions in a row of the state; the bits of a question do not depend on it."""
    return next((lanes for lanes in LANES if lanes >= n_questions), LANES[-1])


class Rows:
    """The CSR of a prepared graph with its first rows in another order: row i is node order[i] for i < len(order),
    else node i; place is the inverse. Shared by views in f32 and f64."""

    def __init__(self, graph: PageRankGraph, threads: int):
        pull = graph.pull
        indptr, indices = pull.indptr.contiguous().numpy(), pull.indices.contiguous().numpy()
        weight = None if pull.weight is None else pull.weight.contiguous().numpy()
        n_moved = graph.documents_from if graph.n >= REORDERED else 0
        self.order, self.place = order_by_document(indptr, indices, n_moved), np.empty(n_moved, np.int32)
        self.place[self.order] = np.arange(n_moved, dtype=np.int32)
        self.csr = indptr, indices, weight
        if n_moved:
            starts = np.append(0, self.of(np.diff(indptr)).cumsum())
            own = starts, np.empty_like(indices), None if weight is None else np.empty_like(weight)
            bounds = np.searchsorted(starts, np.linspace(0, starts[-1], 4 * threads + 1)[1:-1])

            def write(rows: tuple[int, int]) -> None:
                reorder(indptr, indices, weight, self.order, self.place, *rows, *own)

            run_parts(write, pairwise([0, *bounds.tolist(), graph.n]), threads)
            self.csr = own

    def of(self, values: Array) -> Array:
        """Values of all nodes, by row."""
        return np.concatenate([values[self.order], values[len(self.order) :]]) if len(self.order) else values

    def rows_of(self, nodes: Array) -> Array:
        """The rows of some nodes."""
        rows, moved = nodes.copy(), nodes < len(self.order)
        rows[moved] = self.place[nodes[moved]]
        return rows


class NumbaGraph:
    """Views of a prepared graph for the kernels, in f32 or f64 like the state. Shared by threads; read only."""

    def __init__(self, graph: PageRankGraph, dtype: torch.dtype, threads: int):
        self.n, self.dtype = graph.n, np.dtype(np.float32 if dtype == torch.float32 else np.float64)
        if "rows" not in graph.views:
            graph.views["rows"] = Rows(graph, threads)
        self.rows: Rows = graph.views["rows"]
        self.scale64 = self.rows.of(graph.scale.numpy())
        self.inverse64 = 1 / self.scale64
        self.scale, self.inverse = (a.astype(self.dtype, copy=False) for a in (self.scale64, self.inverse64))
        self.dangling = self.rows.of(graph.dangling.numpy())


def view_of(graph: PageRankGraph, dtype: torch.dtype, threads: int) -> NumbaGraph:
    """The view of a graph, kept with it: dividing all degrees takes as long as a sweep, and a new order several. The
    first call makes it, on `threads` threads; the others wait."""
    with _VIEWING:
        if dtype not in graph.views:
            graph.views[dtype] = NumbaGraph(graph, dtype, threads)
        view: NumbaGraph = graph.views[dtype]
        return view


class NumbaTile:
    """A `Tile` of up to 32 questions. result: f32[>= questions, hi - lo], into which the checks write nodes lo..hi."""

    def __init__(
        self, whole: PageRankGraph, plan: Plan, teleport: Teleport, dtype: torch.dtype, questions: Array,
        result: torch.Tensor, lo: int,
    ):  # fmt: skip
        graph = view_of(whole, dtype, 1)
        self.graph, self.result, self.lo = graph, result.numpy(), lo
        self.slack, self.coarsest = (ROUNDING, COARSE_GAP) if graph.dtype == np.float32 else (0.0, 0.0)
        self.damping, self.width = plan.damping, lanes_for(len(questions))
        self.lanes = (0,) * self.width
        self.x = _state(graph.n, self.width, graph.dtype)
        nodes, pi = (a.numpy() for a in restart_rows(teleport, questions, self.width, whole))
        self.at = np.zeros(graph.n, np.int32)  # the row of each node in `source`; row 0 serves all other nodes
        nodes = graph.rows.rows_of(nodes)
        self.at[nodes] = np.arange(1, len(nodes) + 1)
        self.source = np.zeros((len(nodes) + 1, self.width), graph.dtype)
        self.source[1:] = (1 - plan.damping) * pi
        lost = graph.dangling[nodes, None] if plan.known_mass else False  # such a node starts at its own fixpoint
        self.x[nodes] = np.where(lost, 1 - plan.damping, 1.0) * pi / graph.scale64[nodes, None]

    def sweep_until(
        self, omegas: Array, going: Array, steps: Array, last: Array, predicted: Array, enough: Array, fine: bool
    ) -> None:
        """See `SweepUntil`."""
        g = self.graph
        scale, inverse = (g.scale64, g.inverse64) if fine else (g.scale, g.inverse)
        sweep_until(
            *g.rows.csr, scale, inverse, self.at, scale.dtype.type(self.damping), self.source, self.x, omegas, going,
            steps, last, predicted, enough, self.lanes,
        )  # fmt: skip

    def check(self, rows: Array) -> tuple[Array, Array]:
        """See `Tile.check`."""
        g, gap, mass = self.graph, np.zeros(self.width), np.zeros(self.width)
        finish(
            *g.rows.csr, g.scale64, self.at, self.damping, self.source, self.x, g.rows.order, self.lo, rows,
            self.result, gap, mass, self.lanes,
        )  # fmt: skip
        return gap, mass


def _state(n: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Zeros [n, width] aligned to a cache line, so that a row of 32 f32 takes two lines, not three. NumPy asks for
    huge pages, torch does not: with them each random read finds its page sooner."""
    memory = np.zeros(n * width * dtype.itemsize + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + n * width * dtype.itemsize].view(dtype).reshape(n, width)
