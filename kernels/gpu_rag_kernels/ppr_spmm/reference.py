"""Plain torch reference of `ppr_spmm` for f32, f64 and scaled f16 states, for any device."""

from __future__ import annotations

import warnings

import torch

from gpu_rag.types import CSR

# torch calls its CSR tensors a beta; only their product with a dense matrix is used here
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")


FP16_SCALE = 2.0**14  # of f16 states: the smallest normal number stands for 2^-28, the largest for 3.998


def ppr_spmm(csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float) -> torch.Tensor:
    """Y = alpha A X + (1 - alpha) S. See `gpu_rag_kernels.ppr_spmm`."""
    weight = torch.ones(csr.m, dtype=x.dtype, device=x.device) if csr.weight is None else csr.weight.to(x.dtype)
    # one integer type for both arrays: torch requires it, and the narrow one is the fast one
    indptr = csr.indptr.int() if csr.m < 2**31 else csr.indptr
    indices = csr.indices.to(indptr.dtype)
    matrix = torch.sparse_csr_tensor(indptr, indices, weight, (csr.n, x.shape[0]), check_invariants=False)
    return torch.matmul(matrix, x).mul_(alpha).add_(source, alpha=1 - alpha)


def ppr_spmm_fp16(csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float, last: bool) -> torch.Tensor:
    """See `gpu_rag_kernels.ppr_spmm.ppr_spmm_fp16`."""
    y = ppr_spmm(csr, x.float().div_(FP16_SCALE), source, alpha)
    return y if last else y.mul_(FP16_SCALE).half()
