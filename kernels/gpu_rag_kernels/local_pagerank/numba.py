"""The numba kernels of PageRank on blocks: one block at a time, so that its state stays in the cache.

For a symmetric block the system is (D - d A) x = (1-d) pi with x = q / degree and D the degrees: symmetric and positive
definite. SOR solves it. After every sweep a correction removes the one error component that a sweep hardly changes:
adding c to x everywhere changes the mass of q by c sum(degree), and the mass of q is known. This is the exact
correction along the constant vector (a coarse grid of one cell), so it never increases the error in the energy norm;
SOR decreases it for every omega in (0, 2). The remaining error depends on how well the block mixes; omega is fitted to
that during the sweeps (`fitted`).

Entry positions are unsigned in the inner loops: for a signed one numba would test each time whether it is negative.
"""

from __future__ import annotations

import numba
import numpy as np

UNKNOWN = 1e300  # a change that asks for another step
FIRST_OMEGA = 1.05  # nearly the best for a block that mixes well
NEARER = 0.8  # step toward the omega estimated from the last sweep
ONE, FOUR, THREE = np.uint64(1), np.uint64(4), np.uint64(3)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def copy(indptr, indices, weight, lo, hi, starts, sources, pulled):
    """Copy rows lo..hi with local numbers: starts u64[n+1], sources u32[m] and pulled f64[m] (None without weights)."""
    first, m = indptr[lo], indptr[hi] - indptr[lo]
    for i in range(hi - lo + 1):
        starts[i] = indptr[lo + i] - first
    own = indices[first : first + m]
    for e in range(m):
        sources[e] = own[e] - lo
    if weight is not None:
        pulled[:m] = weight[first : first + m]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def is_mirrored(starts, sources, pulled, at, image):
    """Whether the rows equal their transpose, weights bit by bit. at, image: scratch, u32[n] and u32[m].

    The k-th entry with column j is matched with the k-th entry of row j. If column j has as many entries as row j, the
    match is one to one, and the pattern is symmetric if and only if matching twice gives the entry itself. No loop runs
    over rows, because their lengths would be mispredicted.
    """
    for i in range(at.shape[0]):
        at[i] = starts[i]
    e, last = np.uint64(0), starts[at.shape[0]]
    while e < last:
        to = np.uint64(sources[e])
        image[e] = at[to]
        at[to] += np.uint32(1)
        e += ONE
    same = True
    for i in range(at.shape[0]):
        same &= at[i] == starts[i + 1]
    if not same:
        return False
    e = np.uint64(0)
    while e < last:
        other = np.uint64(image[e])
        same &= image[other] == e
        if pulled is not None:
            same &= pulled[other] == pulled[e]
        e += ONE
    return same


