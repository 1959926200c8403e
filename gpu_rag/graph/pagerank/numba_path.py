"""Tiles of PageRank on the CPU by numba: up to 32 questions side by side in each row of the state.

A pass reads the state of a node once for each edge, in random order: with fewer bytes in a row, more of it is in a
cache. So a large graph of documents has fewer rows, and these in another order: nodes of one document are near each
other.
"""

from __future__ import annotations

from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.pagerank.numba import begin, finish, order_by_document, pass_on, reduce, solvable, sweep_until

from gpu_rag.graph.common.threads import run_parts
from gpu_rag.graph.pagerank.inputs import PageRankGraph, Teleport, restart_rows
from gpu_rag.graph.pagerank.plan import COARSE_GAP, LANES, ROUNDING, Array, Plan

REORDERED = 1 << 18  # nodes from which on rows are reordered: smaller states are in a cache in any order
SOLVED = 2  # neighbours of a node that is not swept. It leaves one entry in their rows, mostly one that they have: with
# more neighbours it would leave several, for which `Rows` keeps no place
_CACHE_LINE = 64
_VIEWING = Lock()


def lanes_for(n_questions: int) -> int:
    """The number of questions in a row of the state; the bits of a question do not depend on it."""
    return next((lanes for lanes in LANES if lanes >= n_questions), LANES[-1])


class Rows:
    """The equations of a prepared graph, degree v = d A v + source, in the order in which a sweep takes them. Shared by
    views in f32 and f64.

    In a large graph of documents more than half of the nodes have at most SOLVED neighbours: names that one passage
    states. Their equations are solved for their own unknowns and put into the others (Gaussian elimination of
    independent unknowns; the rest is positive definite again), so that sweeps neither visit nor read them. The first
    `n_swept` rows are left: other nodes by document, then the documents. The rows behind these have the unknowns that
    were solved for, in terms of the first.

    node: i32[n], the node of each row; row: the inverse. plain: the first and last of the rows that are consecutive
    nodes. entries: (starts, ends, columns, weights) of A, row i from starts[i] to ends[i]. own: f64[n], by how much the
    degree fell; diagonal: f64[n], the degree without it. even: the unknown of all nodes if d is spread by degree.
    """

    def __init__(self, graph: PageRankGraph, damping: float, threads: int):
        pull = graph.pull
        indptr, indices = pull.indptr.contiguous().numpy(), pull.indices.contiguous().numpy()
        weight = None if pull.weight is None else pull.weight.contiguous().numpy()
        n = graph.n
        self.n_swept, self.plain, self.own = n, (0, n), np.zeros(n)
        self.node = self.row = np.arange(n, dtype=np.int32)
        self.entries: tuple[Array, Array, Array, Any] = indptr[:-1], indptr[1:], indices, weight
        if reordered(graph):
            self._reorder(graph, indptr, indices)
        degree = graph.scale.numpy()[self.node]
        if reordered(graph):
            self._solve(indptr, indices, weight, degree, damping, threads)
        self.diagonal, self.even = degree - self.own, damping / degree.sum() if n else 0.0

    def _reorder(self, graph: PageRankGraph, indptr: Array, indices: Array) -> None:
        """Choose the rows to be solved for, and the order of rows."""
        first = graph.documents_from
        moved = order_by_document(indptr, indices, first)
        last = solvable(indptr, indices, first if graph.symmetric else 0, SOLVED)[moved]
        self.node = np.concatenate([moved[~last], self.node[first:], moved[last]])
        self.row = np.empty(graph.n, np.int32)
        self.row[self.node] = np.arange(graph.n, dtype=np.int32)
        self.n_swept = graph.n - int(last.sum())
        self.plain = self.n_swept - (graph.n - first), self.n_swept

    def _solve(
        self, indptr: Array, indices: Array, weight: Array | None, degree: Array, damping: float, threads: int
    ) -> None:
        """Write the entries, on `threads` threads. A row has at most as many as before: one that is solved for leaves a
        place for its other neighbour."""
        n, sizes = len(self.node), np.diff(indptr)
        begins, longest = np.append(0, sizes[self.node].cumsum()), int(sizes.max())
        starts, ends = np.empty(n, np.int64), np.empty(n, np.int64)
        self.entries = starts, ends, np.empty(begins[-1], np.int32), np.empty(begins[-1])

        def write(rows: tuple[int, int]) -> None:
            reduce(
                indptr, indices, weight, degree, damping, self.node, self.row, self.n_swept, *rows, longest,
                begins[rows[0]], *self.entries, self.own,
            )  # fmt: skip

        for first, last in ((self.n_swept, n), (0, self.n_swept)):  # the others read solved rows
            bounds = np.searchsorted(begins, np.linspace(begins[first], begins[last], 4 * threads + 1)[1:-1])
            run_parts(write, pairwise([first, *bounds.clip(first, last).tolist(), last]), threads)


def reordered(graph: PageRankGraph) -> bool:
    """Whether rows are in another order than nodes."""
    return graph.n >= REORDERED and graph.documents_from > 0


class NumbaGraph:
    """Views of a prepared graph for the kernels, in f32 or f64 like the state. Shared by threads; read only."""

    def __init__(self, rows: Rows, graph: PageRankGraph, dtype: torch.dtype):
        self.rows, self.dtype = rows, np.dtype(np.float32 if dtype == torch.float32 else np.float64)
        self.inverse64 = 1 / rows.diagonal
        self.scale, self.inverse = (a.astype(self.dtype, copy=False) for a in (rows.diagonal, self.inverse64))
        self.dangling = graph.dangling.numpy()
        weight = rows.entries[3]  # half of the bytes of f64 ones are read in a fifth less time
        self.entries = *rows.entries[:3], weight.astype(self.dtype) if rows.n_swept < graph.n else weight


