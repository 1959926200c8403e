"""Group rows: density clusters of unit vectors (DBSCAN), and rows that share a key."""

from __future__ import annotations

import numpy as np
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.dots import check_unit_rows, exact_dots, products, products_slack
from gpu_rag.graph.common.segments import are_first
from gpu_rag.graph.components import merge_labels
from gpu_rag.graph.memory import check_memory
from gpu_rag.graph.ragged import check_ragged, row_of_value
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

__all__ = ["exact_groups", "radius_clusters"]

TILE = 2048  # rows and columns of a tile of scores
GPU_TILE = 8192  # the same on a GPU; larger, because the host waits three times per tile
CACHED_TILE = 1024  # the same for numba; a tile in bf16 stays in a cache of 2 MB
SETTLE_AT = 1 << 20  # torch: test the waiting pairs again after this many new pairs


def radius_clusters(
    vectors: torch.Tensor, eps: float, min_samples: int = 2, *, implementation: str = "auto"
) -> torch.Tensor:
    """DBSCAN by cosine distance (Ester, Kriegel, Sander and Xu, 1996): i64[N], the cluster of each row, -1 for noise.

    Rows i and j are neighbours if 1 - v_i . v_j <= eps, computed as v_i . v_j >= 1 - eps in f64; a row is its own
    neighbour. A core row has at least `min_samples` neighbours. Clusters are the connected components of core rows. A
    border row (not core, with a core neighbour) joins the touching cluster whose smallest core row is smallest; other
    rows are noise. scikit-learn's DBSCAN grows its clusters in ascending order of that row, and the first cluster that
    reaches a border row keeps it: the partition is the same, only the labels differ. Here a label is the smallest row
    of its cluster, including border rows. With min_samples <= 2 there are no border rows.

    vectors: f16 or f32[N, D], unit rows (within 1 %) or rows of zeros; eps in [0, 2]; min_samples >= 1.
    implementation: numba | torch | auto. Dot products near the threshold are exact (see `dots`), so the result is the
    same in every implementation and on every device. An eps below 1e-5 is less than the rounding of stored unit rows.
    Time: N^2 D multiply-adds, each pair once. Additional memory: 64 N bytes, a tile of scores, a copy
    in bf16 if the CPU multiplies in bf16, and at most 16 N (min_samples - 2) bytes for pairs that wait until their rows
    are core. The list of all neighbours is never stored. Raises BadInput, UsageError, MissingBackend.

    Example: unit vectors at 0, 10, 90 and 95 degrees with eps = 0.02 (11.5 degrees) get the labels [0, 0, 2, 2].
    """
    check_unit_rows(vectors, "vectors")
    if not 0 <= eps <= 2:
        raise BadInput("eps is out of range", given=eps, expected="a cosine distance, 0 <= eps <= 2")
    if min_samples < 1:
        raise BadInput("min_samples is out of range", given=min_samples, expected=">= 1")
    if vectors.shape[0] >= 2**31:
        raise BadInput("too many vectors", given=vectors.shape[0], expected="fewer than 2^31")
    chosen = pick_implementation(vectors.device, implementation, "radius_clusters")
    vectors, min_samples = vectors.detach(), min(min_samples, vectors.shape[0] + 1)  # N + 1: no row is core
    check_memory(64 * vectors.shape[0], vectors.device, "labels and counts", "cluster a part at a time")
    if chosen == "numba":
        return clusters_by_numba(vectors, 1 - eps, min_samples, min(TILE, CACHED_TILE))
    return _clusters_by_torch(vectors, 1 - eps, min_samples)


def _clusters_by_torch(vectors: torch.Tensor, threshold: float, min_samples: int) -> torch.Tensor:
    """`radius_clusters` on any device: count links by tile, merge pairs of two core rows, let the other pairs wait."""
    n, device = vectors.shape[0], vectors.device
    label, count = torch.arange(n, device=device), torch.zeros(n, dtype=torch.int64, device=device)
    waiting, settled = torch.zeros(2, 0, dtype=torch.int64, device=device), 0
    size = TILE if device.type == "cpu" else GPU_TILE
    starts = range(0, n, size)
    for i0, j0 in ((i, j) for i in starts for j in starts if i <= j):
        pairs = _linked_pairs(vectors, i0, j0, size, threshold)
        if pairs.shape[1]:
            count.index_add_(0, pairs.flatten(), torch.ones_like(pairs).flatten())
            waiting = torch.cat([waiting, pairs], 1)
        last = i0 + size >= n and j0 + size >= n
        if last or waiting.shape[1] > settled + SETTLE_AT:
            core = count >= min_samples - 1
            ready = core[waiting[0]] & core[waiting[1]]
            label = merge_labels(label, *waiting[:, ready.nonzero()[:, 0]])
            waiting = waiting[:, (~ready).nonzero()[:, 0]]
            settled = waiting.shape[1]
    return labels_of(label, count >= min_samples - 1, waiting)


