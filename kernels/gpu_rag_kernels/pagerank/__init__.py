"""A relaxed step of personalized PageRank for a batch of questions.

y <- y + omega (z - y), where z = (alpha A x + (1 - alpha) pi) / degree: one step of the iteration of
`gpu_rag.graph.pagerank.plan`, in one pass over the state.

A: CSR over N nodes (pattern only, or with weights); x, y: [N, B], row-major. The order in which a row is summed does
not depend on B: the order of its entries, hubs by chunks.

Example, the path 0 - 1 - 2 and node 3 alone, B = 1: x = [1, 2, 4, 8], pi = 0, alpha = 0.5, degree = omega = 1 give
y = [1, 2.5, 1, 0].
"""

from __future__ import annotations

import torch

from gpu_rag.types import CSR
from gpu_rag_kernels.dispatch import kernel
from gpu_rag_kernels.pagerank.reference import Restart

__all__ = ["Restart", "ppr_step"]


def ppr_step(
    csr: CSR, x: torch.Tensor, y: torch.Tensor, restart: Restart, alpha: float, degree: torch.Tensor,
    inverse: torch.Tensor, omega: torch.Tensor, *,
    scale: float = 1.0, measured: bool = True, implementation: str = "auto",
) -> torch.Tensor | None:  # fmt: skip
    """y <- y + omega (z - y) in place, z = (alpha A x + (1 - alpha) pi) / degree; returns |z - x| weighted by degree.

    csr: A, N rows; x: f16/f32/f64[N, B]; y: [N, B] of such a dtype; both contiguous, not the same; restart: pi, see
    `Restart`; alpha in [0, 1]; degree, inverse: [N] of one dtype f32 or f64, in which all sums are taken, inverse = 1 /
    degree; omega: [B] of that dtype, 0 keeps a column of y (all unchecked). scale: x and y hold `scale` times the
    state; for f16, which ends at 65504 and loses bits below 2^-14, use a suitable power of two. measured: whether to
    return the sum over the nodes of degree |z - x| (of the state itself): f64[B], else None. y has the same bits for
    any B and in every run; the sum has the same bits for one B.
    """
    step = kernel("ppr_step", "ppr_step", x.device, implementation)
    change: torch.Tensor | None = step(csr, x, y, restart, alpha, degree, inverse, omega, scale, measured)
    return change
