"""The numba kernels of clustering and of the join: scanning tiles of approximate scores, exact dot products.

A tile of scores is f32, or bf16 given as its bits in i16; vectors are f32, or f16 given as its bits in u16.
Kernels and the functions they call share a file because numba's cache of a kernel is renewed when its file changes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import overload

CHUNK = 64  # scores that are looked at together before any is looked at alone
_F16_BIAS = np.float32(2.0**112)  # f32 exponent bias over that of f16: also right for subnormals
_GRID = 2.0**24


def value(score: Any) -> Any:
    """A score as f32."""
    raise NotImplementedError  # compiled code only: see `_value`


def component(raw: Any) -> Any:
    """A component of a vector on the grid of 2^-24, times 2^24: f64."""
    raise NotImplementedError  # compiled code only: see `_component`


@overload(value)
def _value(score: Any) -> Any:
    if isinstance(score, types.Integer):

        def of_bf16(score: Any) -> Any:
            return np.int32(np.int32(score) << 16).view(np.float32)

        return of_bf16

    def of_f32(score: Any) -> Any:
        return score

    return of_f32


@overload(component)
def _component(raw: Any) -> Any:
    if isinstance(raw, types.Integer):

        def of_f16(raw: Any) -> Any:
            bits = np.uint32(raw)
            single = np.uint32(((bits & 0x7FFF) << 13) | ((bits & 0x8000) << 16)).view(np.float32)
            return np.float64(single * _F16_BIAS) * _GRID

        return of_f16

    def of_f32(raw: Any) -> Any:
        return np.rint(np.float64(raw) * _GRID)

    return of_f32


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def exact_dot(left: Any, right: Any) -> Any:
    """The dot product of two vectors on the grid; exact, so the order of summation is free."""
    total = 0.0
    for k in range(left.shape[0]):
        total += component(left[k]) * component(right[k])
    return total * 2.0**-48


@numba.njit(cache=True, nogil=True)
def root_of(parent: Any, i: Any) -> Any:
    """The root of i, the smallest member of its tree; the path is halved."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@numba.njit(cache=True, nogil=True)
def unite(parent: Any, i: Any, j: Any) -> None:
    """Joins the trees of i and j under the smaller root."""
    a, b = root_of(parent, i), root_of(parent, j)
    if a < b:
        parent[b] = a
    elif b < a:
        parent[a] = b


@numba.njit(cache=True, nogil=True)
def settle(parent: Any, count: Any, enough: Any, waiting: Any, n_waiting: Any) -> Any:
    """Unites the waiting pairs that are now two core rows; returns how many still wait, moved to the front."""
    kept = 0
    for p in range(n_waiting):
        i, j = waiting[p, 0], waiting[p, 1]
        if count[i] >= enough and count[j] >= enough:
            unite(parent, i, j)
        else:
            waiting[kept, 0], waiting[kept, 1] = i, j
            kept += 1
    return kept


@numba.njit(cache=True, nogil=True, error_model="numpy")
def link_tile(
    scores: Any, i0: Any, j0: Any, low: Any, high: Any, vectors: Any, threshold: Any,
    parent: Any, count: Any, enough: Any, waiting: Any, n_waiting: Any,
) -> Any:  # fmt: skip
    """Links every pair i < j of one tile of scores[i - i0, j - j0] whose exact dot product is >= threshold.

    A score < low is surely below it, one > high surely not; others are computed exactly. A link counts for both rows.
    Two rows with `enough` links each are united; another pair waits (one of its rows has few links, so few pairs can
    wait). Returns the number of waiting pairs.
    """
    for i in range(i0, i0 + scores.shape[0]):
        row = scores[i - i0]
        for start in range(max(0, i + 1 - j0), row.shape[0], CHUNK):
            chunk = row[start : start + CHUNK]
            hit = False
            for c in range(chunk.shape[0]):
                hit |= value(chunk[c]) >= low
            if not hit:
                continue
            for c in range(chunk.shape[0]):
                at = value(chunk[c])
                j = j0 + start + c
                if at < low or (at <= high and exact_dot(vectors[i], vectors[j]) < threshold):
                    continue
                count[i] += 1
                count[j] += 1
                if count[i] >= enough and count[j] >= enough:
                    unite(parent, i, j)
                else:
                    if n_waiting == waiting.shape[0]:
                        n_waiting = settle(parent, count, enough, waiting, n_waiting)
                    waiting[n_waiting, 0], waiting[n_waiting, 1] = i, j
                    n_waiting += 1
    return n_waiting


@numba.njit(cache=True, nogil=True)
def flatten(parent: Any) -> None:
    """Makes every entry its own root."""
    for i in range(parent.shape[0]):
        parent[i] = root_of(parent, i)
