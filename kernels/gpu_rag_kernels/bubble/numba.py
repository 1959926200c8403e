"""The numba loops of bubble expansion: one heap for each question; trees are taken as events arrive, until there are
enough.

When the heap pops, a hole sinks to the bottom along the smaller child, chosen without a branch (no misprediction). The
last key then rises from there; mostly it stays. Functions that are called for every node are inlined: numba counts
references of every array argument, which costs as much as a few entries.

The first call on a machine waits for the compiler. So there are loops in place of NumPy's functions, of which
`concatenate` or `unique` takes seconds to compile; and a number that a loop changes starts as np.int64, since numba
compiles what it is passed to a second time for a literal.
"""

from __future__ import annotations

import numba
import numpy as np

ALONE = 2  # kind of a candidate, as in `bubble.events`; 0 a meeting, 1 inside a group
FAR = (1 << 31) - 1  # no path costs as much
ONE, TWO, FOUR, GROUP = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(15)
_NODE = (1 << 28) - 1  # a key is distance << 32 | node << 4 | group: 31, 28 and 4 bits
FIELDS = 6  # of an event: distance, node, group, node met inside the group or -1, groups whose paths make the tree,
# groups covered; events lie one after the other in i64[FIELDS * n]


@numba.njit(cache=True, nogil=True)
def grown(array):
    """A copy of the array, twice as long."""
    longer = np.empty(2 * array.shape[0], array.dtype)
    for i in range(array.shape[0]):
        longer[i] = array[i]
    return longer


@numba.njit(cache=True, nogil=True, inline="always")
def push(heap, size, key):
    """Add a key to heap i64[.., at least size + 1]."""
    place = np.uint64(size)
    while place > 0:
        above = (place - ONE) >> ONE
        if heap[above] <= key:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = key


@numba.njit(cache=True, nogil=True, inline="always")
def pop(heap, size):
    """Remove and return the least key of heap[:size], size > 0."""
    n = np.uint64(size) - ONE
    first, key, place = heap[0], heap[n], np.uint64(0)
    child = ONE
    while child + ONE < n:
        child += np.uint64(heap[child + ONE] < heap[child])
        heap[place] = heap[child]
        place = child
        child = place * TWO + ONE
    if child < n:
        heap[place] = heap[child]
        place = child
    push(heap, place, key)
    return first


