"""The compiled checks of path search: one pass that says whether an input is sound, not what is wrong with it."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

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
