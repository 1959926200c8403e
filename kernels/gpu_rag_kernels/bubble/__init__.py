"""Least costs from several groups of nodes to every node, if entering a node costs a positive integer.

S[g, u] = min(S[g, u], min over entries v of row u of (dist(S[g, v]) + cost[u], v)), repeated until nothing changes. An
element packs distance << 32 | predecessor. So the least element has the least distance and, among equal distances, the
predecessor with the lowest id. UNREACHED: no path. Integer costs >= 1 give one fixpoint, in any order of work. At the
start S[g, i] = i for every node i of group g (distance 0, its own predecessor), else UNREACHED.

Example, the path 0 - 1 - 2, costs [5, 1, 2], one group {0}: the elements end as (0, 0), (1, 0), (3, 1).
"""

from __future__ import annotations

import torch

from gpu_rag.types import CSR
from gpu_rag_kernels.bubble.reference import UNREACHED
from gpu_rag_kernels.dispatch import kernel

__all__ = ["UNREACHED", "minplus_relax"]


def minplus_relax(csr: CSR, cost: torch.Tensor, state: torch.Tensor, *, implementation: str = "auto") -> torch.Tensor:
    """The fixpoint of `state`, i64[M, N], as a new tensor.

    csr: pattern; row u lists the nodes from which u can be entered; cost: i64[N], >= 1; state: i64[M, N], packed. The
    caller ensures shapes, dtypes, and that no distance reaches 2^31. All implementations give the same bits.
    """
    fixpoint: torch.Tensor = kernel("minplus_relax", "minplus_relax", state.device, implementation)(csr, cost, state)
    return fixpoint
