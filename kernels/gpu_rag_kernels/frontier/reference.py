"""Reference of `ragged_gather_dot_topk` in torch, for any device."""

from __future__ import annotations

import numpy as np
import torch

from gpu_rag.types import Ragged, TopK
from gpu_rag_kernels.dispatch import installed, is_cpu, loaded

GRID = 2.0**24
_PART = 1 << 22  # components converted at a time: few enough for a processor's cache
_PART_GPU = 1 << 25  # the same on a GPU: enough to justify a launch


def gather_dots(queries: torch.Tensor, i: torch.Tensor, vectors: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """See `gpu_rag_kernels.frontier.gather_dots`. For unit rows every partial sum is exact in f64, so the loop that
    numba compiles for a CPU has the same bits as torch, in an eighth of its time."""
    if is_cpu(queries.device) and installed("numba"):
        sides = [rows.detach().numpy() for rows in (queries, vectors)]
        left, right = (rows.view(np.uint16) if rows.dtype == np.float16 else rows for rows in sides)
        dots = np.empty(len(i))
        loaded("gpu_rag_kernels.dots.numba").pair_dots(left, i.long().numpy(), right, j.long().numpy(), dots)
        return torch.from_numpy(dots)
    part = _PART if queries.device.type == "cpu" else _PART_GPU
    step = max(1, part // max(1, queries.shape[1]))
    sums = [
        (_whole(queries[i[p : p + step]]) * _whole(vectors[j[p : p + step]])).sum(1) for p in range(0, i.shape[0], step)
    ]
    return torch.cat(sums).mul_(GRID**-2) if sums else torch.zeros(0, dtype=torch.float64, device=queries.device)


def _whole(rows: torch.Tensor) -> torch.Tensor:
    """Components on the grid, times 2^24: f64."""
    return rows.double().mul_(GRID).round_()


def ragged_gather_dot_topk(
    queries: torch.Tensor, owner: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int, bias: torch.Tensor | None
) -> TopK:
    """See `gpu_rag_kernels.frontier`."""
    batch = lists.batch
    rows = torch.arange(batch, device=queries.device)
    of_list = torch.repeat_interleave(rows, lists.offsets.diff(), output_size=lists.values.shape[0])
    dots = gather_dots(queries, owner[of_list], vectors, lists.values)
    scores = (dots if bias is None else dots + bias).float()
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.argsort(of_list[order], stable=True)]
    rank = torch.arange(of_list.shape[0], device=of_list.device) - lists.offsets[of_list]
    ids = torch.full((batch, k), -1, dtype=torch.int32, device=queries.device)
    best = torch.full((batch, k), -torch.inf, device=queries.device)
    kept = (rank < k).nonzero()[:, 0]
    ids[of_list[kept], rank[kept]] = (order - lists.offsets[of_list])[kept].int()
    best[of_list[kept], rank[kept]] = scores[order[kept]]
    return TopK(ids, best)