def clusters_by_numba(
    vectors: torch.Tensor, threshold: float, min_samples: int, tile: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`radius_clusters` of checked vectors on the CPU: torch computes the products, numba scans the tiles. Two rows are
    neighbours if their dot product is >= threshold. dtype: f32 or bf16, for the products; None for the fastest."""
    from gpu_rag_kernels.dots.numba import flatten, link_tile, settle

    from gpu_rag.graph.common import low_precision
    from gpu_rag.graph.common.arrays import component_bits, score_bits

    n, dtype = vectors.shape[0], dtype or low_precision.fastest_dtype()
    kept = low_precision.low_precision_rows(vectors, dtype) if dtype == torch.bfloat16 else None

    def rows(first: int) -> low_precision.LowPrecision:
        if kept is None:
            return low_precision.low_precision_rows(vectors[first : first + tile], dtype)
        return kept.part(first, first + tile)

    bits = component_bits(vectors)
    parent, count, enough = np.arange(n, dtype=np.int32), np.zeros(n, np.int32), min_samples - 1
    space = min(2 * n * max(0, min_samples - 2), n * (n - 1) // 2)  # the second number counts all pairs
    waiting, n_waiting = np.zeros((space + 64, 2), np.int32), 0
    buffer = torch.empty(min(n, tile) ** 2, dtype=dtype)
    for i0 in range(0, n, tile):
        left = rows(i0)
        for j0 in range(i0, n, tile):
            right = rows(j0)
            scores, slack = low_precision.products_of(left, right, buffer)
            low, high = np.float32(threshold - slack), np.float32(threshold + slack)
            n_waiting = link_tile(
                score_bits(scores), i0, j0, low, high, bits, threshold, parent, count, enough, waiting, n_waiting
            )
    n_waiting = settle(parent, count, enough, waiting, n_waiting)
    flatten(parent)
    links = torch.from_numpy(waiting[:n_waiting].astype(np.int64)).T
    return labels_of(torch.from_numpy(parent).long(), torch.from_numpy(count >= enough), links)


def _linked_pairs(vectors: torch.Tensor, i0: int, j0: int, size: int, threshold: float) -> torch.Tensor:
    """Pairs i < j in one tile with a dot product >= threshold: i64[2, P]."""
    slack, scores = products_slack(vectors), products(vectors[i0 : i0 + size], vectors[j0 : j0 + size])
    if i0 == j0:
        scores = torch.where(torch.ones_like(scores, dtype=torch.bool).triu_(1), scores, -torch.inf)
    pairs = (scores >= threshold - slack).nonzero()
    approx = scores[pairs[:, 0], pairs[:, 1]]
    i, j = pairs[:, 0] + i0, pairs[:, 1] + j0
    unsure = (approx <= threshold + slack).nonzero()[:, 0]
    near = torch.ones_like(i, dtype=torch.bool)
    near[unsure] = exact_dots(vectors, i[unsure], vectors, j[unsure]) >= threshold
    kept = near.nonzero()[:, 0]
    return torch.stack([i[kept], j[kept]])


def labels_of(root: torch.Tensor, core: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
    """Cluster labels: i64[N].

    root: i64[N], for each core row the smallest core row of its component; core: bool[N]; links: i64[2, P], every
    linked pair with exactly one core row (other pairs change nothing).
    """
    n = root.shape[0]
    cluster = torch.where(core, root, n)
    for a, b in ((links[0], links[1]), (links[1], links[0])):
        border = core[a] & ~core[b]  # other pairs write N, which changes nothing
        cluster.scatter_reduce_(0, b, torch.where(border, root[a], n), "amin")
    rows = torch.arange(n, device=root.device)
    smallest = torch.full((n + 1,), n, device=root.device).scatter_reduce_(0, cluster, rows, "amin")
    return torch.where(cluster < n, smallest[cluster], -1)


def exact_groups(keys: Ragged) -> torch.Tensor:
    """Groups of rows that share a key, directly or through other rows: i64[N], the smallest row of each row's group.

    keys: Ragged of i32/i64, the keys of N rows, in any order, repeats allowed. A row without keys is its own group. The
    groups are the connected components of the graph that joins rows to their keys. Time O(T log T), memory O(T + N).
    Raises BadInput.

    Example: keys [[7, 8], [5], [9, 8], [9]] give [0, 1, 0, 0].
    """
    check_ragged(keys, "keys")
    values, order = torch.sort(keys.values)
    rows = row_of_value(keys)[order]
    run = are_first(values)
    place = torch.arange(run.shape[0], device=run.device)
    first = rows[torch.where(run, place, 0).cummax(0).values]  # for each key, one row that has it
    return merge_labels(torch.arange(keys.batch, device=values.device), first, rows)
