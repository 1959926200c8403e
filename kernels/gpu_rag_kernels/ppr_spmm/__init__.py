"""Steps of personalized PageRank for a batch of questions: the sparse product alone, and a whole relaxed step.

`ppr_spmm`: Y = alpha A X + (1 - alpha) S. `ppr_step`: y <- y + omega (z - y), where z = (alpha A x + (1 - alpha) pi) /
degree: the iteration of `gpu_rag.graph.pagerank.plan` with all that belongs to a step in one pass over the state.

A: CSR over N nodes (pattern only, or with weights); X: [N, B], row-major. A row is summed in one order, which does not
depend on B: that of its entries, hubs by chunks.

Example, the path 0 - 1 - 2 and node 3 alone, B = 1: X = [1, 2, 4, 8], S = 0 and alpha = 0.5 give [1, 2.5, 1, 0].
"""

from __future__ import annotations

import torch

from gpu_rag.errors import BadInput
from gpu_rag.types import CSR
from gpu_rag_kernels.choice import kernel, known, pick_kernel
from gpu_rag_kernels.ppr_spmm.reference import finish_step
from gpu_rag_kernels.ppr_spmm.restart import Restart

__all__ = ["Restart", "finish_step", "implementations", "pick", "ppr_spmm", "ppr_step"]

_FLOATS = (torch.float32, torch.float64)


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
    if x.dim() != 2 or x.shape != source.shape or x.shape[0] != csr.n:
        given = f"x {tuple(x.shape)}, source {tuple(source.shape)}"
        raise BadInput("ppr_spmm: shapes do not fit", given=given, expected=f"[{csr.n}, B] both")
    if x.dtype != source.dtype or x.dtype not in _FLOATS:
        raise BadInput("ppr_spmm: wrong dtypes", given=f"{x.dtype}, {source.dtype}", expected="f32 or f64, both alike")
    found: torch.Tensor = kernel("ppr_spmm", "ppr_spmm", x.device, implementation)(csr, x, source, alpha)
    return found


def ppr_step(
    csr: CSR, x: torch.Tensor, y: torch.Tensor, restart: Restart, alpha: float, degree: torch.Tensor,
    inverse: torch.Tensor, omega: torch.Tensor, *,
    scale: float = 1.0, measured: bool = True, implementation: str = "auto",
) -> torch.Tensor | None:  # fmt: skip
    """y <- y + omega (z - y) in place, z = (alpha A x + (1 - alpha) pi) / degree; returns |z - x| weighted by degree.

    csr: A, N rows; x: f16/f32/f64[N, B]; y: [N, B] of such a dtype, contiguous, not x; restart: pi, see `Restart`;
    alpha in [0, 1]; degree, inverse: [N] of one dtype f32 or f64, in which everything is summed, inverse = 1 / degree;
    omega: [B] of that dtype, 0 leaves a column of y as it is. scale: x and y hold so many times the state: in f16,
    which ends at 65504 and loses bits below 2^-14, a power of two that fits. measured: whether the sum over the nodes
    of degree |z - x| (of the state itself) is taken: f64[B], else None.
    y has the same bits whatever B is and from run to run; so has the sum for one B. Raises as `ppr_spmm`.
    """
    shapes = (x.shape[1:], y.shape, restart.rows.shape[1:], restart.at.shape, degree.shape, inverse.shape, omega.shape)
    n, b = csr.n, x.shape[-1]
    if x.dim() != 2 or x.shape[0] != n or shapes != ((b,), (n, b), (b,), (n,), (n,), (n,), (b,)):
        given = f"x {tuple(x.shape)}, others {[tuple(s) for s in shapes[1:]]}"
        raise BadInput("ppr_step: shapes do not fit", given=given, expected=f"[{n}, B], [N] and [B]")
    dtypes = (x.dtype, y.dtype, restart.rows.dtype, restart.at.dtype, degree.dtype, inverse.dtype, omega.dtype)
    states = all(t in (*_FLOATS, torch.float16) for t in dtypes[:2]) and dtypes[2] in _FLOATS
    if not states or dtypes[3] != torch.int32 or dtypes[4] not in _FLOATS or len(set(dtypes[4:])) > 1:
        expected = "f16, f32 or f64 states, i32 rows, degree, inverse and omega alike"
        raise BadInput("ppr_step: wrong dtypes", given=", ".join(map(str, dtypes)), expected=expected)
    if not (x.is_contiguous() and y.is_contiguous()) or x.data_ptr() == y.data_ptr() != 0:
        raise BadInput("ppr_step: x and y are not two contiguous tensors", given=f"strides {x.stride()}, {y.stride()}")
    step = kernel("ppr_spmm", "ppr_step", x.device, implementation)
    change: torch.Tensor | None = step(
        csr, x, y, restart, alpha, degree, inverse, omega, scale, measured
    )  # fmt: skip
    return change
