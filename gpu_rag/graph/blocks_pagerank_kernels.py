"""The numba kernels of PageRank on blocks: one block at a time, so that its state stays in the cache."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

UNKNOWN = 1e300  # a change that asks for another step


@numba.njit(cache=True, nogil=True, error_model="numpy")
def turn(indptr: Any, indices: Any, weight: Any, lo: Any, hi: Any, starts: Any, sources: Any, pulled: Any) -> Any:
    """The transpose of rows lo..hi in local numbers: starts i64[n+1], sources u32[m], ascending, and their weights
    pulled f64[m], None without weights. Returns whether the block equals its transpose."""
    first, n = indptr[lo], hi - lo
    starts[: n + 1] = 0
    for e in range(first, indptr[hi]):
        starts[np.uint32(indices[e] - lo) + np.uint32(1)] += 1  # unsigned: numba need not look for negative ones
    for i in range(n):
        starts[i + 1] += starts[i]
    for i in range(n):
        for e in range(indptr[lo + i], indptr[lo + i + 1]):
            to = np.uint32(indices[e] - lo)
            at = np.uint64(starts[to])
            sources[at] = i
            if weight is not None:
                pulled[at] = weight[e]
            starts[to] += 1
    for i in range(n, 0, -1):
        starts[i] = starts[i - 1]
    starts[0] = 0
    for i in range(n):
        if starts[i + 1] != indptr[lo + i + 1] - first:
            return False
    for e in range(indptr[hi] - first):
        if sources[e] != indices[first + e] - lo or (weight is not None and pulled[e] != weight[first + e]):
            return False
    return True


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def gather(sources: Any, pulled: Any, first: Any, last: Any, x: Any) -> Any:
    """sum over e in [first, last) of pulled[e] x[sources[e]], as four sums side by side: one would wait for itself."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for e in range(first, last - 3, 4):
        if pulled is None:
            a += x[sources[e]]
            b += x[sources[e + 1]]
            c += x[sources[e + 2]]
            d += x[sources[e + 3]]
        else:
            a += pulled[e] * x[sources[e]]
            b += pulled[e + 1] * x[sources[e + 1]]
            c += pulled[e + 2] * x[sources[e + 2]]
            d += pulled[e + 3] * x[sources[e + 3]]
    for e in range(last - (last - first) % 4, last):
        a += x[sources[e]] if pulled is None else pulled[e] * x[sources[e]]
    return (a + b) + (c + d)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def sweep(starts: Any, sources: Any, pulled: Any, degree: Any, restart: Any, d: Any, omega: Any, x: Any) -> Any:
    """x += omega (z - x), z = (d A^T x + restart) / degree, in place by ascending rows; returns sum degree |z - x|."""
    change = 0.0
    for i in range(degree.shape[0]):
        step = (d * gather(sources, pulled, starts[i], starts[i + 1], x) + restart[i]) / degree[i] - x[i]
        change += degree[i] * abs(step)
        x[i] += omega * step
    return change


@numba.njit(cache=True, nogil=True, error_model="numpy")
def check(starts: Any, sources: Any, pulled: Any, degree: Any, restart: Any, d: Any, x: Any, z: Any) -> Any:
    """z = d A^T x + restart; returns (|z - degree x|_1, |z|_1)."""
    gap, mass = 0.0, 0.0
    for i in range(degree.shape[0]):
        z[i] = d * gather(sources, pulled, starts[i], starts[i + 1], x) + restart[i]
        gap += abs(z[i] - degree[i] * x[i])
        mass += z[i]
    return gap, mass


@numba.njit(cache=True, nogil=True, error_model="numpy")
def iterate(
    starts: Any, sources: Any, pulled: Any, degree: Any, restart: Any, d: Any, tol: Any, max_iter: Any, symmetric: Any,
    x: Any, z: Any,
) -> Any:  # fmt: skip
    """Sweeps until z is proved to be within tol; returns (bound, |z|_1).

    Checked when the gap that a sweep's own change predicts is small enough: a guess that decides when to check, never
    whether the result is good. See `pagerank_plan` for the relaxation.
    """
    omega = 2 / (1 + np.sqrt(1 - d * d)) if symmetric else 1.0
    predicted = 0.25 * (omega - 1 + d * omega)
    allowed = 0.8 * tol * (1 - d) / (2 * max(d, 1e-12))
    change, steps = UNKNOWN, 0
    bound, mass = np.inf, 1.0
    while True:
        while steps < max_iter and (change == UNKNOWN or predicted * change > allowed * mass):
            change = sweep(starts, sources, pulled, degree, restart, d, omega, x)
            steps += 1
        gap, mass = check(starts, sources, pulled, degree, restart, d, x, z)
        bound = 2 * d * gap / ((1 - d) * mass)
        if bound <= tol or steps >= max_iter:
            return bound, mass
        predicted = max(predicted, 1.25 * gap / max(change, 1e-300))
        change = UNKNOWN


@numba.njit(cache=True, nogil=True, error_model="numpy")
def solve_blocks(
    indptr: Any, indices: Any, weight: Any, offsets: Any, first: Any, last: Any, seed_offsets: Any, seed_rows: Any,
    seed_mass: Any, d: Any, tol: Any, max_iter: Any, values: Any, bounds: Any,
) -> None:  # fmt: skip
    """Blocks first..last: writes their values f32[T] and bounds f64[B]; the state of a block is q / degree in f64."""
    most_n, most_m = 0, 0
    for b in range(first, last):
        most_n = max(most_n, offsets[b + 1] - offsets[b])
        most_m = max(most_m, indptr[offsets[b + 1]] - indptr[offsets[b]])
    starts, sources = np.empty(most_n + 1, np.int64), np.empty(most_m, np.uint32)
    pulled = None if weight is None else np.empty(most_m)
    degree, restart, x, z = np.empty(most_n), np.empty(most_n), np.empty(most_n), np.empty(most_n)
    for b in range(first, last):
        lo, hi = offsets[b], offsets[b + 1]
        n = hi - lo
        if n == 0 or seed_offsets[b] == seed_offsets[b + 1]:
            values[lo:hi] = 0.0
            bounds[b] = 0.0
            continue
        symmetric = turn(indptr, indices, weight, lo, hi, starts, sources, pulled)
        for i in range(n):
            total = 0.0
            for e in range(indptr[lo + i], indptr[lo + i + 1]):
                total += 1.0 if weight is None else weight[e]
            degree[i] = total if total > 0 else 1.0
        restart[:n] = 0.0
        for s in range(seed_offsets[b], seed_offsets[b + 1]):
            restart[seed_rows[s] - lo] += (1 - d) * seed_mass[s]
        for i in range(n):
            x[i] = restart[i] / ((1 - d) * degree[i])
        bounds[b], mass = iterate(
            starts, sources, pulled, degree[:n], restart, d, tol, max_iter, symmetric, x, z
        )  # fmt: skip
        for i in range(n):
            values[lo + i] = z[i] / mass