def view_of(graph: PageRankGraph, damping: float, dtype: torch.dtype, threads: int) -> NumbaGraph:
    """The view of a graph, kept with it: dividing all degrees takes as long as a sweep, and the rows of a large graph
    several. The first call makes it, on `threads` threads; the others wait. The last damping's views are kept."""
    with _VIEWING:
        key = damping if reordered(graph) else None
        if graph.views.get("numba", (object(), None))[0] != key:
            graph.views["numba"] = key, {"rows": Rows(graph, damping, threads)}
        views = graph.views["numba"][1]
        if dtype not in views:
            views[dtype] = NumbaGraph(views["rows"], graph, dtype)
        view: NumbaGraph = views[dtype]
        return view


class NumbaTile:
    """A `Tile` of up to 32 questions. result: f32[>= questions, hi - lo], into which the checks write nodes lo..hi."""

    def __init__(
        self, whole: PageRankGraph, plan: Plan, teleport: Teleport, dtype: torch.dtype, questions: Array,
        result: torch.Tensor, lo: int,
    ):  # fmt: skip
        graph = view_of(whole, plan.damping, dtype, 1)
        self.graph, self.result, self.lo = graph, result.numpy(), lo
        self.slack, self.coarsest = (ROUNDING, COARSE_GAP) if graph.dtype == np.float32 else (0.0, 0.0)
        self.damping, self.width = plan.damping, lanes_for(len(questions))
        self.lanes = (0,) * self.width
        self.x = _state(graph.rows.n_swept, self.width, graph.dtype)
        nodes, pi = (a.numpy() for a in restart_rows(teleport, questions, self.width, whole))
        rows = graph.rows.row[nodes]
        self.at = np.zeros(whole.n, np.int32)  # the row of `source` for each row; row 0 serves all others
        self.at[rows] = np.arange(1, len(rows) + 1)
        self.source = np.zeros((len(rows) + 1, self.width), graph.dtype)
        of_row = np.where(graph.dangling[nodes] & plan.known_mass, 1 - plan.damping, 1.0)  # a fixpoint of such a node
        of_lane = np.ones(self.width)
        if reordered(whole) and (lanes := np.flatnonzero(teleport.is_everywhere(questions))).size:
            # The walk of a question that restarts everywhere ends near this: what it restarts with, and the rest by
            # degree. From there it takes a fifth fewer sweeps.
            begun = np.zeros(self.width)
            of_lane[lanes], begun[lanes] = 1 - plan.damping, graph.rows.even
            self.x[:] = begun
        begin(rows, pi, of_row, of_lane, graph.rows.diagonal, plan.damping, self.source, self.x)
        self._pass_on(rows, pi)

    def _pass_on(self, rows: Array, pi: Array) -> None:
        """Add to the sources of the neighbours what the sources of solved rows contribute to them. pi: f64[S, width],
        the restarts of `rows`."""
        of, (starts, ends, columns, _) = self.graph.rows, self.graph.rows.entries
        solved = rows[rows >= of.n_swept]
        if not len(solved):
            return
        place = np.full(of.n_swept, -1, np.int32)
        for nth in range(SOLVED):
            has = ends[solved] - starts[solved] > nth
            place[columns[starts[solved[has]] + nth]] = 0
        found = np.flatnonzero(place >= 0)
        place[found] = np.arange(len(found))
        known = self.at[found] > 0
        total = np.zeros((len(found), self.width))
        total[known] = (1 - self.damping) * pi[self.at[found[known]] - 1]
        pass_on(rows, pi, of.n_swept, *of.entries, of.diagonal, self.damping, place, total)
        self.at[found[~known]] = np.arange(len(self.source), len(self.source) + int((~known).sum()))
        self.source = np.concatenate([self.source, np.zeros((int((~known).sum()), self.width), self.source.dtype)])
        self.source[self.at[found]] = total

    def sweep_until(
        self, omegas: Array, going: Array, steps: Array, last: Array, predicted: Array, enough: Array, fine: bool
    ) -> None:
        """See `SweepUntil`."""
        g = self.graph
        entries, scale, inverse = (
            (g.rows.entries, g.rows.diagonal, g.inverse64) if fine else (g.entries, g.scale, g.inverse)
        )
        sweep_until(
            *entries, scale, inverse, self.at, scale.dtype.type(self.damping), self.source, self.x, omegas,
            going, steps, last, predicted, enough, self.lanes,
        )  # fmt: skip

    def check(self, rows: Array) -> tuple[Array, Array]:
        """See `Tile.check`. A step of all rows leaves solved ones, and moves others by the gaps of their equations."""
        g, gap, mass = self.graph.rows, np.zeros(self.width), np.zeros(self.width)
        finish(
            *g.entries, g.diagonal, g.own, self.at, self.damping, self.source, self.x, g.node, g.plain, self.lo, rows,
            self.result, gap, mass, self.lanes,
        )  # fmt: skip
        return gap, mass


def _state(n: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Zeros [n, width] aligned to a cache line, so that a row of 32 f32 takes two lines, not three. NumPy asks for
    huge pages, torch does not: with them each random read finds its page sooner."""
    memory = np.zeros(n * width * dtype.itemsize + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + n * width * dtype.itemsize].view(dtype).reshape(n, width)
