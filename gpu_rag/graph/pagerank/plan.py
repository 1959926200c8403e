"""The iteration of PageRank and when it may stop: coefficients by solver, the proved bound on the error, and the loop
in which every column of a tile stops by its own error. PageRank on one device and that of shards share all of it.

The equation, for one question: q = (1-d) pi + d P^T q, P the row-normalised adjacency, rows without weight zero.
Returning the mass of those rows to pi only rescales: the PageRank is q / |q|_1. The state is V = q / degree, so that
the matrix needs no values and, for a symmetric graph, D^-1 A has the real spectrum of D^-1/2 A D^-1/2 in [-1, 1].

Solvers, all of the form Y <- Y + omega (Z - Y) with Z = (d A^T X + (1-d) pi) / degree:
- power: omega = 1, two buffers. Error falls as d^k.
- chebyshev: two buffers (Y = the iterate before X), omega_1 = 1, omega_2 = 2 / (2 - d^2), then
  omega = 1 / (1 - d^2 omega / 4): Chebyshev semi-iteration on [-d, d] (Golub and Varga, 1961). Symmetric graphs only.
  Rounding is not amplified beyond a constant: an error e of one iterate has become at most 2 e (k+1) rate^k after k
  steps, with rate = d / (1 + sqrt(1 - d^2)), in the norm of sqrt(degree) V: it grows as a Chebyshev polynomial of the
  second kind. All together stay below 2 e / (1 - rate)^2 (power: e / (1 - d) in L1). So the first steps of both may
  have a coarse state.
- sor: Y = X, row by row in place (successive over-relaxation). Symmetric: omega = 2 / (1 + sqrt(1 - d^2)) (Young,
  1954), convergent for every order of rows since I - d S is positive definite; otherwise omega = 1 (Gauss-Seidel),
  convergent since d P^T has L1 norm d < 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.pagerank.inputs import Teleport

Array = np.ndarray[Any, Any]

ROUNDING = 2.0**-24  # half a unit of f32: the L1 error of rounding a vector of mass 1
F32_GAP = 5e-8  # about the L1 gap that remains when steps over an f32 state are summed in f64
COARSE_GAP = 5e-7  # and a few times that when they are summed in f32
SUM_ERROR = 5e-6  # a row may miss the sum of 1 by so much
F16_ERROR = 2.0**-10  # an L1 error that steps over an f16 state surely come below: they end at about a tenth of it
MARGIN = 0.8  # a column is checked when its predicted gap is below this part of what is allowed


@dataclass(frozen=True)
class Plan:
    """omega: f64[max_iter + 2], the relaxation of step k; stride: steps between looks (2 where buffers alternate);
    predicted: expected |Z - X|_1 after the last step, over that of the step itself (a guess: decides when to check,
    never whether the result is good)."""

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
    def in_place(self) -> bool:
        """Whether the solver updates one buffer row by row."""
        return self.solver == "sor"

    @property
    def normalises(self) -> bool:
        """Whether rows are divided by their own sum, rather than by the |q|_1 that is known."""
        return not self.known_mass or self.tol > SUM_ERROR

    @property
    def fits_f32(self) -> bool:
        """Whether an f32 state can be expected to come within the tolerance."""
        least = 1.0 if self.known_mass else 1 - self.damping
        return self.tol > ROUNDING and float(self.allowed(ROUNDING, np.array(least))) >= F32_GAP

    def allowed(self, slack: float, mass: Array) -> Array:
        """The L1 gap |Z - X|_1 (in q) that is worth a check, per column. mass: |q|_1, or a lower bound of it."""
        share = 0.5 if self.normalises else 1.0
        left = self.tol - slack
        return np.asarray(MARGIN * share * left * mass * (1 - self.damping) / max(self.damping, 1e-12))

    def bound(self, gap: Array, mass: Array, exact: Array) -> Array:
        """Proved L1 distance of the scaled Z from the PageRank, per column.

        gap = |Z - X|_1 and mass = |Z|_1, both computed in f64; exact = |q|_1, read if known_mass. P^T has L1 norm <= 1,
        so |X - q|_1 <= gap / (1-d) and E = |Z - q|_1 <= d gap / (1-d). Divided by the known |q| that is E / |q|;
        |Z/|Z| - q/|q||_1 is at most (E + ||q| - |Z||) / |q|, and where |q| is not known at most 2 E / (|Z| - E).
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
        """By how much a step shrinks the error in the end; of sor, a guess from below."""
        return self.damping if self.solver == "power" or not self.symmetric else self.damping / (1 + self.root)

    @property
    def f16_steps(self) -> int:
        """The steps that exact arithmetic takes from an error of 2, the largest there is, to one that f16 still sees.

        One number for all questions: no look is needed, and no bit of a question depends on the others.
        """
        if self.rate <= 0:
            return 0
        needed = math.ceil(math.log(2 / max(F16_ERROR, self.tol)) / -math.log(self.rate))
        return min(needed, self.max_iter)

    def leap(self, slack: float, coarsest: float, taken: int) -> tuple[Array, int]:
        """The relaxations of the steps that a tile takes before it looks at anything, after those `taken`, and how many
        of the last must be fine. Chebyshev's error falls as its rate says on every graph of passages and entities that
        was looked at; of other solvers no step is taken unlooked. One number for all questions, see `f16_steps`."""
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
        """This plan with the steps limited to what exact arithmetic would need after those `taken`: a column that needs
        more has met the rounding of its state."""
        needed = math.log(1000 / self.tol) / -math.log(self.rate) if self.rate > 0 else 1
        return replace(self, max_iter=min(self.max_iter, taken + 8 + math.ceil(needed)))


