"""The numba kernel of rank fusion: one question at a time, with its items in a hash table."""

from __future__ import annotations

import numba
import numpy as np

FREE = -1  # an entry of the table without an item


@numba.njit(cache=True, nogil=True)
def place_of(table, item):
    """The position of `item` in the table, or the free position for it. The table's length is a power of 2."""
    mask = np.uint64(table.shape[0] - 1)
    place = (np.uint64(item) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & mask
    while table[place] != FREE and table[place] != item:
        place = (place + np.uint64(1)) & mask
    return place


@numba.njit(cache=True, nogil=True)
def fuse_rows(ids, terms, origin, out_ids, out_scores):
    """Fuse the rankings of each row of ids [B, W]: column w is an entry of ranking origin[w] and adds terms[w], f64.

    Writes the first k of each row by (-score, id) to out_ids i32[B, k] and out_scores f32[B, k], which are filled with
    padding before. Returns False if an id is below -1.
    """
    n_columns, length = ids.shape[1], 4
    while length < 2 * n_columns:
        length *= 2
    table, total, last = np.empty(length, np.int64), np.empty(length), np.empty(length, np.int64)
    taken, keys = np.empty(n_columns, np.int64), np.empty(n_columns, np.int64)
    for b in range(ids.shape[0]):
        table[:] = FREE
        n_taken = 0
        for w in range(n_columns):
            item = np.int64(ids[b, w])
            if item < 0:
                if item < -1:
                    return False
                continue
            place = place_of(table, item)
            if table[place] == FREE:
                table[place], total[place], last[place] = item, terms[w], origin[w]
                taken[n_taken] = place
                n_taken += 1
            elif last[place] != origin[w]:  # only the first rank of an item in a ranking counts
                total[place] += terms[w]
                last[place] = origin[w]
        for t in range(n_taken):  # scores are not negative, so their bits rise with them
            bits = np.int64(np.float32(total[taken[t]]).view(np.int32))
            keys[t] = (np.int64(0x7FFFFFFF) - bits) << 32 | table[taken[t]]
        best = np.sort(keys[:n_taken])
        for t in range(min(n_taken, out_ids.shape[1])):
            out_ids[b, t] = np.int32(best[t] & 0xFFFFFFFF)
            out_scores[b, t] = np.int32(0x7FFFFFFF - (best[t] >> 32)).view(np.float32)
    return True
