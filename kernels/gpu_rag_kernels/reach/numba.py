"""Numba kernels of typed reachability, question by question: small frontiers are sorted, large ones marked."""

from __future__ import annotations

import numba
import numpy as np

from gpu_rag_kernels.dots.numba import lower_bound

FEW = 256  # maximum entries that a step sorts; a larger step marks the nodes, which takes N bytes


@numba.njit(cache=True, nogil=True)
def are_offsets(offsets, total):
    """Whether offsets i64[B+1] rise from 0 to `total` (never fall)."""
    size = offsets.shape[0]
    sound = size > 0 and offsets[0] == 0 and offsets[size - 1] == total
    for b in range(size - 1):
        sound &= offsets[b] <= offsets[b + 1]
    return sound


@numba.njit(cache=True, nogil=True)
def are_questions(starts, offsets, relations, at, directions, other_at, n, n_relations):
    """Whether these are three lists for each question, relations and directions with equal lengths: starts in [0, n),
    relations in [-1, n_relations), directions in [1, 3]."""
    if offsets.shape[0] != at.shape[0] or at.shape[0] != other_at.shape[0]:
        return False
    if relations.shape[0] != directions.shape[0]:
        return False
    sound = are_offsets(offsets, starts.shape[0]) and are_offsets(at, relations.shape[0])
    for b in range(at.shape[0]):
        sound &= at[b] == other_at[b]
    for s in range(starts.shape[0]):
        sound &= (starts[s] >= 0) & (starts[s] < n)
    for k in range(relations.shape[0]):
        sound &= (relations[k] >= -1) & (relations[k] < n_relations) & (directions[k] >= 1) & (directions[k] <= 3)
    return sound


@numba.njit(cache=True, nogil=True)
def along(side, node, relation):
    """The entries [first, last) of a node's edges of `relation` (-1: any). side: indptr, relations, nodes."""
    first, last = side[0][node], side[0][node + 1]
    if relation >= 0:
        first = lower_bound(side[1], first, last, relation)
        last = lower_bound(side[1], first, last, relation + 1)
    return first, last


@numba.njit(cache=True, nogil=True)
def step_of_few(graph, relation, directions, front, n_front, reached):
    """Write the nodes one edge of `relation` from `front`, ascending, each once; return their number, or -1 if there
    are more than FEW entries. graph: the out and the in side; directions: bits, 1 for out and 2 for in."""
    size = 0
    for bit in range(2):
        if not (directions >> bit) & 1:
            continue
        side = graph[0] if bit == 0 else graph[1]
        for f in range(n_front):
            first, last = along(side, front[f], relation)
            if size + last - first > FEW:
                return -1
            for e in range(first, last):
                reached[size] = side[2][e]
                size += 1
    return sorted_once(reached, size)


@numba.njit(cache=True, nogil=True)
def sorted_once(nodes, size):
    """Sort nodes[:size] and remove repeats; return the number left."""
    nodes[:size].sort()
    kept = 0
    for i in range(size):
        if kept == 0 or nodes[i] != nodes[kept - 1]:
            nodes[kept] = nodes[i]
            kept += 1
    return kept


@numba.njit(cache=True, nogil=True)
def step_of_many(graph, relation, directions, front, n_front, mark, reached):
    """`step_of_few` with nodes in any order, each once. mark: bool[N], all False before; then True if reached."""
    size = 0
    for bit in range(2):
        if not (directions >> bit) & 1:
            continue
        side = graph[0] if bit == 0 else graph[1]
        for f in range(n_front):
            first, last = along(side, np.uint32(front[f]), relation)
            for e in range(first, last):
                node = np.uint32(side[2][e])  # unsigned, so numba does not test for negative indices
                if not mark[node]:
                    mark[node] = True
                    reached[size] = node
                    size += 1
    return size


@numba.njit(cache=True, nogil=True)
def list_marked(mark, nodes, size, ascending):
    """Clear the marks of nodes[:size], and sort the nodes if `ascending`. Many nodes are read from the marks instead:
    this is faster and also sorts them, so that the next step reads memory in order."""
    if size > mark.shape[0] // 16:
        size = 0
        for node in range(mark.shape[0]):
            if mark[node]:
                mark[node] = False
                nodes[size] = node
                size += 1
        return
    for i in range(size):
        mark[nodes[i]] = False
    if ascending:
        nodes[:size].sort()


@numba.njit(cache=True, nogil=True)
def marks_soon(graph, starts, offsets, relations, directions, at):
    """Whether the first step from a start is too large for `step_of_few`, so that marks of nodes are needed."""
    for b in range(offsets.shape[0] - 1):
        if at[b] == at[b + 1]:
            continue
        for s in range(offsets[b], offsets[b + 1]):
            for bit in range(2):
                if (directions[at[b]] >> bit) & 1:
                    side = graph[0] if bit == 0 else graph[1]
                    first, last = along(side, starts[s], relations[at[b]])
                    if last - first > FEW:
                        return True
    return False


@numba.njit(cache=True, nogil=True)
def wide(nodes, size, space):
    """The array, or a copy of nodes[:size] with at least `space` elements if it has fewer."""
    if nodes.shape[0] >= space:
        return nodes
    more = np.empty(space, nodes.dtype)
    for i in range(size):
        more[i] = nodes[i]
    return more


@numba.njit(cache=True, nogil=True)
def walk_questions(graph, starts, offsets, relations, directions, at, first, last):
    """The results of the questions first..last as lists: nodes i32[T], ascending in each, and offsets i64[last - first
    + 1].

    graph: out_indptr, out_relation, out_node, and the same of the in side. Question b has the starts
    offsets[b]..offsets[b + 1] and the steps at[b]..at[b + 1]. O(N) scratch is made for the first step that needs it.
    """
    n = graph[0][0].shape[0] - 1
    front, reached = np.empty(FEW, np.int32), np.empty(FEW, np.int32)
    mark = np.zeros(0, np.bool_)
    nodes, n_found, ends = np.empty(4 * FEW, np.int32), np.int64(0), np.zeros(last - first + 1, np.int64)
    for b in range(first, last):
        n_front = offsets[b + 1] - offsets[b]
        front = wide(front, 0, n_front)
        for s in range(n_front):
            front[s] = starts[offsets[b] + s]
        n_front = sorted_once(front, n_front)
        for k in range(at[b], at[b + 1]):
            size = step_of_few(graph, relations[k], directions[k], front, n_front, reached)
            if size < 0:
                if mark.shape[0] == 0:
                    mark = np.zeros(n, np.bool_)
                reached = wide(reached, 0, n)
                size = step_of_many(graph, relations[k], directions[k], front, n_front, mark, reached)
                list_marked(mark, reached, size, k == at[b + 1] - 1)
            front, reached, n_front = reached, front, size
        if n_found + n_front > nodes.shape[0]:
            nodes = wide(nodes, n_found, max(2 * nodes.shape[0], n_found + n_front))
        for f in range(n_front):
            nodes[n_found + f] = front[f]
        n_found += n_front
        ends[b - first + 1] = n_found
    return nodes[:n_found].copy(), ends
