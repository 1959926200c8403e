"""One hop of breadth-first search of 64 W questions at once, as bits: bit q of word w of a node is question 64 w + q.

fresh[v] = (OR of front[u] over the entries u of row v) & ~seen[v], and seen | fresh, in one pass. The search is by
pull: rows list the nodes that a node is reached from (its neighbours, where the graph is symmetric).

Example, the path 0 - 1 - 2 with one word, front = seen = [1, 2, 0]: question 0 is at node 0, question 1 at node 1.
fresh = [2, 1, 2] and seen = [3, 3, 2] afterwards.
"""

from __future__ import annotations

import torch

from gpu_rag.errors import BadInput
from gpu_rag.types import CSR
from gpu_rag_kernels.choice import kernel, known, pick_kernel


def implementations(device: str = "cpu") -> tuple[str, ...]:
    """The implementations that can take tensors on `device` here."""
    return known(device)


def pick(front: torch.Tensor, implementation: str = "auto") -> str:
    """Which implementation runs for `front`: see `choice.pick_kernel`. Raises UsageError, MissingBackend."""
    return pick_kernel("msbfs_or", front.device, implementation)


def msbfs_or(
    csr: CSR, front: torch.Tensor, seen: torch.Tensor, *, implementation: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(fresh, seen after), new tensors i64[N, W].

    csr: pattern, N rows; front, seen: i64[N, W] on its device. All implementations give the same bits. Raises BadInput
    for shapes or dtypes that do not fit, UsageError, MissingBackend.
    """
    if front.dtype != torch.int64 or seen.dtype != torch.int64:
        raise BadInput("msbfs_or: wrong dtypes", given=f"{front.dtype}, {seen.dtype}", expected="i64, both")
    if front.dim() != 2 or front.shape != seen.shape or front.shape[0] != csr.n:
        given = f"front {tuple(front.shape)}, seen {tuple(seen.shape)}"
        raise BadInput("msbfs_or: shapes do not fit", given=given, expected=f"[{csr.n}, W] both")
    return kernel("msbfs_or", "msbfs_or", front.device, implementation)(csr, front, seen)
