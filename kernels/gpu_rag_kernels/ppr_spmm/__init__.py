"""Y = alpha A X + (1 - alpha) S: one step of personalized PageRank for a batch of questions.

A: CSR over N nodes (pattern only, or with weights); X, S: f32/f64[N, B], row-major; Y like X. The order in which a
row is summed is that of its entries and does not depend on B.

Example, the path 0 - 1 - 2 and node 3 alone, B = 1: X = [1, 2, 4, 8], S = 0 and alpha = 0.5 give [1, 2.5, 1, 0].
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu_rag.errors import BadInput
from gpu_rag.types import CSR
from gpu_rag_kernels.choice import known, pick_kernel
from gpu_rag_kernels.ppr_spmm import reference

Step = Callable[[CSR, torch.Tensor, torch.Tensor, float], torch.Tensor]


def implementations(device: str = "cpu") -> tuple[str, ...]:
    """The implementations that can take tensors on `device` here."""
    return known(device)


def pick(x: torch.Tensor, implementation: str = "auto") -> str:
    """Which implementation runs for `x`: see `choice.pick_kernel`. Raises UsageError, MissingBackend."""
    return pick_kernel("ppr_spmm", x.device, implementation)


def _step(implementation: str) -> Step:
    if implementation == "triton":
        from gpu_rag_kernels.ppr_spmm import triton

        return triton.ppr_spmm
    return reference.ppr_spmm


def ppr_spmm(
    csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float, *, implementation: str = "auto"
) -> torch.Tensor:
    """alpha A x + (1 - alpha) source.

    csr: A, N rows; x, source: f32/f64[N, B] of one dtype on the device of A; alpha in [0, 1]. Returns a new [N, B].
    Raises BadInput for shapes or dtypes that do not fit, UsageError, MissingBackend.
    """
    if x.dim() != 2 or x.shape != source.shape or x.shape[0] != csr.n:
        given = f"x {tuple(x.shape)}, source {tuple(source.shape)}"
        raise BadInput("ppr_spmm: shapes do not fit", given=given, expected=f"[{csr.n}, B] both")
    if x.dtype != source.dtype or x.dtype not in (torch.float32, torch.float64):
        raise BadInput("ppr_spmm: wrong dtypes", given=f"{x.dtype}, {source.dtype}", expected="f32 or f64, both alike")
    return _step(pick(x, implementation))(csr, x, source, alpha)
