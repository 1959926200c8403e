"""The numba kernels of path search: the steps that may be taken, and the sums that scores are made of."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_GRID = 2.0**22


@numba.njit(cache=True, nogil=True)
def steps(
    indptr: Any, indices: Any, nodes: Any, question: Any, topics: Any, offsets: Any, first: Any, last: Any,
    parent: Any, entry: Any,
) -> Any:  # fmt: skip
    """Every entry that a path of first..last may take, as (parent, entry) by (path, entry); returns how many.

    nodes: i32[P, h + 1]; topics, offsets: the topics of each question; parent, entry: i64, room for all entries.
    """
    at = 0
    for p in range(first, last):
        end, b = nodes[p, nodes.shape[1] - 1], question[p]
        for e in range(indptr[end], indptr[end + 1]):
            node, free = indices[e], True
            for h in range(nodes.shape[1]):
                free &= nodes[p, h] != node
            for t in range(offsets[b], offsets[b + 1]):
                free &= topics[t] != node
            parent[at], entry[at] = p, e  # kept only if `at` moves on
            at += free
    return at


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def add_row(total: Any, row: Any) -> None:
    """total f64[D] += row f32[D] in steps of the grid."""
    for d in range(total.shape[0]):
        total[d] += np.rint(np.float64(row[d]) * _GRID)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def products(total: Any, row: Any, query: Any) -> Any:
    """With s = total + row in steps of the grid: (query times s, s times s). Exact, so any order of summation."""
    dot, square = 0.0, 0.0
    for d in range(total.shape[0]):
        value = total[d] + np.rint(np.float64(row[d]) * _GRID)
        dot += query[d] * value
        square += value * value
    return dot, square


@numba.njit(cache=True, nogil=True)
def vector_sums(vectors: Any, edges: Any, queries: Any, question: Any, dot: Any, square: Any) -> None:
    """For each row of edges i64[P, W] (padded with -1), with s the sum of their vectors f32[M, D]: dot f64[P] = query
    f64[B, D] of its question times s, square f64[P] = s times s; 0 for a row without edges.

    Rows side by side mostly share all edges but the last, whose sum is kept.
    """
    total, kept = np.zeros(vectors.shape[1], np.float64), np.full(edges.shape[1], -1, np.int64)
    for p in range(edges.shape[0]):
        size = 0
        while size < edges.shape[1] and edges[p, size] >= 0:
            size += 1
        dot[p], square[p] = 0.0, 0.0
        if size == 0:
            continue
        same = True
        for h in range(edges.shape[1]):
            wanted = edges[p, h] if h < size - 1 else -1
            same &= kept[h] == wanted
            kept[h] = wanted
        if not same:
            total[:] = 0.0
            for h in range(size - 1):
                add_row(total, vectors[edges[p, h]])
        dot[p], square[p] = products(total, vectors[edges[p, size - 1]], queries[question[p]])