@numba.njit(cache=True, nogil=True)
def sort(keys, n):
    """Sort keys[:n], ascending, by a heap in the same place."""
    for i in range(1, n):
        push(keys, i, keys[i])
    for size in range(n, 1, -1):
        keys[size - 1] = pop(keys, size)
    for i in range(n // 2):
        keys[i], keys[n - 1 - i] = keys[n - 1 - i], keys[i]


@numba.njit(cache=True, nogil=True)
def tree_of(events, e, pred, m, stamp, mark, tree):
    """Write the nodes of the tree of event e into tree i64[n], ascending; return their number. stamp: i64[n]."""
    v, u, arrived = events[FIELDS * e + 1], events[FIELDS * e + 3], events[FIELDS * e + 4]
    size = np.int64(0)
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
    sort(tree, size)
    return size


@numba.njit(cache=True, nogil=True)
def is_new(tree, size, rows, ends, count):
    """Whether tree[:size] differs from every rows[ends[c] : ends[c + 1]], c < count."""
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
def take(events, order, limit, m, state, rows, ends, kept, count):
    """Add the new trees of the events in `order`, up to `limit`; kept i64: the event of each tree."""
    pred, stamp, tree, marks = state[1], state[8], state[9], state[10]
    for e in order:
        if count == limit:
            break
        marks[0] += 1
        size = tree_of(events, e, pred, m, stamp, marks[0], tree)
        if not is_new(tree, size, rows, ends, count):
            continue
        while ends[count] + size > rows.shape[0]:
            rows = grown(rows)
        if count + 1 == ends.shape[0]:
            ends, kept = grown(ends), grown(kept)
        for i in range(size):
            rows[ends[count] + i] = tree[i]
        ends[count + 1] = ends[count] + size
        kept[count] = e
        count += 1
    return rows, ends, kept, count


@numba.njit(cache=True, nogil=True)
def by_cover(events, n_events):
    """The event numbers, by descending number of covered groups, then in order."""
    order = np.empty(n_events, np.int64)
    for e in range(n_events):
        covered, n_covered = events[FIELDS * e + 5], np.int64(0)
        while covered:
            covered &= covered - 1
            n_covered += 1
        order[e] = ((64 - n_covered) << 48) | e
    sort(order, n_events)
    for e in range(n_events):
        order[e] &= (1 << 48) - 1
    return order


@numba.njit(cache=True, nogil=True)
def alone(nodes, lo, bits):
    """Every anchor as its own candidate, in ascending order."""
    rows, n = nodes.copy(), np.int64(0)
    sort(rows, rows.shape[0])
    for i in range(rows.shape[0]):
        if i == 0 or rows[i] != rows[n - 1]:
            rows[n] = rows[i]
            n += 1
    ones, groups, kinds = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        ones[i], groups[i], kinds[i] = 1, bits[rows[i] - lo], ALONE
    return rows[:n], ones, groups, np.zeros(n, np.int64), kinds


@numba.njit(cache=True, nogil=True)
def space_for(n, m):
    """The initial state of blocks of up to n nodes and m groups: no bubble has reached anything.

    At node * m + group: dist, pred, root (1 + the number of the anchor), owner (the root once the place is popped,
    before that 0), on_path (groups with an anchor on the path); reached: the places in use. At node: bits (the groups
    of which it is an anchor), arrived (groups that have arrived), stamp (the last tree that contains it, counted by
    `marks`) and space for a tree.
    """
    dist, on_path = np.empty(n * m, np.int32), np.zeros(n * m, np.int32)
    for s in range(n * m):
        dist[s] = FAR
    pred, root, owner = np.empty(n * m, np.int32), np.empty(n * m, np.int32), np.zeros(n * m, np.int32)
    reached = np.empty(n * m + 1, np.int64)
    bits, arrived, stamp = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n, np.int64)
    tree, marks = np.empty(n, np.int64), np.zeros(1, np.int64)
    return dist, pred, root, owner, on_path, reached, bits, arrived, stamp, tree, marks


@numba.njit(cache=True, nogil=True)
def clear(state, m, n_reached):
    """Reset the state as `space_for` makes it; only reached places are written."""
    dist, _, _, owner, on_path, reached, bits, arrived, _, _, _ = state
    for i in range(n_reached):
        s = np.uint64(reached[i])
        v = s // np.uint64(m)
        dist[s], owner[s], on_path[s] = FAR, 0, 0
        bits[v], arrived[v] = 0, 0


@numba.njit(cache=True, nogil=True)
def seed(nodes, kinds, lo, m, state, heap):
    """Start the bubbles; return the number of distinct (node, group). heap: with space for them."""
    dist, pred, root, _, _, reached, bits, _, _, _, _ = state
    n_anchors = np.int64(0)
    for a in range(nodes.shape[0]):
        v, g = nodes[a] - lo, kinds[a]
        s = v * m + g
        if dist[s] == 0:
            continue
        dist[s], pred[s], root[s] = 0, v, n_anchors + 1
        bits[v] |= 1 << g
        reached[n_anchors] = s
        push(heap, n_anchors, (np.int64(v) << 4) | g)
        n_anchors += 1
    return n_anchors


