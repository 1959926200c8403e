"""One call of PageRank: its arguments checked, its implementation and solver chosen, its tiles run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gpu_rag_kernels import dispatch

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.graph.common.threads import check_threads, run_parts
from gpu_rag.graph.memory import check_memory
from gpu_rag.graph.nearest import topk_rows
from gpu_rag.graph.pagerank.cugraph import tile_maker
from gpu_rag.graph.pagerank.inputs import PageRankGraph, Teleport
from gpu_rag.graph.pagerank.plan import Array, Gaps, Plan, Tile, plan_of, solve_questions
from gpu_rag.types import CSR

SOLVERS = ("power", "chebyshev", "sor")
STATES = ("f32", "f16")
MOST_STEPS = 10**6  # that a call may allow: the factor of every step is held
F32_STEPS = 2.0**-22  # a few units of f32: rounding cannot exchange two scores that differ by more


@dataclass(frozen=True)
class Options:
    """The options of one call; making one checks them. Raises BadInput."""

    damping: float
    tol: float
    max_iter: int
    solver: str
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
        if self.max_iter > MOST_STEPS:
            raise BadInput("max_iter is out of range", given=self.max_iter, expected=f"<= {MOST_STEPS:,}")
        if self.solver not in (*SOLVERS, "auto"):
            raise UsageError("no such solver", given=self.solver, expected=", ".join((*SOLVERS, "auto")))
        if self.state not in (*STATES, "auto"):
            raise UsageError("no such state", given=self.state, expected=", ".join((*STATES, "auto")))


def pick_implementation(csr: CSR | PageRankGraph, implementation: str = "auto") -> str:
    """Which implementation runs on the device of a graph: numba | scipy | torch | cugraph.

    auto: what is preferred for the family `pagerank`, else the first of the three that works there. cugraph is not
    reproducible, so only its name means it. Raises MissingBackend, or UsageError for one that cannot take this device.
    """
    device = csr.device if isinstance(csr, PageRankGraph) else csr.indptr.device
    return dispatch.pick_implementation(device, implementation, family="pagerank")


def tiles_of(batch: int, width: int) -> list[tuple[int, int]]:
    """(first, last) of each tile of questions."""
    return [(i, min(i + width, batch)) for i in range(0, batch, width)]


def pick_solver(solver: str, implementation: str, symmetric: bool) -> str:
    """The solver that `auto` means, or the one that is named. Raises UsageError, BadInput."""
    if solver == "auto":
        return "sor" if implementation == "numba" else "chebyshev" if symmetric else "power"
    if solver == "sor" and implementation != "numba":
        raise UsageError("sor works row by row", given=f"implementation={implementation}", expected="numba")
    if solver == "chebyshev" and not symmetric:
        raise BadInput("chebyshev needs a symmetric graph", given="a directed one", expected="power, sor or auto")
    return solver


def planned(
    implementation: str, options: Options, *, symmetric: bool, has_dangling: bool, in_range: bool
) -> tuple[Plan, tuple[torch.dtype, ...]]:
    """The plan of a call, and the dtypes of a state in which its questions are solved, one after the other."""
    plan = plan_of(
        pick_solver(options.solver, implementation, symmetric), options.damping, options.tol, options.max_iter,
        symmetric=symmetric, known_mass=symmetric or not has_dangling,
    )  # fmt: skip
    return plan, (torch.float32, torch.float64) if plan.fits_f32 and in_range else (torch.float64,)


TileMaker = Callable[[torch.dtype, Array, torch.Tensor, int], Tile]


class Job:
    """One call: what to solve and by what. `run` calls back once a tile."""

    def __init__(self, graph: PageRankGraph, teleport: Teleport, implementation: str, options: Options):
        self.graph, self.teleport, self.implementation, self.threads = graph, teleport, implementation, options.threads
        self.plan, self.dtypes = planned(
            implementation, options, symmetric=graph.symmetric, has_dangling=graph.has_dangling, in_range=graph.in_range
        )
        if options.state == "f16" and implementation != "torch":
            raise UsageError(
                "f16 states are torch's", given=f"implementation={implementation}", expected="torch, or f32"
            )
        self.f16_steps = self.plan.f16_steps if options.state == "f16" and graph.in_range else 0
        self.width, self.new_tile = self._tile_maker(options.block)

    def check_memory(self, result: int) -> None:
        """Raises BadInput where a result of so many bytes and the states of all threads cannot fit."""
        tiles = -(-self.teleport.batch // self.width)
        states = 1 if self.plan.in_place else 2
        least = result + states * min(self.threads, tiles) * self.graph.n * self.width * self.dtypes[0].itemsize
        check_memory(least, self.graph.device, f"{self.graph.n:,} nodes", "ask fewer questions, or in a smaller block")

    def run(self, solve: Callable[[int, int], None]) -> None:
        """Calls solve(first, last) for the questions of each tile, on `threads` threads; the first error is raised."""
        run_parts(lambda tile: solve(*tile), tiles_of(self.teleport.batch, self.width), self.threads)

    def solve(self, first: int, last: int, result: torch.Tensor, lo: int, settle: int | None = None) -> None:
        """Writes the PageRank of questions first..last, nodes lo.., into `result`; columns that f32 cannot bring
        within the tolerance are solved again in f64. settle: a question may stop when its best `settle` are known."""
        solve_questions(
            lambda dtype, questions: self.new_tile(dtype, questions, result, lo), self.teleport, self.plan,
            self.graph.dangling if self.graph.has_dangling else None, self.dtypes, first, last, result,
            None if settle is None else gaps_of(result, settle), self.f16_steps,
        )  # fmt: skip

    def _tile_maker(self, block: int) -> tuple[int, TileMaker]:
        """Width of a tile, and what makes one of (dtype, questions, result, lo), its steps in f16 done."""
        graph, teleport, plan = self.graph, self.teleport, self.plan
        if self.implementation == "numba":
            from gpu_rag.graph.pagerank.numba_path import NumbaTile, lanes_for

            return lanes_for(teleport.batch), partial(NumbaTile, graph, plan, teleport)
        if self.implementation == "cugraph":
            return block, tile_maker(graph, teleport, plan, block)
        from gpu_rag.graph.pagerank.matrix import MatrixTile, scipy_product, torch_product

        product = (scipy_product if self.implementation == "scipy" else torch_product)(graph)
        make = partial(MatrixTile, graph, product, plan, teleport, block)
        f16_steps, first_dtype = self.f16_steps, self.dtypes[0]  # not self: a circle would keep memory for a while

        def made(dtype: torch.dtype, questions: Array, result: torch.Tensor, lo: int) -> Tile:
            tile = make(dtype, questions, result, lo)
            if f16_steps and dtype == first_dtype:
                tile.step_in_f16(f16_steps)
            return tile

        return block, made


def gaps_of(result: torch.Tensor, k: int) -> Gaps:
    """The gap between the k-th and the next score of rows of `result`, 0 < k < its width."""

    def gaps(rows: Array, scale: Array) -> Array:
        scores = topk_rows(result[torch.from_numpy(rows).to(result.device)], k + 1).scores
        best = scores[:, k - 1 :].double().cpu().numpy()
        return np.asarray(((best[:, 0] - best[:, 1]) - F32_STEPS * best[:, 0]) * scale)

    return gaps
