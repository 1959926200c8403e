"""`minplus_relax` in Triton: every node pulls the least offer of the nodes from which it can be entered.

A round reads one copy of the state and writes the other, so its result equals the reference's round, bit by bit. The
copies are stored by node, [N, M], so that the groups of a node are read together. Integer minima do not depend on
order. The only atomic is on the flags: every ROUNDS rounds the host reads from them whether anything changed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpu_rag.types import CSR
from gpu_rag_kernels.bubble.reference import UNREACHED
from gpu_rag_kernels.rows import packed

NODES = 8  # per program
ENTRIES = 8  # entries of each of these nodes, read together
MAX_GROUPS = 16  # per program
ROUNDS = 32  # rounds between checks of the flags by the host; a round after the fixpoint returns at once


@triton.jit(do_not_specialize=["n", "width"], do_not_specialize_on_alignment=["flags"])
def _round(
    indptr, indices, cost, state, relaxed, flags, n, width, unreached: tl.constexpr, n_nodes: tl.constexpr, n_entries:
    tl.constexpr, n_groups: tl.constexpr,
):  # fmt: skip
    """Run one round. flags: whether the previous round changed anything, and whether this one does."""
    if tl.load(flags) == 0:
        return  # then both copies are the fixpoint
    row = tl.program_id(0).to(tl.int64) * n_nodes + tl.arange(0, n_nodes)
    real = row < n
    first = tl.load(indptr + row, mask=real, other=0)
    last = tl.load(indptr + row + 1, mask=real, other=0)
    paid = tl.load(cost + row, mask=real, other=0) << 32
    group = tl.program_id(1) * n_groups + tl.arange(0, n_groups)
    kept = real[:, None] & (group < width)[None, :]
    at = row[:, None] * width + group[None, :]
    old = tl.load(state + at, mask=kept, other=unreached)
    least = old
    for step in range(0, tl.max(last - first, axis=0), n_entries):
        entry = first[:, None] + step + tl.arange(0, n_entries)[None, :]
        live = entry < last[:, None]
        node = tl.load(indices + entry, mask=live, other=0).to(tl.int64)
        place = state + node[:, :, None] * width + group[None, None, :]
        near = tl.load(place, mask=live[:, :, None] & (group < width)[None, None, :], other=unreached)
        offer = ((near >> 32 << 32) + paid[:, None, None]) | node[:, :, None]
        offer = tl.where(near == unreached, unreached, offer)
        least = tl.minimum(least, tl.min(offer, axis=1))
    tl.store(relaxed + at, least, mask=kept)
    if tl.max(tl.max((least != old).to(tl.int32), axis=1), axis=0) != 0:
        tl.atomic_max(flags + 1, 1)


def minplus_relax(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Compute the fixpoint. See `gpu_rag_kernels.bubble`."""
    if not state.numel():
        return state.clone()
    first = state.T.clone(memory_format=torch.contiguous_format)
    copies = [first, torch.empty_like(first)]
    csr, cost, width = packed(csr), cost.contiguous(), state.shape[0]
    n_groups = min(triton.next_power_of_2(width), MAX_GROUPS)
    grid = triton.cdiv(csr.n, NODES), triton.cdiv(width, n_groups)
    flags = torch.zeros(ROUNDS + 1, dtype=torch.int32, device=state.device)
    while True:
        flags.zero_()
        flags[0] = 1
        for done in range(ROUNDS):
            _round[grid](
                csr.indptr, csr.indices, cost, copies[0], copies[1], flags[done:], csr.n, width,
                unreached=UNREACHED, n_nodes=NODES, n_entries=ENTRIES, n_groups=n_groups,
            )  # fmt: skip
            copies.reverse()
        if not int(flags[ROUNDS]):
            return copies[0].T.contiguous()