@numba.njit(cache=True, nogil=True, inline="always")
def relax(indptr, indices, costs, lo, m, key, dist, pred, root, owner, reached, touched, heap, sizes, near):
    """Expand the bubble of the popped key along the entries of its node. Write `near`, as distance << 32 | node: the
    nodes that another anchor of the group reached before and whose pair of anchors is not in `touched`. touched: bool
    by pairs of roots, true if one is 0 or both are equal. sizes i64[3]: of heap, reached and near.

    heap and near have space for every entry: an array that could be replaced after each entry would need reference
    counts.
    """
    word, d, mu, base = np.uint64(key), key >> 32, np.uint64(m), np.uint64(lo)
    v, g = (word >> FOUR) & np.uint64(_NODE), word & GROUP
    here, size, n_reached, n_near = np.uint64(root[v * mu + g]), sizes[0], np.uint64(sizes[1]), 0
    e, last = np.uint64(indptr[base + v]), np.uint64(indptr[base + v + ONE])
    while e < last:
        row = np.uint64(indices[e])
        u = row - base
        t, paid = u * mu + g, d + costs[row]
        far = np.int64(dist[t])
        if paid < far:  # never true for a popped place
            reached[n_reached] = t
            n_reached += np.uint64(far == FAR)
            dist[t], pred[t], root[t] = paid, v, here
            push(heap, size, (paid << 32) | np.int64((u << FOUR) | g))
            size += 1
        elif not touched[here, np.uint64(owner[t])]:
            near[n_near] = (far << 32) | np.int64(u)
            n_near += 1
        e += ONE
    sizes[0], sizes[1], sizes[2] = size, n_reached, n_near


@numba.njit(cache=True, nogil=True, inline="always")
def meets(v, m, arrived, pred, bits):
    """Whether the meeting at v surely gives a new tree: v is an anchor, or groups came from different nodes."""
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


@numba.njit(cache=True, nogil=True, inline="always")
def note(events, row, d, v, g, u, arrived, covered):
    """Write an event at `row`; return the events, a longer copy if they were full."""
    place = FIELDS * row
    if place == events.shape[0]:
        events = grown(events)
    events[place], events[place + 1], events[place + 2] = d, v, g
    events[place + 3], events[place + 4], events[place + 5] = u, arrived, covered
    return events


@numba.njit(cache=True, nogil=True)
def touching(near, n_near, s, g, m, root, on_path, touched, events, n_events, d, v):
    """Add an event for each pair of anchors whose parts of bubble g first touch at v, by (distance, node)."""
    sort(near, n_near)
    for i in range(n_near):
        u = near[i] & _NODE
        t = u * m + g
        if not touched[root[t], root[s]]:
            touched[root[t], root[s]] = True
            touched[root[s], root[t]] = True
            events = note(events, n_events, d, v, g, u, 1 << g, on_path[s] | on_path[t])
            n_events += 1
    return events, n_events


@numba.njit(cache=True, nogil=True, inline="always")
def covered_by(v, m, arrived, on_path):
    """The groups with an anchor on the paths of the groups that have arrived at v."""
    covered = 0
    for k in range(m):
        if (arrived >> k) & 1:
            covered |= on_path[v * m + k]
    return covered


