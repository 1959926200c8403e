"""Plain torch reference of `ppr_step`, for any device."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from gpu_rag.types import CSR

# torch warns that CSR tensors are in beta; only their product with a dense matrix is used here. Up to 2.12 it also
# warns that invariants are not checked.
for _message in ("Sparse CSR tensor support is in beta state", "Sparse invariant checks are implicitly disabled"):
    warnings.filterwarnings("ignore", message=_message)


@dataclass(frozen=True)
class Restart:
    """Restart probabilities of B questions. rows: f32/f64[S, B], of the S nodes at which any question restarts, far
    fewer than N for a few seeds; at: i32[N], the row of each node, or -1; nodes: i64[S], the node of each row, or None
    if a row may have none."""

    rows: torch.Tensor
    at: torch.Tensor
    nodes: torch.Tensor | None = None

    def columns(self, part: slice) -> Restart:
        """The restart of some questions."""
        return Restart(self.rows[:, part].contiguous(), self.at, self.nodes)

    def add_to(self, z: torch.Tensor, factor: float) -> None:
        """z[N, B] += factor * pi, in place. The rows of z are distinct, so no order matters. The host does not wait."""
        rows = self.rows.to(z)
        if self.nodes is not None:
            z.index_add_(0, self.nodes, rows, alpha=factor)
        elif rows.numel():
            z.add_(torch.where((self.at >= 0)[:, None], rows[self.at.clamp(min=0)], 0.0), alpha=factor)


def ppr_step(
    csr: CSR, x: torch.Tensor, y: torch.Tensor, restart: Restart, alpha: float, degree: torch.Tensor,
    inverse: torch.Tensor, omega: torch.Tensor, scale: float, measured: bool,
) -> torch.Tensor | None:  # fmt: skip
    """See `gpu_rag_kernels.pagerank.ppr_step`."""
    z = _product(csr, x.to(inverse.dtype))
    restart.add_to(z.mul_(alpha), (1 - alpha) * scale)
    z.mul_(inverse[:, None])
    change = None
    if measured:
        change = (z - x.to(z)).abs_().mul_(degree[:, None]).sum(0, dtype=torch.float64).div_(scale)
    before = y.to(z)
    torch.add(before, z.sub_(before).mul_(omega), out=z)
    y.copy_(z)
    return change


def _product(csr: CSR, x: torch.Tensor) -> torch.Tensor:
    """A x, summed in the dtype of x."""
    weight = torch.ones(csr.m, dtype=x.dtype, device=x.device) if csr.weight is None else csr.weight.to(x.dtype)
    # torch requires one integer type for both arrays; the narrow type is faster
    indptr = csr.indptr.int() if csr.m < 2**31 else csr.indptr
    indices = csr.indices.to(indptr.dtype)
    matrix = torch.sparse_csr_tensor(indptr, indices, weight, (csr.n, x.shape[0]), check_invariants=False)
    return torch.matmul(matrix, x)