def plan_of(solver: str, damping: float, tol: float, max_iter: int, *, symmetric: bool, known_mass: bool) -> Plan:
    """The plan of a solver that has been chosen and checked."""
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


LEAP = 300  # times the first gap that a tile's last ones are computed from: a few units more than was ever seen
FINE = 4  # steps after coarse ones that find what f32 sums have rounded off
MAX_CHECKS = 4  # a column that fails this many checks has met the rounding of its state
UNKNOWN = 1e300  # a change that asks for another step
F64_GAP = 32 * 2.0**-52  # about the L1 gap below which steps in f64 may show rounding alone
BLIND = 1e-3  # of the gap that a check finds: a step that changed less did not see the error


class Tile(Protocol):
    """The state of up to `width` questions on some backend."""

    width: int
    slack: float  # L1 error of the state's own inputs, by rounding
    coarsest: float  # the gap below which steps must be fine

    def sweep(self, omegas: Array, fine: bool) -> Array:
        """The steps up to the next look, with omegas f64[plan.stride, width], a row a step; 0 leaves a column as it is
        after every second step (every step when the solver works in place). fine: rows are summed in f64, whatever the
        state is. Returns f64[width], the L1 size of Z - X in q, of the last step."""

    def check(self, rows: Array) -> tuple[Array, Array]:
        """Computes Z in f64 from the state; column c is written to row rows[c] of the result, unless -1.
        Returns gap = |Z - X|_1 and mass = |Z|_1, each f64[width]."""


SweepUntil = Callable[[Array, Array, Array, Array, Array, Array, bool], None]
"""The method `sweep_until` of a tile that has one, for solvers that work in place: the sweeps between two checks in one
call. (omegas f64[max_iter + 1], going, steps, last, predicted, enough, fine): going, steps and last are changed in
place, as `solve_tile` changes them around `sweep`."""


Leap = Callable[[Array, int], None]
"""The method `leap` of a tile on which a look is a wait, (omegas f64[K], n_fine): steps of all columns without a look,
the last `n_fine` of them fine."""


@dataclass
class Solved:
    """scale: f64[width], what the rows must be multiplied with to sum to 1; unsolved: columns without a proof;
    bound: f64[width]; steps: i64[width]."""

    scale: Array
    unsolved: Array
    bound: Array
    steps: Array


