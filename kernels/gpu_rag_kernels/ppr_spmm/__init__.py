"""Y = alpha A X + (1 - alpha) S: one step of personalized PageRank for a batch of questions.

A: CSR over N nodes (pattern only, or with weights); X, S: f32/f64[N, B], row-major; Y like X. The order in which a
row is summed is that of its entries and does not depend on B.

`ppr_spmm_fp16` is the step for states in scaled f16.

Example, the path 0 - 1 - 2 and node 3 alone, B = 1: X = [1, 2, 4, 8], S = 0 and alpha = 0.5 give [1, 2.5, 1, 0].
"""

from __future__ import annotations

import torch

from gpu_rag.errors import BadInput
from gpu_rag.types import CSR
from gpu_rag_kernels.choice import kernel, known, pick_kernel
from gpu_rag_kernels.ppr_spmm.reference import FP16_SCALE

__all__ = ["FP16_SCALE", "fp16_error", "implementations", "pick", "ppr_spmm", "ppr_spmm_fp16"]


def implementations(device: str = "cpu") -> tuple[str, ...]:
    """The implementations that can take tensors on `device` here."""
    return known(device)


def pick(x: torch.Tensor, implementation: str = "auto") -> str:
    """Which implementation runs for `x`: see `choice.pick_kernel`. Raises UsageError, MissingBackend."""
    return pick_kernel("ppr_spmm", x.device, implementation)


def ppr_spmm(
    csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float, *, implementation: str = "auto"
) -> torch.Tensor:
    """alpha A x + (1 - alpha) source.

    csr: A, N rows; x, source: f32/f64[N, B] of one dtype on the device of A; alpha in [0, 1]. Returns a new [N, B].
    Raises BadInput for shapes or dtypes that do not fit, UsageError, MissingBackend.
    """
    _check_shapes(csr, x, source)
    if x.dtype != source.dtype or x.dtype not in (torch.float32, torch.float64):
        raise BadInput("ppr_spmm: wrong dtypes", given=f"{x.dtype}, {source.dtype}", expected="f32 or f64, both alike")
    return kernel("ppr_spmm", "ppr_spmm", x.device, implementation)(csr, x, source, alpha)


def ppr_spmm_fp16(
    csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float, *, last: bool = False, implementation: str = "auto"
) -> torch.Tensor:
    """The same step with a state of half the bytes: X is f16[N, B] and holds FP16_SCALE times the state.

    source: f32[N, B], not scaled. Sums are in f32. Returns f16[N, B], scaled, or with `last` the state itself as
    f32[N, B]. No value of the state may reach 3.998 (it would become infinite). Not used by `personalized_pagerank`,
    whose error is proved below 1e-6: see `fp16_error`. Raises as `ppr_spmm`.
    """
    _check_shapes(csr, x, source)
    if x.dtype != torch.float16 or source.dtype != torch.float32:
        given = f"{x.dtype}, {source.dtype}"
        raise BadInput("ppr_spmm_fp16: wrong dtypes", given=given, expected="x f16, source f32")
    return kernel("ppr_spmm", "ppr_spmm_fp16", x.device, implementation)(csr, x, source, alpha, last)


def fp16_error(alpha: float, n: int, degree: int) -> float:
    """L1 error of a column after any number of f16 steps and a last one in f32, beside the same steps without rounding.

    For columns of A that sum to at most 1, starts and sources of mass 1, rows of at most `degree` entries, alpha < 1. A
    step that is stored in f16 adds at most r = 2^-11 |y|_1 and 2^-39 a node (where f16 is subnormal), and its sums at
    most (degree + 4) 2^-24 |y|_1; each step carries alpha of the error before on. The last step adds only f32 rounding:
    alpha r / (1 - alpha) + (degree + 4) 2^-24. This is the worst case: on R-MAT graphs of 3,000 to 100,000 nodes errors
    of 5e-5 to 8e-5 (alpha 0.5) and 6e-5 to 1.3e-4 (0.85) were measured on a CPU, a sixth of it or less.
    """
    rounding = 1.01 * (degree + 4) * 2.0**-24
    stored = 1.01 * 2.0**-11 + n * 2.0**-39 + rounding
    return alpha * stored / (1 - alpha) + rounding


def _check_shapes(csr: CSR, x: torch.Tensor, source: torch.Tensor) -> None:
    if x.dim() != 2 or x.shape != source.shape or x.shape[0] != csr.n:
        given = f"x {tuple(x.shape)}, source {tuple(source.shape)}"
        raise BadInput("ppr_spmm: shapes do not fit", given=given, expected=f"[{csr.n}, B] both")
