"""Plain torch reference of `minplus_relax`, for any device."""

from __future__ import annotations

import torch

from gpu_rag.types import CSR

UNREACHED = torch.iinfo(torch.int64).max


def minplus_relax(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Rounds over all entries until nothing changes. See `gpu_rag_kernels.bubble`."""
    rows = torch.arange(csr.n, device=state.device)
    entered = torch.repeat_interleave(rows, csr.indptr.diff(), output_size=csr.m)
    into, paid, source = entered.expand(state.shape[0], -1), cost[entered] << 32, csr.indices.long()
    while True:
        near = state[:, source]
        offered = torch.where(near == UNREACHED, UNREACHED, ((near >> 32 << 32) + paid) | source)
        relaxed = state.scatter_reduce(1, into, offered, "amin")
        if torch.equal(relaxed, state):
            return relaxed
        state = relaxed
