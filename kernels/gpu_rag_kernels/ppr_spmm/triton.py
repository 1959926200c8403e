"""`ppr_spmm` in Triton: one pass over the entries, teleport fused, no atomics. Bits do not depend on B or on the run.

Rows are taken in the order of their degrees, so that those of one program end together. A row of more than CHUNK
entries is cut into chunks of CHUNK; their sums are added in order by a second kernel. The tile of columns is the
slowest axis of the grid: programs that run together read the same columns of X. Sums have the type of the teleport: of
f16 states they are in f32.

Written for triton 3.6. It ran under Triton's interpreter only (TRITON_INTERPRET=1) and compiles for sm_90; it never ran
on a GPU yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch.utils.weak import WeakTensorKeyDictionary

from gpu_rag.types import CSR
from gpu_rag_kernels.ppr_spmm.reference import FP16_SCALE

CHUNK = 256  # entries of a hub that are summed by one program
ROWS = 8  # rows, or chunks, of a program
COLUMNS = 32  # questions of a program


@triton.jit
def _sum(indices, weight, x, first, last, column, inside, width, weighted: tl.constexpr, acc):  # type: ignore[no-untyped-def]
    """acc[R, C] + the weighted rows of x that the entries first..last name, in their order."""
    for step in range(0, tl.max(last - first, axis=0)):
        entry = first + step
        live = entry < last
        node = tl.load(indices + entry, mask=live, other=0).to(tl.int64)
        at = x + node[:, None] * width + column[None, :]
        value = tl.load(at, mask=live[:, None] & inside[None, :], other=0.0).to(acc.dtype)
        if weighted:
            value = value * tl.load(weight + entry, mask=live, other=0.0)[:, None]
        acc += value
    return acc


@triton.jit
def _rows(  # type: ignore[no-untyped-def]
    indptr, indices, weight, x, source, scale, y, listed, n_listed, width,
    weighted: tl.constexpr, n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * n_rows + tl.arange(0, n_rows)
    real = place < n_listed
    row = tl.load(listed + place, mask=real, other=0)
    first = tl.load(indptr + row, mask=real, other=0)
    last = tl.load(indptr + row + 1, mask=real, other=0)
    column = tl.program_id(1) * n_columns + tl.arange(0, n_columns)
    inside = column < width
    acc = tl.zeros((n_rows, n_columns), dtype=scale.dtype.element_ty)
    acc = _sum(indices, weight, x, first, last, column, inside, width, weighted, acc)
    at = row[:, None] * width + column[None, :]
    kept = real[:, None] & inside[None, :]
    restart = tl.load(source + at, mask=kept, other=0.0)
    tl.store(y + at, tl.load(scale) * acc + tl.load(scale + 1) * restart, mask=kept)


@triton.jit
def _chunks(  # type: ignore[no-untyped-def]
    indices, weight, x, partial, starts, ends, n_chunks, width,
    weighted: tl.constexpr, n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * n_rows + tl.arange(0, n_rows)
    real = place < n_chunks
    first = tl.load(starts + place, mask=real, other=0)
    last = tl.load(ends + place, mask=real, other=0)
    column = tl.program_id(1) * n_columns + tl.arange(0, n_columns)
    inside = column < width
    acc = tl.zeros((n_rows, n_columns), dtype=partial.dtype.element_ty)
    acc = _sum(indices, weight, x, first, last, column, inside, width, weighted, acc)
    at = place.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(partial + at, acc, mask=real[:, None] & inside[None, :])


@triton.jit
def _hubs(  # type: ignore[no-untyped-def]
    partial, source, scale, y, hubs, bounds, width, n_columns: tl.constexpr
):  # fmt: skip
    hub = tl.program_id(0)
    row = tl.load(hubs + hub)
    column = tl.program_id(1) * n_columns + tl.arange(0, n_columns)
    inside = column < width
    acc = tl.zeros((n_columns,), dtype=partial.dtype.element_ty)
    for chunk in range(tl.load(bounds + hub), tl.load(bounds + hub + 1)):
        acc += tl.load(partial + chunk * width + column, mask=inside, other=0.0)
    restart = tl.load(source + row * width + column, mask=inside, other=0.0)
    result = tl.load(scale) * acc + tl.load(scale + 1) * restart
    tl.store(y + row * width + column, result, mask=inside)


@dataclass
class _Plan:
    """rows: i64, those of at most CHUNK entries by degree; hubs: i64, the others; starts, ends: i64[chunks], the
    entries of each chunk; bounds: i64[hubs + 1], the chunks of each hub. scales: the two factors, made once."""

    rows: torch.Tensor
    hubs: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    bounds: torch.Tensor
    scales: dict[tuple[float, float, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def scale(self, of_sum: float, of_source: float, like: torch.Tensor) -> torch.Tensor:
        """Both factors in the dtype of the sums: a float argument of a kernel would be rounded to f32."""
        key = (of_sum, of_source, like.dtype)
        if key not in self.scales:
            self.scales[key] = torch.tensor(key[:2], dtype=like.dtype, device=like.device)
        return self.scales[key]


_plans: Any = WeakTensorKeyDictionary()  # by indptr: a graph is planned once


def _plan(csr: CSR) -> _Plan:
    if csr.indptr not in _plans:
        degree = csr.indptr.diff()
        hubs = (degree > CHUNK).nonzero()[:, 0]
        order = torch.argsort(degree, stable=True)
        counts = (degree[hubs] + CHUNK - 1) // CHUNK
        bounds = torch.zeros(hubs.shape[0] + 1, dtype=torch.int64, device=degree.device)
        bounds[1:] = counts.cumsum(0)
        owner = torch.repeat_interleave(torch.arange(hubs.shape[0], device=degree.device), counts)
        inner = torch.arange(owner.shape[0], device=degree.device) - bounds[owner]
        starts = csr.indptr[hubs][owner] + inner * CHUNK
        ends = torch.minimum(starts + CHUNK, csr.indptr[hubs + 1][owner])
        _plans[csr.indptr] = _Plan(order[degree[order] <= CHUNK], hubs, starts, ends, bounds)
    plan: _Plan = _plans[csr.indptr]
    return plan


def ppr_spmm(csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float) -> torch.Tensor:
    """Y = alpha A X + (1 - alpha) S. See `gpu_rag_kernels.ppr_spmm`."""
    return _step(csr, x, source, torch.empty(x.shape, dtype=x.dtype, device=x.device), alpha, 1 - alpha)


def ppr_spmm_fp16(csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float, last: bool) -> torch.Tensor:
    """See `gpu_rag_kernels.ppr_spmm.ppr_spmm_fp16`. A power of two in a factor changes no rounding."""
    y = torch.empty(x.shape, dtype=source.dtype if last else x.dtype, device=x.device)
    if last:
        return _step(csr, x, source, y, alpha / FP16_SCALE, 1 - alpha)
    return _step(csr, x, source, y, alpha, (1 - alpha) * FP16_SCALE)


def _step(
    csr: CSR, x: torch.Tensor, source: torch.Tensor, y: torch.Tensor, of_sum: float, of_source: float
) -> torch.Tensor:
    """y = of_sum A x + of_source source, summed in the type of `source`."""
    x, source, plan = x.contiguous(), source.contiguous(), _plan(csr)
    width = x.shape[1]
    if y.numel() == 0:
        return y
    weighted = csr.weight is not None
    weight = csr.indices if csr.weight is None else csr.weight.to(source.dtype)
    scale, tiles = plan.scale(of_sum, of_source, source), triton.cdiv(width, COLUMNS)
    if plan.rows.numel():
        _rows[triton.cdiv(plan.rows.numel(), ROWS), tiles](
            csr.indptr, csr.indices, weight, x, source, scale, y, plan.rows, plan.rows.numel(), width,
            weighted=weighted, n_rows=ROWS, n_columns=COLUMNS,
        )  # fmt: skip
    if plan.hubs.numel():
        partial = source.new_empty(plan.starts.numel(), width)
        _chunks[triton.cdiv(plan.starts.numel(), ROWS), tiles](
            csr.indices, weight, x, partial, plan.starts, plan.ends, plan.starts.numel(), width,
            weighted=weighted, n_rows=ROWS, n_columns=COLUMNS,
        )  # fmt: skip
        _hubs[plan.hubs.numel(), tiles](
            partial, source, scale, y, plan.hubs, plan.bounds, width, n_columns=COLUMNS
        )  # fmt: skip
    return y
