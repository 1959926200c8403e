"""Compiled checks of inputs. One pass tells whether an input is valid, but not what is wrong with it."""

from __future__ import annotations

import numba


@numba.njit(cache=True, nogil=True)
def are_lists(values, offsets, n):
    """Whether offsets i64[B+1] rise from 0 to T without a fall, and values are in [0, n), or n < 0."""
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
