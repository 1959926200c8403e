"""How counts and costs grow with the corpus: distinct names by Heaps' law, costs by a line through two sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from gpu_rag.errors import UsageError

N_POINTS = 8  # of the growth curve that the law is fitted to
LEAST_SHARE = 0.2  # of a cost that is taken to grow, however flat two noisy measurements look


@dataclass(frozen=True)
class Heaps:
    """n_distinct = k * n ** beta after n passages (Heaps' law)."""

    k: float
    beta: float

    def at(self, n: int) -> float:
        """Distinct names in n passages."""
        return self.k * n**self.beta


def distinct_in(frequencies: np.ndarray, n: int, m: int) -> float:
    """Expected number of distinct names in m of n passages drawn at random, without drawing them (rarefaction).

    sum over names of 1 - C(n - f, m) / C(n, m), where f of the n passages have the name (Hurlbert 1971).
    frequencies: i64[n_names], each from 1 to n. 0 <= m <= n. Raises UsageError for other m.
    """
    if not 0 <= m <= n:
        raise UsageError("more passages than there are", given=m, expected=f"0 to {n}")
    f, n_names = np.unique(np.asarray(frequencies, np.int64), return_counts=True)
    possible = n - f >= m  # else every choice of m passages has the name
    f = np.where(possible, f, 0)
    none_of_m = gammaln(n - f + 1) - gammaln(n - f - m + 1) - gammaln(n + 1) + gammaln(n - m + 1)
    return float((n_names * (1 - np.where(possible, np.exp(none_of_m), 0))).sum())


def fit_heaps(frequencies: np.ndarray, n: int) -> Heaps:
    """Heaps' law through the growth curve of a sample of n passages; exact at n itself, beta from 0 to 1.

    The slope is that of the curve's upper half in logarithms (least squares over points m = n/2 .. n), since the
    curve flattens as it grows. A sample of one passage says nothing about growth: beta 1.
    """
    total = len(frequencies)
    sizes = np.unique(np.geomspace(max(1, n // 2), n, N_POINTS).astype(int)) if n else np.zeros(0, int)
    if total == 0 or len(sizes) < 2:
        return Heaps(total / max(n, 1), 1.0)
    curve = [distinct_in(frequencies, n, int(m)) for m in sizes]
    x, y = np.log(sizes), np.log(curve)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    beta = min(max(slope, 0.0), 1.0)
    return Heaps(total / n**beta, beta)


@dataclass(frozen=True)
class Line:
    """cost = fixed + each * size, both >= 0."""

    fixed: float
    each: float

    def at(self, size: float) -> float:
        """The cost at a size."""
        return self.fixed + self.each * size


def line_through(size_a: float, cost_a: float, size_b: float, cost_b: float) -> Line:
    """The line through two measured costs, size_a < size_b, kept sane against noise.

    It goes through the larger measurement; at least a fifth of that and at most all of it grows with the size.
    """
    if size_b <= 0:
        return Line(max(cost_b, 0.0), 0.0)
    whole = max(cost_b, 0.0) / size_b
    slope = (cost_b - cost_a) / (size_b - size_a) if size_b > size_a else whole
    each = min(max(slope, LEAST_SHARE * whole), whole)
    return Line(max(cost_b, 0.0) - each * size_b, each)


def power_between(size_a: float, cost_a: float, size_b: float, cost_b: float, low: float, high: float) -> float:
    """The exponent p of cost ~ size ** p through two measurements, kept from `low` to `high`; `low` where unknown."""
    if not (0 < size_a < size_b and cost_a > 0):
        return low
    return float(min(max(np.log(max(cost_b, 1e-300) / cost_a) / np.log(size_b / size_a), low), high))
