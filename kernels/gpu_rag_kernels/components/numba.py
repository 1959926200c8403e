"""The numba kernels of connected components: union-find over the rows of a matrix."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def root_of(parent, node):
    """The root of the tree of `node`, u32; every second node on the way is hung one level higher."""
    above = parent[node]
    while above != node:
        higher = parent[above]
        parent[node] = higher
        node, above = higher, parent[higher]
    return node


@numba.njit(cache=True, nogil=True)
def join_rows(indptr, indices, parent, label):
    """label i64[N] = the smallest node of each node's component. parent: u32[N], scratch.

    Every entry joins the trees of its row and its column under the smaller root. Roots are never larger than the nodes
    below them, so one pass from the smallest node on makes every tree flat.
    """
    for u in range(parent.shape[0]):
        parent[u] = u
    for u in range(parent.shape[0]):
        root = root_of(parent, np.uint32(u))
        for e in range(indptr[u], indptr[u + 1]):
            v = np.uint32(indices[e])
            if parent[v] == root:
                continue
            other = root_of(parent, v)
            if other < root:
                parent[root] = other
                root = other
            elif root < other:
                parent[other] = root
    for u in range(parent.shape[0]):
        parent[u] = parent[parent[u]]
        label[u] = parent[u]
