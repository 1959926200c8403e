"""One hop of breadth-first search for 64 W questions at once, as bits: bit q of word w of a node is question 64 w + q.

fresh[v] = (OR of front[u] over the entries u of row v) & ~seen[v], and seen | fresh, in one pass. The search pulls: a
row lists the nodes from which its node is reached (its neighbours, if the graph is symmetric).

Example, the path 0 - 1 - 2 with one word, front = seen = [1, 2, 0]: question 0 is at node 0, question 1 at node 1. The
result is fresh = [2, 1, 2] and seen = [3, 3, 2].
"""

from __future__ import annotations

from gpu_rag.lazy import torch
from gpu_rag.types import CSR
from gpu_rag_kernels.dispatch import kernel


def msbfs_or(
    csr: CSR, front: torch.Tensor, seen: torch.Tensor, *, implementation: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(fresh, new seen), new tensors i64[N, W].

    csr: pattern, N rows; front, seen: i64[N, W] on its device (unchecked). All implementations give the same bits.
    """
    result: tuple[torch.Tensor, torch.Tensor] = kernel("msbfs_or", "msbfs_or", front.device, implementation)(
        csr, front, seen
    )
    return result
