"""Plain torch reference of `msbfs_or`, for any device."""

from __future__ import annotations

import torch

from gpu_rag.types import CSR


def msbfs_or(csr: CSR, front: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(fresh, new seen). See `gpu_rag_kernels.ego`.

    An entry accumulates itself and the next 1, 3, 7, .. entries of its row: a hub takes as many passes as its degree
    has bits.
    """
    degree = csr.indptr.diff()
    words = front[csr.indices.long()]
    place = torch.arange(csr.m, device=front.device)
    left = torch.repeat_interleave(csr.indptr[1:], degree, output_size=csr.m) - place  # in the row, from an entry on
    step, longest = 1, int(degree.max()) if csr.m else 0
    while step < longest:
        has_more = left[:-step, None] > step
        words[:-step] |= torch.where(has_more, words[step:], 0)
        step *= 2
    reached = torch.zeros_like(front)
    rows = degree.nonzero()[:, 0]
    reached[rows] = words[csr.indptr[rows]]
    fresh = reached & ~seen
    return fresh, seen | fresh
