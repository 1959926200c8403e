"""`radius_clusters` on the CPU: products by torch, tiles scanned by numba."""

from __future__ import annotations

import numpy as np
import torch
from gpu_rag_kernels.dots.numba import flatten, link_tile, settle

from gpu_rag.graph.cluster import labels_of
from gpu_rag.graph.common.dots import Filter, filter_for
from gpu_rag.graph.common.low_precision import fastest_dtype
from gpu_rag.graph.common.uninitialised import raw_components, raw_scores


def clusters_by_numba(
    vectors: torch.Tensor, threshold: float, min_samples: int, tile: int, fast: Filter | None = None
) -> torch.Tensor:
    """`radius_clusters` of checked vectors; rows are neighbours when their dot product is >= threshold."""
    n = vectors.shape[0]
    fast = fast or filter_for(vectors, dtype=fastest_dtype())
    low, high = np.float32(threshold - fast.slack), np.float32(threshold + fast.slack)  # slack covers this rounding
    raw = raw_components(vectors)
    rows = vectors.to(fast.dtype) if fast.dtype == torch.bfloat16 else vectors
    parent, count, enough = np.arange(n, dtype=np.int32), np.zeros(n, np.int32), min_samples - 1
    room = min(2 * n * max(0, min_samples - 2), n * (n - 1) // 2)  # there are no more pairs
    waiting, n_waiting = np.zeros((room + 64, 2), np.int32), 0
    buffer = torch.empty(min(n, tile) ** 2, dtype=fast.dtype)
    for i0 in range(0, n, tile):
        left = rows[i0 : i0 + tile].to(fast.dtype)
        for j0 in range(i0, n, tile):
            right = rows[j0 : j0 + tile].to(fast.dtype)
            scores = buffer[: left.shape[0] * right.shape[0]].view(left.shape[0], right.shape[0])
            fast.product(left, right, scores)
            n_waiting = link_tile(
                raw_scores(scores), i0, j0, low, high, raw, threshold, parent, count, enough, waiting, n_waiting
            )
    n_waiting = settle(parent, count, enough, waiting, n_waiting)
    flatten(parent)
    links = torch.from_numpy(waiting[:n_waiting].astype(np.int64)).T
    return labels_of(torch.from_numpy(parent).long(), torch.from_numpy(count >= enough), links)