@numba.njit(cache=True, nogil=True, error_model="numpy")
def turn(indptr, indices, weight, lo, hi, starts, sources, pulled):
    """Write the transpose of rows lo..hi in the form of `copy`; sources ascend."""
    n = hi - lo
    starts[: n + 1] = 0
    for e in range(indptr[lo], indptr[hi]):
        starts[np.uint64(indices[e] - lo) + ONE] += ONE
    for i in range(n):
        starts[i + 1] += starts[i]
    for i in range(n):
        for e in range(indptr[lo + i], indptr[lo + i + 1]):
            to = np.uint64(indices[e] - lo)
            at = starts[to]
            sources[at] = i
            if weight is not None:
                pulled[at] = weight[e]
            starts[to] += ONE
    for i in range(n, 0, -1):
        starts[i] = starts[i - 1]
    starts[0] = 0


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def gather(sources, pulled, first, last, x):
    """sum of pulled[e] x[sources[e]] over e in [first, last), u64; four independent sums avoid waiting."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    e, whole = first, last - ((last - first) & THREE)
    while e < whole:
        f = e + ONE
        g = f + ONE
        h = g + ONE
        if pulled is None:
            a += x[sources[e]]
            b += x[sources[f]]
            c += x[sources[g]]
            d += x[sources[h]]
        else:
            a += pulled[e] * x[sources[e]]
            b += pulled[f] * x[sources[f]]
            c += pulled[g] * x[sources[g]]
            d += pulled[h] * x[sources[h]]
        e += FOUR
    while e < last:
        a += x[sources[e]] if pulled is None else pulled[e] * x[sources[e]]
        e += ONE
    return (a + b) + (c + d)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def sweep(sources, pulled, rows, d, omega, x):
    """x += omega (z - x), z = (d A^T x + restart) / degree, in place by ascending rows; returns (sum degree |z - x|,
    sum degree x). rows: starts, degree, scale, restart; scale is 1 / degree, or 0 if degree is 0."""
    starts, degree, scale, restart = rows
    change, mass, first = 0.0, 0.0, starts[0]
    for i in range(degree.shape[0]):
        last = starts[i + 1]
        step = (d * gather(sources, pulled, first, last, x) + restart[i]) * scale[i] - x[i]
        change += degree[i] * abs(step)
        x[i] += omega * step
        mass += degree[i] * x[i]
        first = last
    return change, mass


@numba.njit(cache=True, nogil=True, error_model="numpy")
def check(sources, pulled, rows, d, x, z):
    """z = d A^T x + restart; returns (|z - degree x|_1, |z|_1). A row of degree 0 has no gap: its x is never read, so
    its q may be taken as z."""
    starts, degree, scale, restart = rows
    gap, mass, first = 0.0, 0.0, starts[0]
    for i in range(degree.shape[0]):
        last = starts[i + 1]
        z[i] = d * gather(sources, pulled, first, last, x) + restart[i]
        gap += degree[i] * abs(z[i] * scale[i] - x[i])
        mass += z[i]
        first = last
    return gap, mass


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fitted(omega, rate, d):
    """An omega for a block whose changes have just shrunk by `rate` with this omega: closer to the best one, never
    lower.

    By Young's relation (rate + omega - 1)^2 = rate omega^2 mu^2 for mu, at most d, the best omega is 2 / (1 + sqrt(1 -
    mu^2)).
    """
    if rate <= omega - 1:
        return omega
    mu = min(d, (rate + omega - 1) / (omega * np.sqrt(rate)))
    return max(omega, omega + NEARER * (2 / (1 + np.sqrt(1 - mu * mu)) - omega))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def begin(rows, d, symmetric, x):
    """Write the first x; return (the mass of q on rows with a degree, sum(degree)). sum(degree) is 0 if the mass is
    unknown: then no correction is possible."""
    _, degree, scale, restart = rows
    own, total = 0.0, 0.0
    for i in range(degree.shape[0]):
        total += degree[i]
        if degree[i] > 0:
            own += restart[i]
    if not symmetric or total == 0:
        for i in range(degree.shape[0]):
            x[i] = restart[i] * scale[i] / (1 - d)
        return 0.0, 0.0
    for i in range(degree.shape[0]):
        x[i] = (restart[i] + degree[i] * (own / (1 - d) - own) / total) * scale[i]
    return own / (1 - d), total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def correct(rows, shift, x):
    """x += shift on rows with a degree."""
    _, degree, scale, _ = rows
    for i in range(degree.shape[0]):
        x[i] += shift * (degree[i] * scale[i])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def iterate(sources, pulled, rows, d, tol, max_iter, symmetric, x, z):
    """Sweep until z is proved to be within tol; return (bound, |z|_1).

    z is checked when the gap predicted from the last changes is small enough. The prediction only decides when to
    check, never whether the result is good.
    """
    whole, total = begin(rows, d, symmetric, x)
    omega = min(FIRST_OMEGA, 2 / (1 + np.sqrt(1 - d * d))) if symmetric else 1.0
    least, predicted = (0.0 if symmetric else 0.25 * d), 1.0
    allowed = tol * (1 - d) / (2 * max(d, 1e-12))
    change, steps, again = UNKNOWN, 0, True
    bound, mass = np.inf, 1.0
    while True:
        while steps < max_iter and (again or predicted * change > allowed * mass):
            before, again = change, False
            change, moved = sweep(sources, pulled, rows, d, omega, x)
            steps += 1
            if total > 0:
                correct(rows, (whole - moved) / total, x)
            rate = min(1.0, change / max(before, 1e-300)) if steps > 1 else 1.0
            predicted = max(least, rate) if symmetric else least
            if symmetric and steps % 2 == 0:
                omega = fitted(omega, rate, d)
        gap, mass = check(sources, pulled, rows, d, x, z)
        bound = 2 * d * gap / ((1 - d) * mass)
        if bound <= tol or steps >= max_iter:
            return bound, mass
        least, again = max(least, 1.25 * gap / max(change, 1e-300)), True


@numba.njit(cache=True, nogil=True, error_model="numpy")
def weigh(indptr, weight, lo, degree, scale):
    """Write degree f64[n], the sums of the rows from lo on, and scale f64[n] = 1 / degree, or 0."""
    for i in range(degree.shape[0]):
        total = 1.0 * (indptr[lo + i + 1] - indptr[lo + i])
        if weight is not None:
            total = 0.0
            for e in range(indptr[lo + i], indptr[lo + i + 1]):
                total += weight[e]
        degree[i] = total
        scale[i] = 1 / total if total > 0 else 0.0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def solve_blocks(
    indptr, indices, weight, offsets, first, last, seed_offsets, seed_rows, seed_mass, d, tol, max_iter, values, bounds,
):  # fmt: skip
    """Solve blocks first..last: values f32[T], bounds f64[B]. The state of a block is q / degree in f64."""
    most_n, most_m = 0, 0
    for b in range(first, last):
        most_n = max(most_n, offsets[b + 1] - offsets[b])
        most_m = max(most_m, indptr[offsets[b + 1]] - indptr[offsets[b]])
    starts, sources = np.empty(most_n + 1, np.uint64), np.empty(most_m, np.uint32)
    pulled = None if weight is None else np.empty(most_m)
    at, image = np.empty(most_n, np.uint32), np.empty(most_m, np.uint32)
    degree, scale = np.empty(most_n), np.empty(most_n)
    restart, x, z = np.empty(most_n), np.empty(most_n), np.empty(most_n)
    for b in range(first, last):
        lo, hi = offsets[b], offsets[b + 1]
        n = hi - lo
        if n == 0 or seed_offsets[b] == seed_offsets[b + 1]:
            values[lo:hi] = 0.0
            bounds[b] = 0.0
            continue
        copy(indptr, indices, weight, lo, hi, starts, sources, pulled)
        symmetric = is_mirrored(starts, sources, pulled, at[:n], image)
        if not symmetric:
            turn(indptr, indices, weight, lo, hi, starts, sources, pulled)
        weigh(indptr, weight, lo, degree[:n], scale[:n])
        restart[:n] = 0.0
        for s in range(seed_offsets[b], seed_offsets[b + 1]):
            restart[seed_rows[s] - lo] += (1 - d) * seed_mass[s]
        rows = (starts, degree[:n], scale[:n], restart)
        bounds[b], mass = iterate(sources, pulled, rows, d, tol, max_iter, symmetric, x, z)
        for i in range(n):
            values[lo + i] = z[i] / mass
