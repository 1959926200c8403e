"""The numba kernels of bubble expansion: one heap a question, trees taken as events come, until there are enough."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

FAR = 1 << 62
_NODE = (1 << 28) - 1  # a key is distance << 32 | node << 4 | group: 31, 28 and 4 bits
ALONE = 2  # kind of a candidate, as in `bubble_events`; 0 a meeting, 1 inside a group


@numba.njit(cache=True, nogil=True)
def push(heap: Any, size: Any, key: Any) -> Any:
    """Adds a key to the binary heap heap[:size]; returns it, larger if it was full."""
    if size == heap.shape[0]:
        heap = grown(heap)
    at = size
    while at > 0 and heap[(at - 1) >> 1] > key:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = key
    return heap


@numba.njit(cache=True, nogil=True)
def pop(heap: Any, size: Any) -> Any:
    """Removes and returns the least key of heap[:size], size > 0."""
    least, key, n, at = heap[0], heap[size - 1], size - 1, 0
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
    return least


@numba.njit(cache=True, nogil=True)
def grown(array: Any) -> Any:
    """The array with twice the room in its first axis."""
    return np.concatenate((array, np.empty_like(array)))


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
def seed(nodes: Any, kinds: Any, lo: Any, m: Any, dist: Any, pred: Any, root: Any, bits: Any, heap: Any) -> Any:
    """Starts the bubbles; returns the heap and how many different (node, group) there are."""
    n_anchors = 0
    for a in range(nodes.shape[0]):
        v, g = nodes[a] - lo, kinds[a]
        if dist[v * m + g] == 0:
            continue
        dist[v * m + g] = 0
        pred[v * m + g] = v
        root[v * m + g] = n_anchors
        bits[v] |= 1 << g
        heap = push(heap, n_anchors, (np.int64(v) << 4) | g)
        n_anchors += 1
    return heap, n_anchors


@numba.njit(cache=True, nogil=True)
def meets(v: Any, m: Any, arrived: Any, pred: Any, bits: Any) -> Any:
    """Whether the tree of the meeting at v is not one of an earlier event for certain: v is an anchor, or two of the
    groups that have arrived came from different nodes."""
    if arrived & (arrived - 1) == 0:
        return False
    if bits[v]:
        return True
    first = -1
    for k in range(m):
        if (arrived >> k) & 1:
            if first >= 0 and pred[v * m + k] != first:
                return True
            first = pred[v * m + k]
    return False


@numba.njit(cache=True, nogil=True)
def note(events: Any, at: Any, d: Any, v: Any, g: Any, u: Any, arrived: Any, covered: Any) -> Any:
    """Writes an event at row `at`; returns the events, longer if they were full."""
    if at == events.shape[0]:
        events = grown(events)
    events[at, 0], events[at, 1], events[at, 2] = d, v, g
    events[at, 3], events[at, 4], events[at, 5] = u, arrived, covered
    return events


@numba.njit(cache=True, nogil=True)
def touching(
    near: Any, n_near: Any, s: Any, g: Any, m: Any, root: Any, on_path: Any, touched: Any, events: Any, n_events: Any,
    d: Any, v: Any,
) -> Any:  # fmt: skip
    """Notes the pairs of anchors whose parts of bubble g touch at v for the first time, by (distance, node)."""
    near[:n_near].sort()
    for i in range(n_near):
        u = near[i] & _NODE
        t = u * m + g
        if not touched[root[t], root[s]]:
            touched[root[t], root[s]] = True
            touched[root[s], root[t]] = True
            events = note(events, n_events, d, v, g, u, 1 << g, on_path[s] | on_path[t])
            n_events += 1
    return events, n_events


@numba.njit(cache=True, nogil=True)
def take(
    events: Any, order: Any, limit: Any, pred: Any, m: Any, stamp: Any, tree: Any, rows: Any, ends: Any, kept: Any,
    count: Any,
) -> Any:  # fmt: skip
    """Adds the trees of the events `order` that are new, up to `limit`; kept i64: the event of each tree."""
    for e in order:
        if count == limit:
            break
        size = tree_of(events[e], pred, m, stamp, e + 1, tree)
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


@numba.njit(cache=True, nogil=True)
def expand_block(
    indptr: Any, indices: Any, costs: Any, lo: Any, hi: Any, nodes: Any, kinds: Any, limit: Any, cover_first: Any
) -> Any:  # fmt: skip
    """The candidates of the block of rows lo..hi: their rows, sizes, groups, distances and kinds. nodes: i64[A] rows of
    the anchors; kinds: i64[A] their groups; costs: i64, >= 1. The state of (node, group) is at node * m + group."""
    n, m = hi - lo, 1
    for a in range(kinds.shape[0]):
        m = max(m, kinds[a] + 1)
    dist, pred, root = np.full(n * m, FAR), np.zeros(n * m, np.int32), np.zeros(n * m, np.int32)
    popped, on_path = np.zeros(n * m, np.bool_), np.zeros(n * m, np.int32)
    bits, arrived, stamp = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n, np.int64)
    tree, near, kept = np.empty(n, np.int64), np.empty(16, np.int64), np.zeros(16, np.int64)
    rows, ends, count = np.empty(64, np.int64), np.zeros(16, np.int64), 0
    # columns: distance, node, group, node met inside the group or -1, groups whose paths make the tree, groups covered
    events, n_events = np.empty((16, 6), np.int64), 0
    heap, size = seed(nodes, kinds, lo, m, dist, pred, root, bits, np.empty(64, np.int64))
    touched = np.zeros((size, size), np.bool_)
    while size > 0 and count < limit:
        key = pop(heap, size)
        size -= 1
        d, v, g = key >> 32, (key >> 4) & _NODE, key & 15
        s, before, n_near = v * m + g, n_events, 0
        if popped[s]:
            continue
        popped[s] = True
        on_path[s] = bits[v] | on_path[pred[s] * m + g]
        arrived[v] |= 1 << g
        if meets(v, m, arrived[v], pred, bits):
            covered = 0
            for k in range(m):
                if (arrived[v] >> k) & 1:
                    covered |= on_path[v * m + k]
            events = note(events, n_events, d, v, g, -1, arrived[v], covered)
            n_events += 1
        for e in range(indptr[lo + v], indptr[lo + v + 1]):
            u, paid = indices[e] - lo, d + costs[indices[e]]
            t = u * m + g
            if popped[t]:
                if root[t] != root[s] and not touched[root[t], root[s]]:
                    if n_near == near.shape[0]:
                        near = grown(near)
                    near[n_near] = (dist[t] << 32) | u
                    n_near += 1
            elif paid < dist[t]:
                dist[t], pred[t], root[t] = paid, v, root[s]
                heap = push(heap, size, (paid << 32) | (np.int64(u) << 4) | g)
                size += 1
        events, n_events = touching(near, n_near, s, g, m, root, on_path, touched, events, n_events, d, v)
        if not cover_first:
            order = np.arange(before, n_events)
            rows, ends, kept, count = take(events, order, limit, pred, m, stamp, tree, rows, ends, kept, count)
    if cover_first:
        order = by_cover(events, n_events)
        rows, ends, kept, count = take(events, order, limit, pred, m, stamp, tree, rows, ends, kept, count)
    if count == 0:
        return alone(nodes, lo, bits)
    rows = rows[: ends[count]] + lo
    chosen = events[kept[:count]]
    kind = np.where(chosen[:, 3] >= 0, 1, 0)
    return rows, np.diff(ends[: count + 1]), chosen[:, 5].copy(), chosen[:, 0].copy(), kind


@numba.njit(cache=True, nogil=True)
def appended(array: Any, size: Any, values: Any) -> Any:
    """The array with `values` behind array[:size]; longer if they do not fit."""
    while size + values.shape[0] > array.shape[0]:
        array = grown(array)
    array[size : size + values.shape[0]] = values
    return array


@numba.njit(cache=True, nogil=True)
def expand_blocks(
    indptr: Any, indices: Any, costs: Any, offsets: Any, anchors: Any, groups: Any, at: Any, first: Any, last: Any,
    limit: Any, cover_first: Any,
) -> Any:  # fmt: skip
    """The candidates of the blocks first..last: the fields of `Found`. The anchors of block b: at[b]..at[b + 1]."""
    counts = np.zeros(last - first, np.int64)
    rows, sizes = np.empty(64, np.int64), np.empty(16, np.int64)
    covered, distance, kind = np.empty(16, np.int64), np.empty(16, np.int64), np.empty(16, np.int64)
    n_rows, count = 0, 0
    for b in range(first, last):
        own = slice(at[b], at[b + 1])
        found = expand_block(
            indptr, indices, costs, offsets[b], offsets[b + 1], anchors[own], groups[own], limit, cover_first
        )
        rows, sizes = appended(rows, n_rows, found[0]), appended(sizes, count, found[1])
        covered, distance = appended(covered, count, found[2]), appended(distance, count, found[3])
        kind = appended(kind, count, found[4])
        counts[b - first] = found[1].shape[0]
        n_rows += found[0].shape[0]
        count += found[1].shape[0]
    return counts, rows[:n_rows], sizes[:count], covered[:count], distance[:count], kind[:count]
