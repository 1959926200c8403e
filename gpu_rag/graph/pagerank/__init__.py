"""Personalized PageRank of many questions at once, with a proved bound on the error.

Row b of the result is the vector p with p = (1-d) pi_b + d (P^T p + lost(p) pi_b), where P is the adjacency with each
row divided by its sum, pi_b the restart distribution of question b, and lost(p) the mass of p on nodes without outgoing
weight (dangling and isolated ones): that mass returns to pi_b. `plan` has the solvers and the proof; the backends are
`numba_path` and `matrix` (torch, Triton).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from gpu_rag_kernels import dispatch
from gpu_rag_kernels.dispatch import chosen, is_cpu

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.graph.common.threads import check_threads, run_parts
from gpu_rag.graph.memory import check_memory, fits, halve, threads_that_fit
from gpu_rag.graph.pagerank.inputs import PageRankGraph, Restarts, Teleport, prepare, prepared, teleport_of
from gpu_rag.graph.pagerank.plan import Array, Tile, plan_of, solve_questions
from gpu_rag.lazy import torch
from gpu_rag.types import CSR, Ragged

__all__ = ["PageRankGraph", "Restarts", "personalized_pagerank", "pick_implementation", "prepare", "prepared"]


def personalized_pagerank(
    csr: CSR | PageRankGraph,
    seeds: Ragged | None = None,
    weights: Ragged | None = None,
    *,
    prior: torch.Tensor | Restarts | None = None,
    damping: float = 0.85,
    tol: float = 1e-6,
    max_iter: int = 200,
    block: int = 64,
    implementation: str = "auto",
    threads: int = 1,
    state: str = "auto",
    ids: tuple[int, int] | None = None,
) -> torch.Tensor:
    """PageRank of every node for B questions: f32[B, N] on the device of the graph.

    csr: the adjacency, edges from row to column; or `prepare(csr)`, which is not checked again. seeds: Ragged of nodes
    i32/i64, one list for each question; weights: Ragged of floats >= 0 with the same offsets, scaled to sum to 1 in
    each list (equal if None; a node given twice counts twice). prior: float[B, N] >= 0 instead of seeds, rows scaled
    likewise, or `Restarts`, which need no memory for nodes at which few questions restart. An empty list, or a prior
    row of zeros, gives a row of zeros. damping: d in [0, 1). tol: each row has |row - p|_1 <= tol, for tol in [1e-12,
    1]. This is proved by a residual computed in f64, apart from the rounding of the result to f32 (at most 6e-8). Rows
    sum to 1 (to 1e-5). From damping .999 on, f64 rounding may keep the proved bound above 1e-12; the error then names a
    tol that was reached. max_iter: maximum steps for each question, up to 10^6. block: questions in memory at once for
    torch; numba takes 32 at a time, in rows of 32, of 8 or of one. threads: tiles solved at once (inside a tile, torch
    follows torch.set_num_threads). implementation: numba (solver sor; self-loops slow it down: at damping .99 it may
    need more than 200 steps while torch does not) | torch (chebyshev on a symmetric graph, else power) | auto. state:
    f32 | f16 (implementation torch) | auto: f16 on a GPU for states that its cache does not hold, else f32. f16 does
    the first steps in a state of half the bytes; their number depends only on damping, tol and max_iter. Steps in f32
    follow, and the error is proved as without f16. ids: (lo, hi): the result covers only nodes lo <= node < hi, f32[B,
    hi - lo]. A row has the same bits alone, in any batch, at any position and with any number of threads. Raises
    BadInput (graph, seeds, weights, prior), UsageError (options), MissingBackend, and GpuRagError if a row is not
    within `tol` after `max_iter` steps. Memory: the result, and two states [N, block] (numba: one [N, 32], [N, 8] or
    [N] for each thread).

    Path 0 - 1 - 2 and node 3 alone, d = 0.5, seed 0: [0.5833, 0.3333, 0.0833, 0].
    """
    options = Options(damping, tol, max_iter, block, threads, state)
    picked = chosen("personalized_pagerank", pick_implementation(csr, implementation))
    graph = prepare(csr)
    job = Job(graph, teleport_of(graph, seeds, weights, prior), picked, options)
    lo, hi = _checked_range(ids, graph.n)
    shape = (job.teleport.batch, hi - lo)
    job.check_memory(4 * shape[0] * shape[1])
    result = torch.empty(shape, dtype=torch.float32, device=graph.device)

    def solve(first: int, last: int) -> None:
        job.solve(first, last, result[first:last], lo)

    job.run(solve)
    return result


def _checked_range(ids: tuple[int, int] | None, n: int) -> tuple[int, int]:
    """(lo, hi) of a range of nodes; all nodes if it is None."""
    lo, hi = (0, n) if ids is None else ids
    if not 0 <= lo <= hi <= n:
        raise BadInput("the range of nodes is not in the graph", given=f"ids=({lo}, {hi})", expected=f"0..{n}")
    return lo, hi


STATES = ("f32", "f16")
MAX_STEPS = 10**6  # maximum of a call: the factor of every step is in memory


@dataclass(frozen=True)
class Options:
    """The options of one call; making one checks them. Raises BadInput."""

    damping: float
    tol: float
    max_iter: int
    block: int
    threads: int
    state: str = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.damping < 1:
            raise BadInput("damping is out of range", given=self.damping, expected="0 <= damping < 1")
        if not 1e-12 <= self.tol <= 1:
            raise BadInput("tol is out of range", given=self.tol, expected="1e-12 <= tol <= 1")
        for name in ("max_iter", "block"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is out of range", given=getattr(self, name), expected=">= 1")
        check_threads(self.threads)
        if self.max_iter > MAX_STEPS:
            raise BadInput("max_iter is out of range", given=self.max_iter, expected=f"<= {MAX_STEPS:,}")
        if self.state not in (*STATES, "auto"):
            raise UsageError("no such state", given=self.state, expected=", ".join((*STATES, "auto")))


def pick_implementation(csr: CSR | PageRankGraph, implementation: str = "auto") -> str:
    """The implementation for the device of a graph: numba | torch.

    auto: the preferred backend of the family `pagerank`, else the first of numba and torch that works there. Raises
    MissingBackend, or UsageError for a backend that cannot take this device.
    """
    device = csr.device if isinstance(csr, PageRankGraph) else csr.indptr.device
    return dispatch.pick_implementation(device, implementation, family="pagerank")


def tiles_of(batch: int, width: int) -> list[tuple[int, int]]:
    """(first, last) of each tile of questions."""
    return [(i, min(i + width, batch)) for i in range(0, batch, width)]


TileMaker: TypeAlias = "Callable[[torch.dtype, Array, torch.Tensor, int], Tile]"


class Job:
    """One call: the problem and its solver. `run` calls back once for each tile. dtypes: the state dtypes in which the
    questions are solved, in order."""

    def __init__(self, graph: PageRankGraph, teleport: Teleport, implementation: str, options: Options):
        self.graph, self.teleport, self.implementation, self.threads = graph, teleport, implementation, options.threads
        solver = "sor" if implementation == "numba" else "chebyshev" if graph.symmetric else "power"
        self.plan = plan_of(
            solver, options.damping, options.tol, options.max_iter, symmetric=graph.symmetric,
            known_mass=graph.symmetric or not graph.has_dangling,
        )  # fmt: skip
        in_f32 = self.plan.fits_f32 and graph.in_range
        self.dtypes = (torch.float32, torch.float64) if in_f32 else (torch.float64,)
        if options.state == "f16" and implementation != "torch":
            raise UsageError(
                "f16 states are torch's", given=f"implementation={implementation}", expected="torch, or f32"
            )
        in_f16 = options.state == "f16" or (options.state == "auto" and self._is_large(options.block))
        self.f16_steps = self.plan.f16_steps if in_f16 and graph.in_range else 0
        self.width, self.new_tile = self._tile_maker(options.block)

    def _is_large(self, block: int) -> bool:
        """Whether a step of a tile is bound by the memory of a GPU."""
        if self.implementation != "torch" or is_cpu(self.graph.device):
            return False
        from gpu_rag.graph.pagerank.matrix import MAX_RECORDED

        return self.graph.n * block > MAX_RECORDED

    def check_memory(self, result: int) -> None:
        """Raise BadInput if a result of `result` bytes and the state of one tile cannot fit. First tiles are made
        narrower on a GPU, and fewer are solved at once on a CPU, until they fit."""
        if is_cpu(self.graph.device):
            self.threads = threads_that_fit(self.threads, lambda threads: self.bytes(result, threads))
        else:
            while self.width > 1 and not fits(self.bytes(result, self.threads), self.graph.device):
                self.width, self.new_tile = self._tile_maker(self.width // 2)
        do = "ask fewer questions, or in a smaller block"
        check_memory(self.bytes(result, self.threads), self.graph.device, f"{self.graph.n:,} nodes", do)

    def bytes(self, result: int, threads: int) -> int:
        """Bytes needed, with a result of `result` bytes: all allocations on a GPU, only the states on the CPU."""
        tiles = min(threads, -(-self.teleport.batch // self.width))
        if self.implementation == "numba":
            return result + tiles * self.graph.n * self.width * self.dtypes[0].itemsize
        from gpu_rag.graph.pagerank.matrix import tile_bytes

        return result + tiles * tile_bytes(self.graph.n, self.teleport.n_rows(self.width), self.width, self.dtypes[0])

    def run(self, solve: Callable[[int, int], None]) -> None:
        """Call solve(first, last) for the questions of each tile, on `threads` threads; the first error is raised.
        Questions of tiles for which the device had no memory are repeated, in tiles half as wide."""
        tiles = tiles_of(self.teleport.batch, self.width)
        while tiles:
            errors = run_parts(lambda tile: _short_of_memory(solve, tile), tiles, self.threads)
            short = [(tile, text) for tile, text in zip(tiles, errors) if text]
            if short:
                halve(self.width, short[0][1])
                self.width, self.new_tile = self._tile_maker(self.width // 2)
            tiles = [(a + i, a + j) for (a, b), _ in short for i, j in tiles_of(b - a, self.width)]

    def solve(self, first: int, last: int, result: torch.Tensor, lo: int) -> None:
        """Write the PageRank of questions first..last, nodes from lo on, into `result`. Columns that f32 cannot bring
        within the tolerance are solved again in f64."""
        solve_questions(
            lambda dtype, questions: self.new_tile(dtype, questions, result, lo), self.teleport, self.plan,
            self.graph.dangling if self.graph.has_dangling else None, self.dtypes, first, last, result,
            self.f16_steps,
        )  # fmt: skip

    def _tile_maker(self, block: int) -> tuple[int, TileMaker]:
        """The width of a tile, and a function of (dtype, questions, result, lo) that makes one after its f16 steps."""
        graph, teleport, plan = self.graph, self.teleport, self.plan
        if self.implementation == "numba":
            from gpu_rag.graph.pagerank.numba_path import NumbaTile, lanes_for, view_of

            view_of(graph, plan.damping, self.dtypes[0], self.threads)
            new_tile: Any = partial(NumbaTile, graph, plan, teleport)  # with `sweep_until` in place of `sweep`
            return lanes_for(teleport.batch), new_tile
        from gpu_rag.graph.pagerank.matrix import MatrixTile

        make = partial(MatrixTile, graph, plan, teleport, block)
        f16_steps, first_dtype = self.f16_steps, self.dtypes[0]  # not self: a circle would keep memory for a while

        def made(dtype: torch.dtype, questions: Array, result: torch.Tensor, lo: int) -> Tile:
            tile = make(dtype, questions, result, lo)
            if f16_steps and dtype == first_dtype:
                tile.step_in_f16(f16_steps)
            return tile

        return block, made


def _short_of_memory(solve: Callable[[int, int], None], tile: tuple[int, int]) -> str:
    """Solve a tile; return the error text if the device had no memory for it."""
    try:
        solve(*tile)
    except torch.OutOfMemoryError as error:
        return str(error) or "out of memory"
    return ""
