"""Plain torch reference of `ragged_gather_dot_topk`, for any device."""

from __future__ import annotations

import torch

from gpu_rag.types import Ragged, TopK

_PART = 1 << 22  # components that are gathered at a time


def ragged_gather_dot_topk(queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int) -> TopK:
    """See `gpu_rag_kernels.ragged_gather_dot_topk`."""
    batch = queries.shape[0]
    rows = torch.arange(batch, device=queries.device)
    owner = torch.repeat_interleave(rows, lists.offsets.diff(), output_size=lists.values.shape[0])
    step = max(1, _PART // max(1, queries.shape[1]))
    parts = [
        (vectors[lists.values[i : i + step].long()].float() * queries[owner[i : i + step]].float()).sum(1)
        for i in range(0, owner.shape[0], step)
    ]
    scores = torch.cat([queries.new_zeros(0, dtype=torch.float32), *parts])
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.argsort(owner[order], stable=True)]
    rank = torch.arange(owner.shape[0], device=owner.device) - lists.offsets[owner]
    ids = torch.full((batch, k), -1, dtype=torch.int32, device=queries.device)
    best = torch.full((batch, k), -torch.inf, device=queries.device)
    kept = rank < k
    ids[owner[kept], rank[kept]] = lists.values[order[kept]].int()
    best[owner[kept], rank[kept]] = scores[order[kept]]
    return TopK(ids, best)
