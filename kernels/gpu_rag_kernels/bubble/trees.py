"""The trees of bubble expansion: from events to sets of nodes, each set once."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpu_rag_kernels.bubble.heap import grown

ALONE = 2  # kind of a candidate, as in `bubble_events`; 0 a meeting, 1 inside a group


@numba.njit(cache=True, nogil=True)
def tree_of(event: Any, pred: Any, m: Any, stamp: Any, mark: Any, tree: Any) -> Any:
    """Writes the nodes of an event's tree into tree i64[n], ascending; returns their number. stamp: i64[n]."""
    v, u, arrived = event[1], event[3], event[4]
    size = 0
    for k in range(m):
        if not (arrived >> k) & 1:
            continue
        for end in range(2 if u >= 0 else 1):
            node = u if end else v
            while True:
                if stamp[node] != mark:
                    stamp[node] = mark
                    tree[size] = node
                    size += 1
                before = pred[node * m + k]
                if before == node:
                    break
                node = before
    tree[:size].sort()
    return size


@numba.njit(cache=True, nogil=True)
def is_new(tree: Any, size: Any, rows: Any, ends: Any, count: Any) -> Any:
    """Whether tree[:size] differs from all rows[ends[c] : ends[c + 1]], c < count."""
    for c in range(count):
        if ends[c + 1] - ends[c] == size:
            same = True
            for i in range(size):
                if rows[ends[c] + i] != tree[i]:
                    same = False
                    break
            if same:
                return False
    return True


@numba.njit(cache=True, nogil=True)
def take(events: Any, order: Any, limit: Any, m: Any, state: Any, rows: Any, ends: Any, kept: Any, count: Any) -> Any:
    """Adds the trees of the events `order` that are new, up to `limit`; kept i64: the event of each tree."""
    pred, stamp, tree, marks = state[1], state[8], state[9], state[10]
    for e in order:
        if count == limit:
            break
        marks[0] += 1
        size = tree_of(events[e], pred, m, stamp, marks[0], tree)
        if not is_new(tree, size, rows, ends, count):
            continue
        while ends[count] + size > rows.shape[0]:
            rows = grown(rows)
        if count + 1 == ends.shape[0]:
            ends, kept = grown(ends), grown(kept)
        rows[ends[count] : ends[count] + size] = tree[:size]
        ends[count + 1] = ends[count] + size
        kept[count] = e
        count += 1
    return rows, ends, kept, count


@numba.njit(cache=True, nogil=True)
def by_cover(events: Any, n_events: Any) -> Any:
    """The numbers of the events, those that cover most groups first, otherwise in order."""
    missing = np.empty(n_events, np.int64)
    for e in range(n_events):
        covered, n_covered = events[e, 5], 0
        while covered:
            covered &= covered - 1
            n_covered += 1
        missing[e] = ((64 - n_covered) << 48) | e
    return np.argsort(missing)


@numba.njit(cache=True, nogil=True)
def alone(nodes: Any, lo: Any, bits: Any) -> Any:
    """Every anchor by itself, in ascending order."""
    rows = np.unique(nodes)
    n = rows.shape[0]
    groups = np.empty(n, np.int64)
    for i in range(n):
        groups[i] = bits[rows[i] - lo]
    return rows, np.ones(n, np.int64), groups, np.zeros(n, np.int64), np.full(n, ALONE)
