"""Plain torch reference of `minplus_relax`, for any device."""

from __future__ import annotations

import torch

from gpu_rag.types import CSR

UNREACHED = torch.iinfo(torch.int64).max


def minplus_relax(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Repeat rounds over all entries until nothing changes (a device checks every 32); see the package."""
    unseen = 1 if state.device.type == "cpu" else 32  # rounds between checks, which wait; extra rounds change nothing
    rows = torch.arange(csr.n, device=state.device)
    entered = torch.repeat_interleave(rows, csr.indptr.diff(), output_size=csr.m)
    into, paid, source = entered.expand(state.shape[0], -1), cost[entered] << 32, csr.indices.long()
    while True:
        before = state
        for _ in range(unseen):
            before, near = state, state[:, source]
            offered = torch.where(near == UNREACHED, UNREACHED, ((near >> 32 << 32) + paid) | source)
            state = state.scatter_reduce(1, into, offered, "amin")
        if torch.equal(before, state):
            return state
