"""The iteration of PageRank and its stopping rule: coefficients of each solver, the proved bound on the error, and the
loop in which every column of a tile stops by its own error. PageRank on one device and on shards share all of it.

The equation, for one question: q = (1-d) pi + d P^T q, P the row-normalised adjacency, rows without weight zero.
Returning the mass of those rows to pi only rescales: the PageRank is q / |q|_1. The state is V = q / degree, so the
matrix needs no values and, for a symmetric graph, D^-1 A has the real spectrum of D^-1/2 A D^-1/2 in [-1, 1].

Solvers, all of the form Y <- Y + omega (Z - Y) with Z = (d A^T X + (1-d) pi) / degree:
- power: omega = 1, two buffers. The error falls as d^k.
- chebyshev: two buffers (Y = the iterate before X), omega_1 = 1, omega_2 = 2 / (2 - d^2), then omega = 1 / (1 - d^2
  omega / 4): Chebyshev semi-iteration on [-d, d] (Golub and Varga, 1961). Symmetric graphs only. Rounding is amplified
  only by a constant: after k steps an error e of one iterate is at most 2 e (k+1) rate^k, with rate = d / (1 + sqrt(1 -
  d^2)), in the norm of sqrt(degree) V; it grows as a Chebyshev polynomial of the second kind. All such errors together
  stay below 2 e / (1 - rate)^2 (power: e / (1 - d) in L1). So the first steps of both solvers may have a coarse state.
- sor: Y = X, row by row in place (successive over-relaxation). Symmetric: omega = 2 / (1 + sqrt(1 - d^2)) (Young,
  1954), convergent for every order of rows because I - d S is positive definite; otherwise omega = 1 (Gauss-Seidel),
  convergent because d P^T has L1 norm d < 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.pagerank.inputs import Teleport
from gpu_rag.lazy import torch

Array = np.ndarray[Any, Any]

ROUNDING = 2.0**-24  # half a unit of f32: the L1 error of rounding a vector of mass 1
F32_GAP = 5e-8  # about the L1 gap that remains when steps over an f32 state are summed in f64
COARSE_GAP = 5e-7  # a few times that gap if they are summed in f32
SUM_ERROR = 5e-6  # allowed error of a row's sum of 1
F16_ERROR = 2.0**-10  # L1 error that steps over an f16 state surely reach: they end at about a tenth of it
LANES = (1, 8, 32)  # questions that a row of the state can hold (numba)
MARGIN = 0.8  # a column is checked when its predicted gap is below this part of the allowed gap


@dataclass(frozen=True)
class Plan:
    """omega: f64[max_iter + 2], the relaxation of step k; stride: steps between checks (2 if buffers alternate);
    predicted: the expected |Z - X|_1 after the last step, divided by its value at the step (a guess: it decides when
    to check, never whether the result is good)."""

    solver: str
    damping: float
    tol: float
    max_iter: int
    omega: Array
    stride: int
    predicted: float
    known_mass: bool
    symmetric: bool

    @property
    def root(self) -> float:
        """sqrt(1 - d^2)."""
        return math.sqrt(1 - self.damping * self.damping)

    @property
    def normalises(self) -> bool:
        """Whether rows are divided by their own sum, not by a known |q|_1."""
        return not self.known_mass or self.tol > SUM_ERROR

    @property
    def fits_f32(self) -> bool:
        """Whether an f32 state is expected to come within the tolerance."""
        min_mass = 1.0 if self.known_mass else 1 - self.damping
        return self.tol > ROUNDING and float(self.allowed(ROUNDING, np.array(min_mass))) >= F32_GAP

    def allowed(self, slack: float, mass: Array) -> Array:
        """The L1 gap |Z - X|_1 (in q) from which a check is worthwhile, per column. mass: |q|_1, or a lower bound."""
        share = 0.5 if self.normalises else 1.0
        budget = self.tol - slack
        return np.asarray(MARGIN * share * budget * mass * (1 - self.damping) / max(self.damping, 1e-12))

    def bound(self, gap: Array, mass: Array, exact: Array) -> Array:
        """The proved L1 distance of the scaled Z from the PageRank, per column.

        gap = |Z - X|_1 and mass = |Z|_1, both computed in f64; exact = |q|_1, used if known_mass. P^T has L1 norm <= 1,
        so |X - q|_1 <= gap / (1-d) and E = |Z - q|_1 <= d gap / (1-d). Divided by the known |q| the distance is E /
        |q|. |Z/|Z| - q/|q||_1 is at most (E + ||q| - |Z||) / |q|, and if |q| is unknown at most 2 E / (|Z| - E).
        """
        error = self.damping * gap / (1 - self.damping)
        if not self.normalises:
            return np.asarray(error / exact)
        if self.known_mass:
            return np.asarray((error + np.abs(exact - mass)) / exact)
        return np.where(mass > error, 2 * error / np.maximum(mass - error, 1e-300), np.inf)

    def scale(self, mass: Array, exact: Array) -> Array:
        """The factor that makes Z the PageRank, per column."""
        return 1 / np.maximum(mass, 1e-300) if self.normalises else 1 / exact

    @property
    def rate(self) -> float:
        """The asymptotic factor by which a step shrinks the error; for sor, an optimistic guess."""
        return self.damping if self.solver == "power" or not self.symmetric else self.damping / (1 + self.root)

    @property
    def f16_steps(self) -> int:
        """The number of steps that exact arithmetic takes from an error of 2, the largest possible, to one that f16 can
        resolve.

        It is the same for all questions: no look is needed, and no bit of a question depends on the others.
        """
        if self.rate <= 0:
            return 0
        needed = math.ceil(math.log(2 / max(F16_ERROR, self.tol)) / -math.log(self.rate))
        return min(needed, self.max_iter)

    def leap(self, slack: float, coarsest: float, taken: int) -> tuple[Array, int]:
        """The relaxations of the steps that a tile does before its first look, after `taken` steps, and the number of
        final steps that must be fine. Chebyshev's error fell at its rate on every tested graph of passages and
        entities; other solvers take no unchecked steps. The number is the same for all questions, see `f16_steps`."""
        none: tuple[Array, int] = np.zeros(0), 0
        if self.solver != "chebyshev" or self.rate <= 0:
            return none
        allowed = float(self.allowed(slack, np.array(1.0)))
        if not allowed > 0:
            return none
        needed = math.log(allowed / LEAP) / math.log(self.rate)
        steps = min(2 * math.ceil(needed / 2), self.max_iter) - taken
        return (self.omega[taken : taken + steps], min(FINE, steps) if coarsest > allowed else 0) if steps > 0 else none

    def for_f32(self, taken: int = 0) -> Plan:
        """This plan, with at most the steps that exact arithmetic would need after `taken` steps. A column that needs
        more has reached the rounding of its state."""
        needed = math.log(1000 / self.tol) / -math.log(self.rate) if self.rate > 0 else 1
        return replace(self, max_iter=min(self.max_iter, taken + 8 + math.ceil(needed)))


def plan_of(solver: str, damping: float, tol: float, max_iter: int, *, symmetric: bool, known_mass: bool) -> Plan:
    """The plan of a chosen and checked solver."""
    root = math.sqrt(1 - damping * damping)
    rate = damping / (1 + root)
    omega = np.ones(max_iter + 2)
    predicted, stride = damping, 2
    if solver == "chebyshev":
        omega[1] = 2 / (2 - damping * damping)
        for k in range(2, len(omega)):
            omega[k] = 1 / (1 - damping * damping * omega[k - 1] / 4)
        predicted = rate
    elif solver == "sor":
        relaxed = 2 / (1 + root) if symmetric else 1.0
        omega[:] = relaxed
        # |Z - X| after a sweep is at most (relaxed - 1 + d relaxed) times the sweep's own step; about a quarter of it
        # on graphs of passages and entities.
        predicted, stride = 0.25 * (relaxed - 1 + damping * relaxed), 1
    return Plan(solver, damping, tol, max_iter, omega, stride, predicted, known_mass, symmetric)


LEAP = 300  # assumed first gap, which gives the number of steps of a leap: a few units above the largest seen
FINE = 4  # steps after coarse ones, which recover the rounding of f32 sums
MAX_CHECKS = 4  # a column that fails this many checks has reached the rounding of its state
UNKNOWN = 1e300  # a change that asks for another step
F64_GAP = 32 * 2.0**-52  # about the L1 gap below which steps in f64 may show rounding alone
BLIND = 1e-3  # share of a check's gap: a step that changed less did not see the error


class Tile(Protocol):
    """The state of up to `width` questions on some backend."""

    width: int
    slack: float  # L1 rounding error of the state's inputs
    coarsest: float  # the gap below which steps must be fine

    def sweep(self, omegas: Array, fine: bool) -> Array:
        """Do the steps up to the next look, with omegas f64[plan.stride, width], one row for each step. An omega of 0
        leaves a column unchanged after every second step. fine: rows are
        summed in f64, for any state. Returns f64[width], the L1 size of Z - X in q, of the last step."""

    def check(self, rows: Array) -> tuple[Array, Array]:
        """Compute Z in f64 from the state; column c is written to row rows[c] of the result, unless it is -1. Returns
        gap = |Z - X|_1 and mass = |Z|_1, each f64[width]."""


SweepUntil = Callable[[Array, Array, Array, Array, Array, Array, bool], None]
"""The method `sweep_until` of a tile that works in place and has it in place of `sweep`: the sweeps between two checks
in one call. (omegas f64[max_iter + 1], going, steps, last, predicted, enough, fine): going, steps and last are changed
in place, as `solve_tile` changes them around `sweep`."""


Leap = Callable[[Array, int], None]
"""The method `leap` of a tile on which a check waits, (omegas f64[K], n_fine): steps of all columns without a check,
the last `n_fine` of them fine."""


@dataclass
class Solved:
    """scale f64[width] makes each row sum to 1; unsolved: columns without a proof; bound f64, steps i64[width]."""

    scale: Array
    unsolved: Array
    bound: Array
    steps: Array


def solve_tile(tile: Tile, plan: Plan, rows: Array, least_mass: Array, taken: int = 0) -> Solved:
    """Iterate the columns c of `tile` with rows[c] >= 0 until each is within plan.tol, proved by a check in f64.

    rows: i64[width], the result row of each column, or -1; least_mass: f64[width], |q|_1 if plan.known_mass, else a
    lower bound of it. A column is frozen (omega 0) when its predicted gap is small enough, first for coarse steps, then
    for fine ones. When all are frozen, one pass checks them; a column that fails continues.

    taken: steps that the tile has already done; at least `stride` follow.

    Every second step of Chebyshev's iteration removes the part of an error that P^T maps to 0, and the next step
    restores it: T_k(0) = 0 for odd k. If nothing else is left, as on a star whose centre and leaves have equal mass,
    the observed steps change nothing. A check detects this, and the rate tells how many steps are needed.
    """
    width = tile.width
    pending = rows >= 0
    steps, min_steps, checks = np.full(width, taken), np.zeros(width, np.int64), np.zeros(width, np.int64)
    predicted, last = np.full(width, plan.predicted), np.full(width, UNKNOWN)
    scale, bound, ahead_by = np.ones(width), np.full(width, np.inf), np.arange(plan.stride)
    sweep_until: SweepUntil | None = getattr(tile, "sweep_until", None)
    leap: Leap | None = getattr(tile, "leap", None) if pending.any() else None
    if leap is not None:
        unlooked, n_fine = plan.leap(tile.slack, tile.coarsest, taken)
        if len(unlooked):
            leap(unlooked, n_fine)
            steps, last = steps + len(unlooked), np.zeros(width)
    while pending.any():
        allowed = plan.allowed(tile.slack, least_mass)
        both = ((False, np.maximum(allowed, tile.coarsest)), (True, allowed))
        for fine, enough in both if last.any() else ():  # directly after a leap the state is checked as it is
            going = pending & (steps < plan.max_iter) & (fine | (checks == 0))
            going &= (predicted * last > enough) | (steps < min_steps)
            if sweep_until is not None:
                sweep_until(plan.omega[: plan.max_iter + 1], going, steps, last, predicted, enough, fine)
            while going.any():
                ahead = np.minimum(steps + ahead_by[:, None] * going, plan.max_iter)
                change = tile.sweep(np.where(going, plan.omega[ahead], 0.0), fine)
                steps += plan.stride * going
                last = np.where(going, change, last)
                going &= ((predicted * last > enough) | (steps < min_steps)) & (steps < plan.max_iter)
            last = np.where(allowed < enough, UNKNOWN, last)  # coarse steps leave a bias: at least one fine one
        gap, mass = tile.check(np.where(pending, rows, -1))
        checks += pending
        proved = plan.bound(gap, mass, least_mass) + tile.slack
        bound = np.where(pending, proved, bound)
        scale = np.where(pending, plan.scale(mass, least_mass), scale)
        pending &= ~(proved <= plan.tol)
        pending &= (steps < plan.max_iter) & (checks < MAX_CHECKS)
        # the guess was too good: correct it, and take at least one more step
        blind = last < BLIND * gap
        min_steps = np.where(pending & blind, steps + _steps_from(gap, allowed, plan), min_steps)
        better = np.maximum(predicted, 1.25 * gap / np.where(blind, np.inf, np.maximum(last, 1e-300)))
        predicted = np.where(pending, better, predicted)
        last = np.where(pending, UNKNOWN, last)
    return Solved(scale, np.flatnonzero(~(bound <= plan.tol) & (rows >= 0)), bound, steps)


def _steps_from(gap: Array, allowed: Array, plan: Plan) -> Array:
    """The number of steps in which `plan.rate` reduces each gap to the allowed one: i64[width]; 0 if it is small."""
    if plan.rate <= 0:
        return np.zeros(len(gap), np.int64)
    ratio = np.where(gap > allowed, gap / allowed, 1.0)  # also 1 if a state is NaN
    return np.ceil(np.log(ratio) / -math.log(plan.rate)).astype(np.int64)


def solve_questions(
    new_tile: Callable[[torch.dtype, Array], Tile], teleport: Teleport, plan: Plan, dangling: torch.Tensor | None,
    dtypes: Sequence[torch.dtype], first: int, last: int, result: torch.Tensor, taken: int = 0,
) -> None:  # fmt: skip
    """Solve questions first..last into the rows of `result`; each further precision solves the questions that the last
    one could not bring within the tolerance. The row of a question without seeds is 0. Raises GpuRagError if no
    precision suffices.

    new_tile(precision, questions): a tile that writes into `result`, in the first precision after `taken` steps.
    dangling: as in `least_mass`.
    """
    questions = np.arange(first, last)
    empty = teleport.is_empty(questions)
    if empty.any():
        result[torch.from_numpy(empty).to(result.device)] = 0.0
    questions = questions[~empty]
    bound, steps = np.zeros(0), np.zeros(0)
    for dtype in dtypes:
        if len(questions):
            tile, done = new_tile(dtype, questions), taken if dtype == dtypes[0] else 0
            limited = plan.for_f32(done) if dtype == torch.float32 else plan
            masses = least_mass(plan, teleport, dangling, questions, tile.width)
            rows = np.full(tile.width, -1, np.int64)
            rows[: len(questions)] = questions - first
            solved = solve_tile(tile, limited, rows, masses, done)
            scale = np.ones(result.shape[0])
            scale[questions - first] = solved.scale[: len(questions)]
            if (scale != 1).any():
                result.mul_(torch.from_numpy(scale).to(result)[:, None])
            failed = solved.unsolved
            questions, bound, steps = questions[failed], solved.bound[failed], solved.steps[failed]
    if len(questions):
        given = f"question {questions[0]}: L1 error up to {bound[0]:.2g} after {int(steps[0])} steps"
        expected, do = f"<= {plan.tol:g} within {plan.max_iter}", way_out(float(bound[0]), plan.damping)
        raise GpuRagError("PageRank did not converge", given=given, expected=expected, do=do)


def way_out(bound: float, damping: float) -> str:
    """Advice if a proved error stays above the tolerance: more steps, unless the gap is as small as rounding, which the
    proof multiplies by 2 d / (1 - d)."""
    if bound * (1 - damping) <= 2 * damping * F64_GAP:
        reached = f"raise tol to {1.1 * bound:.1e}, or lower damping"
        return f"{reached}: what is left is of the size of rounding in f64, which more steps may not lower"
    return "raise max_iter, or lower damping"


def least_mass(plan: Plan, teleport: Teleport, dangling: torch.Tensor | None, questions: Array, width: int) -> Array:
    """q|_1 if it is known, else its lower bound 1 - d; 1 for unused columns: f64[width].

    dangling: bool[N], nodes without outgoing weight; None if there are none.
    """
    masses = np.ones(width)
    if not plan.known_mass:
        masses[:] = 1 - plan.damping
    elif dangling is not None:
        masses[: len(questions)] -= plan.damping * teleport.mass_on(dangling, questions)
    return masses
