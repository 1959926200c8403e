"""The numba kernels of clustering and of the join: scanning tiles of fast scores, exact dot products.

A tile of scores is f32, or bf16 given as its bits in i16; vectors are f32, or f16 given as its bits in u16.
Kernels and the functions they call share a file because numba's cache of a kernel is renewed when its file changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import overload

CHUNK = 64  # scores of a cluster's tile that are looked at together before any is looked at alone
JOIN_CHUNK = 32  # and of a join's
_F16_BIAS = np.float32(2.0**112)  # f32 exponent bias over that of f16: also right for subnormals
_GRID = 2.0**24


def value(score):
    """A score as f32."""
    raise NotImplementedError  # compiled code only: see `_value`


def component(stored):
    """A component of a vector on the grid of 2^-24, times 2^24: f64."""
    raise NotImplementedError  # compiled code only: see `_component`


@overload(value)
def _value(score):
    if isinstance(score, types.Integer):

        def of_bf16(score):
            return np.int32(np.int32(score) << 16).view(np.float32)

        return of_bf16

    def of_f32(score):
        return score

    return of_f32


@overload(component)
def _component(stored):
    if isinstance(stored, types.Integer):

        def of_f16(stored):
            bits = np.uint32(stored)
            single = np.uint32(((bits & 0x7FFF) << 13) | ((bits & 0x8000) << 16)).view(np.float32)
            return np.float64(single * _F16_BIAS) * _GRID

        return of_f16

    def of_f32(stored):
        return np.rint(np.float64(stored) * _GRID)

    return of_f32


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def exact_dot(left, right):
    """The dot product of two vectors on the grid; exact, so the order of summation is free."""
    total = 0.0
    for k in range(left.shape[0]):
        total += component(left[k]) * component(right[k])
    return total * 2.0**-48


@numba.njit(cache=True, nogil=True)
def root_of(parent, i):
    """The root of i, the smallest member of its tree; the path is halved."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@numba.njit(cache=True, nogil=True)
def unite(parent, i, j):
    """Joins the trees of i and j under the smaller root."""
    a, b = root_of(parent, i), root_of(parent, j)
    if a < b:
        parent[b] = a
    elif b < a:
        parent[a] = b


@numba.njit(cache=True, nogil=True)
def settle(parent, count, enough, waiting, n_waiting):
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
def link_tile(scores, i0, j0, low, high, vectors, threshold, parent, count, enough, waiting, n_waiting):
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
def flatten(parent):
    """Makes every entry its own root."""
    for i in range(parent.shape[0]):
        parent[i] = root_of(parent, i)


@numba.njit(cache=True, nogil=True)
def group_by_keys(offsets, keys, low, width, label):
    """label i64[N], each row itself, becomes the smallest row of its group; keys lie in [low, low + width)."""
    first = np.full(width, -1, np.int64)  # the first row that has each key
    for row in range(label.shape[0]):
        for p in range(offsets[row], offsets[row + 1]):
            key = keys[p] - low
            if first[key] < 0:
                first[key] = row
            else:
                unite(label, first[key], row)
    flatten(label)


@numba.njit(cache=True, nogil=True)
def span_of(keys):
    """The least and the greatest key."""
    low, high = keys[0], keys[0]
    for key in keys:
        low, high = min(low, key), max(high, key)
    return low, high


class JoinLeft(NamedTuple):
    """The left. stored: vectors; group: i64[N], or [0]; size: i32[N], distinct keywords of each row; offsets i64[N+1],
    words i32: the numbers of those that the right has too."""

    stored: Any
    group: Any
    size: Any
    offsets: Any
    words: Any


class JoinRight(NamedTuple):
    """The right. stored, group, size: as of the left; list_offsets i64[W+1], list_rows i32[T]: the rows that have each
    keyword, ascending."""

    stored: Any
    group: Any
    size: Any
    list_offsets: Any
    list_rows: Any


@numba.njit(cache=True, nogil=True)
def look_up(offsets, values, known, size, found_offsets, found):
    """Each list without repeats: size i32[N], its length; found i32[T], the places in `known` (ascending) of those that
    are there, from found_offsets i64[N+1] on."""
    n_found = 0
    for i in range(offsets.shape[0] - 1):
        own = np.sort(values[offsets[i] : offsets[i + 1]])
        size[i] = 0
        for p in range(own.shape[0]):
            if p > 0 and own[p] == own[p - 1]:
                continue
            size[i] += 1
            at = np.searchsorted(known, own[p])
            if at < known.shape[0] and known[at] == own[p]:
                found[n_found] = at
                n_found += 1
        found_offsets[i + 1] = n_found


@numba.njit(cache=True, nogil=True)
def first_from(rows, low, high, row):
    """The first place in [low, high) whose row is >= `row`, or high."""
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def count_overlaps(left, right, i, j0, overlap):
    """overlap i32[columns] = the number of keywords that row i of the left shares with each of the rows j0.. ."""
    overlap[:] = 0
    for p in range(left.offsets[i], left.offsets[i + 1]):
        end = right.list_offsets[left.words[p] + 1]
        at = first_from(right.list_rows, right.list_offsets[left.words[p]], end, j0)
        while at < end and right.list_rows[at] < j0 + overlap.shape[0]:
            overlap[right.list_rows[at] - j0] += 1
            at += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def join_tile(scores, i0, j0, left, right, slack, best, index):
    """Brings best f64[Nl] and index i64[Nl] of the rows i0.. up to date with the rows j0.. of the right.

    With o shared keywords of u in the union, the score of a pair is (o / u + dot) / 2. It can only reach `best` if
    o / u + score + slack >= 2 best, tested as (2 best - slack - score) u <= o; such pairs are computed exactly.
    Columns come in ascending order, so of equal scores the first stays.
    """
    n_columns = scores.shape[1]
    overlap, sizes = np.zeros(n_columns, np.int32), right.size[j0 : j0 + n_columns]
    for i in range(i0, i0 + scores.shape[0]):
        count_overlaps(left, right, i, j0, overlap)
        row, size = scores[i - i0], max(left.size[i], np.int32(1))  # two empty sets: 0 / 1
        for start in range(0, n_columns, JOIN_CHUNK):
            chunk, shared = row[start : start + JOIN_CHUNK], overlap[start : start + JOIN_CHUNK]
            other = sizes[start : start + JOIN_CHUNK]
            cut, hit = np.float32(2 * best[i] - slack), False
            for c in range(chunk.shape[0]):
                hit |= (cut - value(chunk[c])) * np.float32(size + other[c] - shared[c]) <= np.float32(shared[c])
            if not hit:
                continue
            for c in range(chunk.shape[0]):
                union, j = size + other[c] - shared[c], j0 + start + c
                if (np.float32(2 * best[i] - slack) - value(chunk[c])) * np.float32(union) > np.float32(shared[c]):
                    continue
                if left.group.shape[0] > 0 and left.group[i] == right.group[j]:
                    continue
                score = (shared[c] / union + exact_dot(left.stored[i], right.stored[j])) / 2
                if score > best[i]:
                    best[i], index[i] = score, j
