"""The numba kernels of typed reachability: frontiers of one question after the other, marks instead of clearing."""

from __future__ import annotations

from typing import Any

import numba


@numba.njit(cache=True, nogil=True)
def lower_bound(values: Any, first: Any, last: Any, wanted: Any) -> Any:
    """The first p in [first, last) with values[p] >= wanted, last if there is none."""
    while first < last:
        middle = (first + last) // 2
        if values[middle] < wanted:
            first = middle + 1
        else:
            last = middle
    return first


@numba.njit(cache=True, nogil=True)
def step(
    indptr: Any, relations: Any, nodes: Any, relation: Any, front: Any, n_front: Any, mark: Any, stamp: Any,
    reached: Any, n_reached: Any,
) -> Any:  # fmt: skip
    """Adds to `reached` the nodes one edge of `relation` (any if -1) from `front`; a node with mark == stamp is there
    already. Returns how many are in `reached`."""
    for f in range(n_front):
        first, last = indptr[front[f]], indptr[front[f] + 1]
        if relation >= 0:
            first = lower_bound(relations, first, last, relation)
            last = lower_bound(relations, first, last, relation + 1)
        for e in range(first, last):
            node = nodes[e]
            if mark[node] != stamp:
                mark[node] = stamp
                reached[n_reached] = node
                n_reached += 1
    return n_reached


@numba.njit(cache=True, nogil=True)
def walk(
    graph: Any, starts: Any, first: Any, last: Any, relations: Any, directions: Any, step_first: Any, step_last: Any,
    mark: Any, stamp: Any, front: Any, reached: Any,
) -> Any:  # fmt: skip
    """One question: its starts first..last, its steps step_first..step_last. graph: the six arrays of a TypedGraph.

    mark: i64[N], all below `stamp`; front, reached: i32[N]. Returns (number of nodes, stamp after, whether they are
    in `front`): the nodes are in ascending order.
    """
    n_front = 0
    for s in range(first, last):
        if mark[starts[s]] != stamp:
            mark[starts[s]] = stamp
            front[n_front] = starts[s]
            n_front += 1
    for k in range(step_first, step_last):
        stamp += 1
        n_reached = 0
        if directions[k] & 1:
            n_reached = step(
                graph[0], graph[1], graph[2], relations[k], front, n_front, mark, stamp, reached, n_reached
            )
        if directions[k] & 2:
            n_reached = step(
                graph[3], graph[4], graph[5], relations[k], front, n_front, mark, stamp, reached, n_reached
            )
        front, reached, n_front = reached, front, n_reached
    if n_front > mark.shape[0] // 16:
        n_front = 0
        for node in range(mark.shape[0]):
            if mark[node] == stamp:
                front[n_front] = node
                n_front += 1
    else:
        front[:n_front].sort()
    return n_front, stamp + 1, (step_last - step_first) % 2 == 0


@numba.njit(cache=True, nogil=True)
def intersect_lists(a: Any, a_offsets: Any, b: Any, b_offsets: Any, out: Any, ends: Any) -> None:
    """The values of each pair of ascending lists that are in both, one after the other into `out`; ends i64[B+1] gets
    their offsets."""
    n_out = 0
    ends[0] = 0
    for r in range(ends.shape[0] - 1):
        i, j = a_offsets[r], b_offsets[r]
        while i < a_offsets[r + 1] and j < b_offsets[r + 1]:
            if a[i] < b[j]:
                i += 1
            elif b[j] < a[i]:
                j += 1
            else:
                out[n_out] = a[i]
                n_out += 1
                i += 1
                j += 1
        ends[r + 1] = n_out
