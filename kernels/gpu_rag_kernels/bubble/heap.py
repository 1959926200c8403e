"""The heap of bubble expansion. A hole sinks to the bottom by the lesser child, found without a branch that the
processor would have to guess, and the last key rises from there: mostly it stays where it is.

Functions that are called for every node are inlined: numba counts every array that is passed in and out, at the price
of a few entries.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

ONE, TWO = np.uint64(1), np.uint64(2)


@numba.njit(cache=True, nogil=True)
def grown(array: Any) -> Any:
    """The array with twice the room in its first axis."""
    return np.concatenate((array, np.empty_like(array)))


@numba.njit(cache=True, nogil=True, inline="always")
def push(heap: Any, size: Any, key: Any) -> None:
    """Adds a key to heap i64[.., size + 1 at least]."""
    at = np.uint64(size)
    while at > 0:
        above = (at - ONE) >> ONE
        if heap[above] <= key:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = key


@numba.njit(cache=True, nogil=True, inline="always")
def pop(heap: Any, size: Any) -> Any:
    """Removes and returns the least key of heap[:size], size > 0."""
    n = np.uint64(size) - ONE
    least, key, at = heap[0], heap[n], np.uint64(0)
    child = ONE
    while child + ONE < n:
        child += np.uint64(heap[child + ONE] < heap[child])
        heap[at] = heap[child]
        at = child
        child = at * TWO + ONE
    if child < n:
        heap[at] = heap[child]
        at = child
    push(heap, at, key)
    return least
