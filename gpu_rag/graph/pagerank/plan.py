"""The iteration of PageRank and when it may stop: coefficients by solver, and the proved bound on the error.

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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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

    def allowed(self, slack: float, mass: Array, tol: Array | float | None = None) -> Array:
        """The L1 gap |Z - X|_1 (in q) that is worth a check, per column. mass: |q|_1, or a lower bound of it.
        tol: the error to come within, this plan's own if None."""
        share = 0.5 if self.normalises else 1.0
        left = (self.tol if tol is None else tol) - slack
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
