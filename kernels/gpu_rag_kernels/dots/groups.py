"""The numba kernel of grouping by keys."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpu_rag_kernels.dots.numba import flatten, unite


@numba.njit(cache=True, nogil=True)
def group_by_keys(offsets: Any, keys: Any, low: Any, width: Any, label: Any) -> None:
    """label i64[N], each row itself, becomes the smallest row of its group; keys lie in [low, low + width)."""
    first = np.full(width, -1, np.int64)  # the first row that has each key
    for row in range(label.shape[0]):
        for p in range(offsets[row], offsets[row + 1]):
            key = keys[p] - low
            if first[key] < 0:
                first[key] = row
            else:
                unite(label, first[key], row)
    flatten(label)


@numba.njit(cache=True, nogil=True)
def span_of(keys: Any) -> Any:
    """The least and the greatest key."""
    low, high = keys[0], keys[0]
    for key in keys:
        low, high = min(low, key), max(high, key)
    return low, high
