"""The compiled checks of path search: one pass that says whether an input is sound, not what is wrong with it."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpu_rag_kernels.checks.rows import are_lists

MOST_TOPICS = 64  # of a list that is looked through pair by pair


@numba.njit(cache=True, nogil=True)
def are_paths(group: Any, question: Any, batch: Any) -> Any:
    """Whether groups never fall, and every question is in [0, batch)."""
    sound = True
    for p in range(group.shape[0]):
        sound &= (question[p] >= 0) & (question[p] < batch)
        sound &= (p == 0) | (group[p] >= group[p - 1])
    return sound


@numba.njit(cache=True, nogil=True)
def are_of_kind(
    group: Any, question: Any, nodes: Any, edges: Any, offsets: Any, per_topic: Any, per_question: Any, n: Any,
    padded: Any,
) -> Any:  # fmt: skip
    """`are_paths`, and whether they are of a `Kind`, whose fields follow: the group is one of the question's; nodes
    are in [0, n) and edges >= 0, or both -1 from some place on if `padded`."""
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
def are_chains(values: Any, offsets: Any, n: Any, longest: Any, most: Any) -> Any:
    """`are_lists` of topics below n, and whether no path may be longer than `most` hops."""
    long = False
    for b in range(longest.shape[0]):
        long |= longest[b] > most
    return not long and are_lists(values, offsets, n)


@numba.njit(cache=True, nogil=True)
def are_distinct(values: Any, offsets: Any) -> Any:
    """Whether no value of the checked lists stands twice in its list; False also of a list that is too long to say."""
    for b in range(offsets.shape[0] - 1):
        if offsets[b + 1] - offsets[b] > MOST_TOPICS:
            return False
        for t in range(offsets[b], offsets[b + 1]):
            for before in range(offsets[b], t):
                if values[before] == values[t]:
                    return False
    return True


@numba.njit(cache=True, nogil=True)
def count_steps(indptr: Any, nodes: Any) -> Any:
    """The degrees at the ends of paths, nodes i32[P, h + 1], added up; -1 where a node is none of the graph."""
    total, sound, n = 0, True, indptr.shape[0] - 1
    for p in range(nodes.shape[0]):
        for h in range(nodes.shape[1]):
            sound &= (nodes[p, h] >= 0) & (nodes[p, h] < n)
        if not sound:
            return -1
        last = nodes[p, nodes.shape[1] - 1]
        total += indptr[last + 1] - indptr[last]
    return total


@numba.njit(cache=True, nogil=True)
def last_edge(edges: Any) -> Any:
    """The largest number in i32[P, W], -1 where there is none above."""
    most = np.int32(-1)
    for p in range(edges.shape[0]):
        for h in range(edges.shape[1]):
            most = max(most, edges[p, h])
    return most
