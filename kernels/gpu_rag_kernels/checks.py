"""Compiled checks of inputs. One pass tells whether an input is valid, but not what is wrong with it."""

from __future__ import annotations

import numba
import numpy as np

MOST_TOPICS = 64  # `are_distinct` compares pair by pair, and only lists up to this length


@numba.njit(cache=True, nogil=True)
def are_lists(values, offsets, n):
    """Whether offsets i64[B+1] go from 0 to T and never fall, and every value is in [0, n). If n < 0, any value is
    allowed."""
    if offsets[0] != 0 or offsets[offsets.shape[0] - 1] != values.shape[0]:
        return False
    falls = False
    for b in range(offsets.shape[0] - 1):
        falls |= offsets[b] > offsets[b + 1]
    outside = False
    if n >= 0:
        for t in range(values.shape[0]):
            outside |= (values[t] < 0) | (values[t] >= n)
    return not (falls or outside)


@numba.njit(cache=True, nogil=True)
def are_sets(values, offsets, n):
    """Whether both `are_lists` and `are_ascending` hold."""
    return are_lists(values, offsets, n) and are_ascending(values, offsets)


@numba.njit(cache=True, nogil=True)
def are_ascending(values, offsets):
    """Whether each list (checked) is strictly ascending."""
    for b in range(offsets.shape[0] - 1):
        falls = False
        for t in range(offsets[b] + 1, offsets[b + 1]):
            falls |= values[t] <= values[t - 1]
        if falls:
            return False
    return True


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy", inline="always")
def square_of(row):
    """Approximate |row|^2."""
    total = np.float32(0)
    for k in range(row.shape[0]):
        total += row[k] * row[k]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def are_units(rows, least, most):
    """Whether every row of f32[N, D] has least <= |row|^2 <= most, or is all zero."""
    for i in range(rows.shape[0]):
        square = square_of(rows[i])
        if not least <= square <= most:
            for k in range(rows.shape[1]):
                if rows[i, k] != 0:
                    return False
    return True


@numba.njit(cache=True, nogil=True, error_model="numpy")
def shares(offsets, mass, share):
    """Write share f64[T]: each mass divided by the sum of its list. If mass is None, all are equal. offsets: checked.

    Returns whether every mass is finite and >= 0, and every non-empty list has a positive, finite sum.
    """
    sound = True
    for b in range(offsets.shape[0] - 1):
        total = 0.0
        for t in range(offsets[b], offsets[b + 1]):
            share[t] = 1.0 if mass is None else mass[t]
            sound &= (share[t] >= 0) & (share[t] < np.inf)
            total += share[t]
        sound &= (offsets[b] == offsets[b + 1]) | ((total > 0) & (total < np.inf))
        for t in range(offsets[b], offsets[b + 1]):
            share[t] /= total
    return sound


@numba.njit(cache=True, nogil=True)
def are_rows_of_blocks(indptr, indices, offsets):
    """Whether every row is strictly ascending and within its block. indptr, offsets: checked.

    A descent is an entry whose column is not above the column of the entry before it. All rows ascend if each descent
    is the first entry of a row, so it is enough to count. One loop runs over all entries, because a loop for each row
    would cost a mispredicted branch at its end.
    """
    n_descents = 0
    for e in range(1, indices.shape[0]):
        n_descents += indices[e] <= indices[e - 1]
    outside = False
    for b in range(offsets.shape[0] - 1):
        for i in range(offsets[b], offsets[b + 1]):
            first, last = indptr[i], indptr[i + 1]
            if first < last:
                outside |= (indices[first] < offsets[b]) | (indices[last - 1] >= offsets[b + 1])
                if first > 0:
                    n_descents -= indices[first] <= indices[first - 1]
    return not outside and n_descents == 0


@numba.njit(cache=True, nogil=True)
def is_matrix(indptr, indices, weight, offsets):
    """Whether every row is ascending and within its block, and the weights are finite and >= 0. offsets: checked."""
    n, m = indptr.shape[0] - 1, indices.shape[0]
    if indptr[0] != 0 or indptr[n] != m or offsets[offsets.shape[0] - 1] != n:
        return False
    if weight is not None and weight.shape[0] != m:
        return False
    falls = False
    for i in range(n):
        falls |= indptr[i] > indptr[i + 1]
    if falls or not are_rows_of_blocks(indptr, indices, offsets):
        return False
    broken = False
    if weight is not None:
        for e in range(m):
            broken |= not (weight[e] >= 0 and weight[e] < np.inf)
    return not broken


@numba.njit(cache=True, nogil=True)
def find_rows(global_ids, offsets, nodes, lists, rows):
    """Write rows i64[T]: the position of each node of list b in the ascending global_ids of block b. Returns whether
    all exist.

    offsets: of the blocks; lists: offsets of the nodes. Both are checked, and have equal length.
    """
    for b in range(lists.shape[0] - 1):
        for t in range(lists[b], lists[b + 1]):
            first, last = offsets[b], offsets[b + 1]
            while first < last:
                middle = (first + last) // 2
                if global_ids[middle] < nodes[t]:
                    first = middle + 1
                else:
                    last = middle
            if first == offsets[b + 1] or global_ids[first] != nodes[t]:
                return False
            rows[t] = first
    return True


@numba.njit(cache=True, nogil=True)
def are_paths(group, question, batch):
    """Whether groups never fall and every question is in [0, batch)."""
    sound = True
    for p in range(group.shape[0]):
        sound &= (question[p] >= 0) & (question[p] < batch)
        sound &= (p == 0) | (group[p] >= group[p - 1])
    return sound


@numba.njit(cache=True, nogil=True)
def are_of_kind(group, question, nodes, edges, offsets, per_topic, per_question, n, padded):
    """Whether `are_paths` holds and the paths fit a `Kind`, whose fields are the last arguments.

    Each group must belong to the question of its path. Nodes are in [0, n), edges are >= 0; if `padded`, both may be -1
    from some position on.
    """
    if not are_paths(group, question, offsets.shape[0] - 1):
        return False
    sound = True
    for p in range(group.shape[0]):
        b = question[p]
        sound &= group[p] >= per_topic * offsets[b] + per_question * b
        sound &= group[p] < per_topic * offsets[b + 1] + per_question * (b + 1)
        on = (nodes[p, 0] >= 0) & (nodes[p, 0] < n)
        sound &= on
        for h in range(edges.shape[1]):
            node, edge = nodes[p, h + 1], edges[p, h]
            on &= node >= 0
            there = on & (node < n) & (edge >= 0)
            sound &= there | (padded & (not on) & (node == -1) & (edge == -1))
    return sound


@numba.njit(cache=True, nogil=True)
def are_distinct(values, offsets):
    """Whether no list (checked) has a value twice. Also False if a list has more than MOST_TOPICS values."""
    for b in range(offsets.shape[0] - 1):
        if offsets[b + 1] - offsets[b] > MOST_TOPICS:
            return False
        for t in range(offsets[b], offsets[b + 1]):
            for before in range(offsets[b], t):
                if values[before] == values[t]:
                    return False
    return True


@numba.njit(cache=True, nogil=True)
def count_steps(indptr, nodes):
    """Sum of the degrees of the last nodes of paths (nodes: i32[P, h + 1]); -1 if a node is not in the graph."""
    total, sound, n = 0, True, indptr.shape[0] - 1
    for p in range(nodes.shape[0]):
        for h in range(nodes.shape[1]):
            sound &= (nodes[p, h] >= 0) & (nodes[p, h] < n)
        if not sound:
            return -1
        last = nodes[p, nodes.shape[1] - 1]
        total += indptr[last + 1] - indptr[last]
    return total
