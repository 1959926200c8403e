"""Plain torch reference of `msbfs_or`, for any device."""

from __future__ import annotations

import torch

from gpu_rag.types import CSR


def msbfs_or(csr: CSR, front: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(fresh, seen after): the j-th entries of all rows together, for j = 0, 1, .. See `gpu_rag_kernels.msbfs_or`."""
    degree = csr.indptr.diff()
    reached = torch.zeros_like(front)
    for j in range(int(degree.max()) if csr.n else 0):
        rows = (degree > j).nonzero()[:, 0]
        reached[rows] |= front[csr.indices[csr.indptr[rows] + j].long()]
    fresh = reached & ~seen
    return fresh, seen | fresh