def solve_tile(tile: Tile, plan: Plan, rows: Array, least_mass: Array, taken: int = 0) -> Solved:
    """Iterates the columns c of `tile` with rows[c] >= 0 until each is within plan.tol, proved by a check in f64.

    rows: i64[width], the row of the result that a column goes to, or -1; least_mass: f64[width], |q|_1 where
    plan.known_mass, else a lower bound of it. A column is frozen (omega 0) when its predicted gap is small enough,
    first for coarse steps, then for fine ones; when all are, one pass checks them; a column that fails goes on.

    taken: steps that the tile has done before; at least `stride` follow.

    Every second step of Chebyshev's iteration takes the part of an error that P^T maps to 0 away, and the next one
    brings it back: T_k(0) = 0 for odd k. Where nothing else is left, as on a star whose centre and leaves have equal
    mass, the steps that are looked at change nothing. A check sees it, and the rate says how many steps are needed.
    """
    width = tile.width
    pending = rows >= 0
    steps, least, checks = np.full(width, taken), np.zeros(width, np.int64), np.zeros(width, np.int64)
    predicted, last = np.full(width, plan.predicted), np.full(width, UNKNOWN)
    scale, bound, ahead_by = np.ones(width), np.full(width, np.inf), np.arange(plan.stride)
    sweep_until: SweepUntil | None = getattr(tile, "sweep_until", None) if plan.in_place else None
    leap: Leap | None = getattr(tile, "leap", None) if pending.any() else None
    if leap is not None:
        unlooked, n_fine = plan.leap(tile.slack, tile.coarsest, taken)
        if len(unlooked):
            leap(unlooked, n_fine)
            steps, last = steps + len(unlooked), np.zeros(width)
    while pending.any():
        allowed = plan.allowed(tile.slack, least_mass)
        both = ((False, np.maximum(allowed, tile.coarsest)), (True, allowed))
        for fine, enough in both if last.any() else ():  # after a leap, and no step since: checked as it is
            going = pending & (steps < plan.max_iter) & (fine | (checks == 0))
            going &= (predicted * last > enough) | (steps < least)
            if sweep_until is not None:
                sweep_until(plan.omega[: plan.max_iter + 1], going, steps, last, predicted, enough, fine)
            while going.any():
                ahead = np.minimum(steps + ahead_by[:, None] * going, plan.max_iter)
                change = tile.sweep(np.where(going, plan.omega[ahead], 0.0), fine)
                steps += plan.stride * going
                last = np.where(going, change, last)
                going &= ((predicted * last > enough) | (steps < least)) & (steps < plan.max_iter)
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
        least = np.where(pending & blind, steps + _steps_from(gap, allowed, plan), least)
        better = np.maximum(predicted, 1.25 * gap / np.where(blind, np.inf, np.maximum(last, 1e-300)))
        predicted = np.where(pending, better, predicted)
        last = np.where(pending, UNKNOWN, last)
    return Solved(scale, np.flatnonzero(~(bound <= plan.tol) & (rows >= 0)), bound, steps)


def _steps_from(gap: Array, allowed: Array, plan: Plan) -> Array:
    """i64[width]: the steps in which `plan.rate` brings each gap to what is allowed; 0 where nothing is left to do."""
    if plan.rate <= 0:
        return np.zeros(len(gap), np.int64)
    left = np.where(gap > allowed, gap / allowed, 1.0)  # 1 also where a state is not a number
    return np.ceil(np.log(left) / -math.log(plan.rate)).astype(np.int64)


def solve_questions(
    new_tile: Callable[[torch.dtype, Array], Tile], teleport: Teleport, plan: Plan, dangling: torch.Tensor | None,
    dtypes: Sequence[torch.dtype], first: int, last: int, result: torch.Tensor, taken: int = 0,
) -> None:  # fmt: skip
    """Solves questions first..last into the rows of `result`, in each precision those that the one before could not
    bring within the tolerance. The row of a question without seeds is 0. Raises GpuRagError for one that none can.

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
            least = least_mass(plan, teleport, dangling, questions, tile.width)
            rows = np.full(tile.width, -1, np.int64)
            rows[: len(questions)] = questions - first
            solved = solve_tile(tile, limited, rows, least, done)
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
    """The way out where a proved error stays above the tolerance: more steps, unless the gap is of the size of
    rounding, which the proof takes 2 d / (1 - d) times."""
    if bound * (1 - damping) <= 2 * damping * F64_GAP:
        reached = f"raise tol to {1.1 * bound:.1e}, or lower damping"
        return f"{reached}: what is left is of the size of rounding in f64, which more steps may not lower"
    return "raise max_iter, or lower damping"


def least_mass(plan: Plan, teleport: Teleport, dangling: torch.Tensor | None, questions: Array, width: int) -> Array:
    """f64[width]: |q|_1 where it is known, else its lower bound 1 - d; 1 for unused columns.

    dangling: bool[N], nodes without outgoing weight; None where there are none.
    """
    least = np.ones(width)
    if not plan.known_mass:
        least[:] = 1 - plan.damping
    elif dangling is not None:
        least[: len(questions)] -= plan.damping * teleport.mass_on(dangling, questions)
    return least
