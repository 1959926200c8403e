"""Graphs over [nodes | passages] with the edges of titles, as files that hold only what cannot be computed.

Most weights are 1, and a row begins where the last one ends. So a file has the number of entries of each row, all
columns, and the weights that are not 1. The parts of a graph without titles are computed when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpu_rag.index.tables import narrow, starts_of
from gpu_rag.index.titles import TITLE_WEIGHT
from gpu_rag.types import CSR

STORED = ("counts", "indices", "gaps", "weights")
_ROWS = 4096  # rows of the graph at a time: bounds memory


def stored(indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of the file of a CSR: counts u8|u16|u32[N], entries of each row; indices i32[E]; weights f32[W], those
    that are not 1, in order; gaps u8|u16|u32|u64[W], the distance of each from the one before; of the first, from 0.
    Memory: an additional byte an entry, 12 a node, and 20 a weight."""
    places = np.flatnonzero(weight != 1)
    weights = np.asarray(weight[places], np.float32)
    places[1:] -= places[:-1]  # NumPy copies what overlaps
    return dict(zip(STORED, (narrow(np.diff(indptr)), indices, narrow(places), weights)))


def walk_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """{"indptr" i64[N + 1], "indices" i32[E], "weight" f32[E], "degree" f64[N]} of a file: a CSR and the sums of its
    rows. Memory: 4 bytes an entry and 16 a node, and for a while 24 a weight; the columns stay mapped."""
    counts, indices, gaps, weights = (arrays[name] for name in STORED)
    places = gaps.cumsum(dtype=np.int64)
    indptr, weight = starts_of(counts), np.ones(len(indices), np.float32)
    weight[places] = weights
    row = np.searchsorted(indptr, places, "right")
    row -= 1
    del places
    # f32 minus 1 is exact in f64, and so is the sum of weights of at least 2^-20
    degree = counts.astype(np.float64) + np.bincount(row, np.subtract(weights, 1, dtype=np.float64), len(counts))
    return {"indptr": indptr, "indices": indices, "weight": weight, "degree": degree}


def host_arrays(csr: CSR) -> dict[str, np.ndarray]:
    """{"indptr", "indices", "weight"} of a CSR with weights, not copied from a CPU."""
    return {name: getattr(csr, name).cpu().numpy() for name in ("indptr", "indices", "weight")}


def relation_parts(walk: Mapping[str, np.ndarray], first: int) -> dict[str, np.ndarray]:
    """Parts of the graph over [entities | relations | passages]. indptr, indices: the adjacency of [entities |
    relations]; offsets, values: the passages of each of these nodes. first: the node of passage 0."""
    indptr, indices = chosen_entries(walk, first, lambda column, _: column < first)
    offsets, nodes = chosen_entries(walk, first, lambda column, weight: (column >= first) & (weight != TITLE_WEIGHT))
    return {"indptr": indptr, "indices": indices, "offsets": offsets, "values": nodes - np.int32(first)}


def chosen_entries(
    walk: Mapping[str, np.ndarray], n: int, chosen: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(indptr i64[n + 1], indices i32) of the entries of the first n rows where chosen(columns, weights) is True."""
    counts, parts = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
    for start in range(0, n, _ROWS):
        ends = walk["indptr"][start : min(start + _ROWS, n) + 1]
        columns, weights = (walk[name][ends[0] : ends[-1]] for name in ("indices", "weight"))
        mask = chosen(columns, weights)
        counts.append(np.diff(np.append(0, np.cumsum(mask))[ends - ends[0]]))
        parts.append(columns[mask])
    return np.cumsum(np.concatenate(counts)), np.concatenate(parts)
