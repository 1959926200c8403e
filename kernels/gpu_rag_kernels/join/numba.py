"""The numba kernels of the join: the words of the left looked up, and tiles of rough scores scanned.

The exact dot product is that of `dots_kernels`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gpu_rag_kernels.dots.numba import exact_dot, value

CHUNK = 32  # scores that are looked at together before any is looked at alone


class JoinLeft(NamedTuple):
    """The left. raw: its vectors; group: i64[N], or [0]; size: i32[N], distinct keywords of each row; offsets i64[N+1],
    words i32: the numbers of those that the right has too."""

    raw: Any
    group: Any
    size: Any
    offsets: Any
    words: Any


class JoinRight(NamedTuple):
    """The right. raw, group, size: as of the left; list_offsets i64[W+1], list_rows i32[T]: the rows that have each
    keyword, ascending."""

    raw: Any
    group: Any
    size: Any
    list_offsets: Any
    list_rows: Any


@numba.njit(cache=True, nogil=True)
def look_up(offsets: Any, values: Any, known: Any, size: Any, found_offsets: Any, found: Any) -> None:
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
def first_from(rows: Any, low: Any, high: Any, row: Any) -> Any:
    """The first place in [low, high) whose row is >= `row`, or high."""
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def count_overlaps(left: Any, right: Any, i: Any, j0: Any, overlap: Any) -> None:
    """overlap i32[columns] = the number of keywords that row i of the left shares with each of the rows j0.. ."""
    overlap[:] = 0
    for p in range(left.offsets[i], left.offsets[i + 1]):
        end = right.list_offsets[left.words[p] + 1]
        at = first_from(right.list_rows, right.list_offsets[left.words[p]], end, j0)
        while at < end and right.list_rows[at] < j0 + overlap.shape[0]:
            overlap[right.list_rows[at] - j0] += 1
            at += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def join_tile(scores: Any, i0: Any, j0: Any, left: Any, right: Any, slack: Any, best: Any, index: Any) -> None:
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
        for start in range(0, n_columns, CHUNK):
            chunk, shared = row[start : start + CHUNK], overlap[start : start + CHUNK]
            other = sizes[start : start + CHUNK]
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
                score = (shared[c] / union + exact_dot(left.raw[i], right.raw[j])) / 2
                if score > best[i]:
                    best[i], index[i] = score, j