@numba.njit(cache=True, nogil=True)
def expand_block(indptr, indices, costs, lo, hi, nodes, kinds, limit, cover_first, state, heap):
    """The candidates of the block of rows lo..hi: their rows, sizes, groups, distances and kinds; and the heap, a
    longer copy if it was full. nodes: i64[A] rows of the anchors; kinds: i64[A] their groups; costs: i64, >= 1. state:
    from `space_for`, unchanged on return."""
    m = np.int64(1)
    for a in range(kinds.shape[0]):
        m = max(m, kinds[a] + 1)
    dist, pred, root, owner, on_path, reached, bits, arrived, _, _, _ = state
    near, kept = np.empty(16, np.int64), np.zeros(16, np.int64)
    rows, ends, count = np.empty(64, np.int64), np.zeros(16, np.int64), np.int64(0)
    events, n_events = np.empty(16 * FIELDS, np.int64), np.int64(0)
    while heap.shape[0] < nodes.shape[0]:
        heap = grown(heap)
    sizes = np.zeros(3, np.int64)
    sizes[0] = sizes[1] = seed(nodes, kinds, lo, m, state, heap)
    touched = np.zeros((sizes[0] + 1, sizes[0] + 1), np.bool_)  # pairs of roots
    for r in range(sizes[0] + 1):
        touched[r, r] = touched[r, 0] = True
    while sizes[0] > 0 and count < limit:
        key = pop(heap, sizes[0])
        sizes[0] -= 1
        d, v, g = key >> 32, (key >> 4) & _NODE, key & 15
        s, before = v * m + g, n_events
        if owner[s]:
            continue
        owner[s] = root[s]
        on_path[s] = bits[v] | on_path[pred[s] * m + g]
        arrived[v] |= 1 << g
        if meets(v, m, arrived[v], pred, bits):
            covered = covered_by(v, m, arrived[v], on_path)
            events = note(events, n_events, d, v, g, -1, arrived[v], covered)
            n_events += 1
        degree = indptr[lo + v + 1] - indptr[lo + v]
        while heap.shape[0] < sizes[0] + degree:
            heap = grown(heap)
        while near.shape[0] < degree:
            near = grown(near)
        relax(
            indptr, indices, costs, lo, m, key, dist, pred, root, owner, reached, touched, heap, sizes, near
        )  # fmt: skip
        if sizes[2]:
            events, n_events = touching(near, sizes[2], s, g, m, root, on_path, touched, events, n_events, d, v)
        if n_events > before and not cover_first:
            order = np.empty(n_events - before, np.int64)
            for e in range(before, n_events):
                order[e - before] = e
            rows, ends, kept, count = take(events, order, limit, m, state, rows, ends, kept, count)
    if cover_first:
        order = by_cover(events, n_events)
        rows, ends, kept, count = take(events, order, limit, m, state, rows, ends, kept, count)
    if count == 0:
        apart = alone(nodes, lo, bits)
        clear(state, m, sizes[1])
        return apart, heap
    clear(state, m, sizes[1])
    tree_sizes, covers = np.empty(count, np.int64), np.empty(count, np.int64)
    distances, inside = np.empty(count, np.int64), np.empty(count, np.int64)
    for c in range(count):
        place = FIELDS * kept[c]
        tree_sizes[c], covers[c], distances[c] = ends[c + 1] - ends[c], events[place + 5], events[place]
        inside[c] = events[place + 3] >= 0
    for i in range(ends[count]):
        rows[i] += lo
    return (rows[: ends[count]], tree_sizes, covers, distances, inside), heap


@numba.njit(cache=True, nogil=True)
def appended(array, size, values):
    """The array with `values` after array[:size]; a longer copy if they do not fit."""
    while size + values.shape[0] > array.shape[0]:
        array = grown(array)
    for i in range(values.shape[0]):
        array[size + i] = values[i]
    return array


@numba.njit(cache=True, nogil=True)
def expand_blocks(indptr, indices, costs, offsets, anchors, groups, bounds, first, last, limit, cover_first):
    """The fields of `Candidates` for the blocks first..last. Block b has the anchors bounds[b]..bounds[b + 1]."""
    counts = np.zeros(last - first, np.int64)
    rows, sizes = np.empty(64, np.int64), np.empty(16, np.int64)
    covered, distance, kind = np.empty(16, np.int64), np.empty(16, np.int64), np.empty(16, np.int64)
    n_rows, count, most_n, most_m = np.int64(0), np.int64(0), np.int64(0), np.int64(1)
    for b in range(first, last):
        most_n = max(most_n, offsets[b + 1] - offsets[b])
    for a in range(bounds[first], bounds[last]):
        most_m = max(most_m, groups[a] + 1)
    state, heap = space_for(most_n, most_m), np.empty(1024, np.int64)
    for b in range(first, last):
        own = slice(bounds[b], bounds[b + 1])
        block, heap = expand_block(
            indptr, indices, costs, offsets[b], offsets[b + 1], anchors[own], groups[own], limit, cover_first, state,
            heap,
        )  # fmt: skip
        rows, sizes = appended(rows, n_rows, block[0]), appended(sizes, count, block[1])
        covered, distance = appended(covered, count, block[2]), appended(distance, count, block[3])
        kind = appended(kind, count, block[4])
        counts[b - first] = block[1].shape[0]
        n_rows += block[0].shape[0]
        count += block[1].shape[0]
    return counts, rows[:n_rows], sizes[:count], covered[:count], distance[:count], kind[:count]
