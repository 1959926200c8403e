"""Least costs from several groups of nodes to every node, where entering a node costs a positive integer.

S[g, u] = min(S[g, u], min over entries v of row u of (dist(S[g, v]) + cost[u], v)), repeated until nothing changes.
An element packs distance << 32 | predecessor, so the least element has the least distance and, among those, the
predecessor of the smallest id; UNREACHED where no path leads. Integer costs >= 1 give one fixpoint, whatever the order
of work. The start has i in S[g, i] for every node i of group g (distance 0, its own predecessor), else UNREACHED.

Example, the path 0 - 1 - 2, costs [5, 1, 2], one group {0}: the elements end as (0, 0), (1, 0), (3, 1).
"""

from __future__ import annotations

import torch

from gpu_rag.errors import BadInput
from gpu_rag.types import CSR
from gpu_rag_kernels.choice import kernel, known, pick_kernel
from gpu_rag_kernels.minplus_relax.reference import UNREACHED

__all__ = ["UNREACHED", "implementations", "minplus_relax", "pick"]


def implementations(device: str = "cpu") -> tuple[str, ...]:
    """The implementations that can take tensors on `device` here."""
    return known(device)


def pick(state: torch.Tensor, implementation: str = "auto") -> str:
    """Which implementation runs for `state`: see `choice.pick_kernel`. Raises UsageError, MissingBackend."""
    return pick_kernel("minplus_relax", state.device, implementation)


def minplus_relax(csr: CSR, cost: torch.Tensor, state: torch.Tensor, *, implementation: str = "auto") -> torch.Tensor:
    """The fixpoint of `state`, i64[M, N], as a new tensor.

    csr: pattern; row u lists the nodes v that u can be entered from; cost: i64[N], >= 1; state: i64[M, N], packed. The
    caller sees to it that no distance reaches 2^31. All implementations give the same bits. Raises BadInput for
    shapes or dtypes that do not fit, UsageError, MissingBackend.
    """
    if cost.dtype != torch.int64 or state.dtype != torch.int64:
        raise BadInput("minplus_relax: wrong dtypes", given=f"{cost.dtype}, {state.dtype}", expected="i64, both")
    if cost.shape != (csr.n,) or state.dim() != 2 or state.shape[1] != csr.n:
        given = f"cost {tuple(cost.shape)}, state {tuple(state.shape)}"
        raise BadInput("minplus_relax: shapes do not fit", given=given, expected=f"[{csr.n}] and [M, {csr.n}]")
    return kernel("minplus_relax", "minplus_relax", state.device, implementation)(csr, cost, state)
