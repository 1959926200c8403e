"""The numba kernel of `nearest` on tiles of rough scores: f32, or bf16 given as its bits in i16.

numba's cache of a kernel is renewed when the kernel's file changes: after a change of `score_of`, `sink` or `value`
touch this file too.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpu_rag_kernels.dots.numba import value
from gpu_rag_kernels.nearest.numba import NOBODY, score_of, sink

CHUNK = 32  # rough scores that are looked at together before any is looked at alone


@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def find_peaks(row: Any, peaks: Any) -> None:
    """peaks f32[chunks] = the largest of every CHUNK rough scores, which are finite."""
    whole = row.shape[0] // CHUNK
    for p in range(whole):
        chunk = row[p * CHUNK : (p + 1) * CHUNK]
        peak = value(chunk[0])
        for c in range(1, CHUNK):
            peak = max(peak, value(chunk[c]))
        peaks[p] = peak
    if whole < peaks.shape[0]:
        peak = value(row[whole * CHUNK])
        for c in range(whole * CHUNK + 1, row.shape[0]):
            peak = max(peak, value(row[c]))
        peaks[whole] = peak


@numba.njit(cache=True, nogil=True)
def cut_of(worst: Any, slack: Any, relative: Any) -> Any:
    """The least rough score f32 of a row whose score is `worst`: `slack` less, and for rounding `relative` of that."""
    least = worst - slack
    return np.float32(least - abs(least) * relative)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def worst_of(row: Any, peaks: Any, k: Any, slack: Any, relative: Any) -> Any:
    """A bound that k of these rows reach, from rough scores alone; -inf where there are fewer. Of many chunks the peaks
    are enough: the k-th largest of them is hardly lower."""
    if row.shape[0] < k:
        return -np.inf
    best, ids, few = np.full(k, -np.inf, np.float32), np.full(k, NOBODY, np.int32), peaks.shape[0] < 2 * k
    for p in range(peaks.shape[0]):
        if not peaks[p] > best[0]:
            continue
        if not few:
            sink(best, ids, k, peaks[p], np.int32(p))
            continue
        for c in range(p * CHUNK, min((p + 1) * CHUNK, row.shape[0])):
            if value(row[c]) > best[0]:
                sink(best, ids, k, value(row[c]), np.int32(c))
    least = np.float64(best[0])
    bound = least - abs(least) * relative - slack
    return bound if bound > -np.inf else -np.inf  # not NaN, where both are infinite


@numba.njit(cache=True, nogil=True, error_model="numpy")
def search_tile(
    tile: Any, j0: Any, slack: Any, relative: Any, queries: Any, rows: Any, scores: Any, ids: Any
) -> None:  # fmt: skip
    """Brings the heaps of queries f64[B, D] up to date with one tile of rough scores [b, j - j0].

    A row is surely not among the best where its rough score is below `cut_of` the worst of the heap; others are scored.
    Without a heap yet, the peaks of chunks tell what k rows reach.
    """
    k, peaks = scores.shape[1], np.empty(-(-tile.shape[1] // CHUNK), np.float32)
    for b in range(queries.shape[0]):
        row, worst = tile[b], np.float64(scores[b, 0])
        if slack[b] < np.inf:
            find_peaks(row, peaks)
        else:
            peaks[:] = np.inf  # a rough score may be infinite or NaN: every row is scored
        if ids[b, 0] == NOBODY:
            worst = worst_of(row, peaks, k, slack[b], relative)
        cut = cut_of(worst, slack[b], relative)
        for p in range(peaks.shape[0]):
            if peaks[p] < cut:
                continue
            for c in range(p * CHUNK, min((p + 1) * CHUNK, row.shape[0])):
                if value(row[c]) < cut:
                    continue
                score = np.float32(score_of(queries[b], rows, j0 + c))
                if score > scores[b, 0]:
                    sink(scores[b], ids[b], k, score, np.int32(j0 + c))
                    if scores[b, 0] > worst:
                        worst = np.float64(scores[b, 0])
                        cut = cut_of(worst, slack[b], relative)
