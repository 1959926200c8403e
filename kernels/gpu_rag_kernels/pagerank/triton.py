"""`ppr_step` in Triton: one pass over the entries, fused with the rest of a step, no atomics.

Rows are ordered by degree, hubs are cut into chunks (see `rows`). A row's entries are added one after another, so its
bits depend neither on B nor on the run. Four entries are loaded ahead of the additions; waiting for each would leave
the memory idle. The column tile is the slowest axis of the grid, so that concurrent programs read the same columns of
X. Numbers that change from call to call are not specialised, so nothing is compiled again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from gpu_rag.types import CSR
from gpu_rag_kernels.pagerank.reference import Restart
from gpu_rag_kernels.rows import RowPlan, packed, row_plan

CHUNK = 128  # entries of a hub that one program sums
TILE_BYTES = 1024  # sums of a program, which is one warp: 4 rows, or chunks, in f32, 2 in f64
COLUMNS = 64  # questions of a program
WARP: dict[str, Any] = {"num_warps": 1, "enable_fp_fusion": False}  # unfused, bits do not depend on the width
PARTS = 16  # sums of chunks that a hub's program reads together


@triton.jit
def _entry(indices, weight, x, entry, last, column, inside, width, weighted: tl.constexpr, dtype: tl.constexpr):
    """[R, C]: the weighted row of x for each entry, 0 from `last` on."""
    live = entry < last
    node = tl.load(indices + entry, mask=live, other=0).to(tl.int64)
    at = x + node[:, None] * width + column[None, :]
    value = tl.load(at, mask=live[:, None] & inside[None, :], other=0.0).to(dtype)
    if weighted:
        value = value * tl.load(weight + entry, mask=live, other=0.0)[:, None].to(dtype)
    return value


@triton.jit
def _sum(indices, weight, x, first, last, column, inside, width, weighted: tl.constexpr, acc):
    """acc[R, C] + the weighted rows of x of the entries first..last, in their order."""
    for step in range(0, tl.max(last - first, axis=0), 4):
        entry = first + step
        a = _entry(indices, weight, x, entry, last, column, inside, width, weighted, acc.dtype)
        b = _entry(indices, weight, x, entry + 1, last, column, inside, width, weighted, acc.dtype)
        c = _entry(indices, weight, x, entry + 2, last, column, inside, width, weighted, acc.dtype)
        d = _entry(indices, weight, x, entry + 3, last, column, inside, width, weighted, acc.dtype)
        acc = (((acc + a) + b) + c) + d
    return acc


@triton.jit
def _row_sums(indptr, indices, weight, x, row, real, column, inside, width, weighted: tl.constexpr, acc):
    first = tl.load(indptr + row, mask=real, other=0)
    last = tl.load(indptr + row + 1, mask=real, other=0)
    return _sum(indices, weight, x, first, last, column, inside, width, weighted, acc)


@triton.jit(do_not_specialize=["n_chunks"])
def _chunks(
    indices, weight, x, partial, starts, ends, n_chunks, width, weighted: tl.constexpr, n_rows: tl.constexpr, n_columns:
    tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * n_rows + tl.arange(0, n_rows)
    real = place < n_chunks
    first = tl.load(starts + place, mask=real, other=0)
    last = tl.load(ends + place, mask=real, other=0)
    column = tl.program_id(1) * n_columns + tl.arange(0, n_columns)
    inside = column < width
    acc = tl.zeros((n_rows, n_columns), dtype=partial.dtype.element_ty)
    acc = _sum(indices, weight, x, first, last, column, inside, width, weighted, acc)
    tl.store(partial + place[:, None] * width + column[None, :], acc, mask=real[:, None] & inside[None, :])


@triton.jit
def _hub_sum(partial, bounds, hub, column, inside, width, n_parts: tl.constexpr, n_columns: tl.constexpr):
    """[1, C]: the sum of a hub's chunks, of which there may be thousands: each n_parts-th in order, then these."""
    last = tl.load(bounds + hub + 1)
    acc = tl.zeros((n_parts, n_columns), dtype=partial.dtype.element_ty)
    for start in range(tl.load(bounds + hub), last, n_parts):
        chunk = start + tl.arange(0, n_parts)
        wanted = (chunk < last)[:, None] & inside[None, :]
        acc += tl.load(partial + chunk[:, None] * width + column[None, :], mask=wanted, other=0.0)
    return tl.sum(acc, axis=0)[None, :]


@triton.jit
def _relax(
    x, y, source, at, factors, inverse, degree, omega, change, slot, row, real, acc, column, inside, width, measured:
    tl.constexpr,
):  # fmt: skip
    """Finish `ppr_step` for some rows, and write the sum of degree |z - x| over them."""
    place = row[:, None] * width + column[None, :]
    kept = real[:, None] & inside[None, :]
    entry = tl.load(at + row, mask=real, other=-1).to(tl.int64)
    wanted = (real & (entry >= 0))[:, None] & inside[None, :]  # few rows restart; other rows read nothing
    restart = tl.load(source + entry[:, None] * width + column[None, :], mask=wanted, other=0.0).to(acc.dtype)
    z = (tl.load(factors) * acc + tl.load(factors + 1) * restart) * tl.load(inverse + row, mask=real, other=0.0)[
        :, None
    ]
    if measured:
        off = tl.abs(z - tl.load(x + place, mask=kept, other=0.0).to(acc.dtype))
        off = tl.where(kept, off * tl.load(degree + row, mask=real, other=0.0)[:, None], 0.0)
        tl.store(change + slot * width + column, tl.sum(off, axis=0), mask=inside)
    before = tl.load(y + place, mask=kept, other=0.0).to(acc.dtype)
    after = before + tl.load(omega + column, mask=inside, other=0.0)[None, :] * (z - before)
    tl.store(y + place, after.to(y.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["n_listed"])
def _step_rows(
    indptr, indices, weight, x, y, source, at, factors, inverse, degree, omega, change, listed, n_listed, width,
    weighted: tl.constexpr, measured: tl.constexpr, n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    place = slot * n_rows + tl.arange(0, n_rows)
    real = place < n_listed
    row = tl.load(listed + place, mask=real, other=0)
    column = tl.program_id(1) * n_columns + tl.arange(0, n_columns)
    inside = column < width
    acc = tl.zeros((n_rows, n_columns), dtype=factors.dtype.element_ty)
    acc = _row_sums(indptr, indices, weight, x, row, real, column, inside, width, weighted, acc)
    _relax(
        x, y, source, at, factors, inverse, degree, omega, change, slot, row, real, acc, column, inside, width, measured
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_slots", "width"])
def _step_hubs(
    partial, x, y, source, at, factors, inverse, degree, omega, change, hubs, bounds, n_slots, width, measured:
    tl.constexpr, n_parts: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * n_columns + tl.arange(0, n_columns)
    inside = column < width
    acc = _hub_sum(partial, bounds, tl.program_id(0), column, inside, width, n_parts, n_columns)
    slot, one = tl.program_id(0).to(tl.int64) + n_slots, tl.arange(0, 1)
    row = tl.load(hubs + tl.program_id(0) + one)
    _relax(
        x, y, source, at, factors, inverse, degree, omega, change, slot, row, one == 0, acc, column, inside, width,
        measured,
    )  # fmt: skip


def ppr_step(
    csr: CSR, x: torch.Tensor, y: torch.Tensor, restart: Restart, alpha: float, degree: torch.Tensor,
    inverse: torch.Tensor, omega: torch.Tensor, scale: float, measured: bool,
) -> torch.Tensor | None:  # fmt: skip
    """See `gpu_rag_kernels.pagerank.ppr_step`."""
    csr, rows, at = packed(csr), restart.rows.contiguous(), restart.at.contiguous()
    degree, inverse, omega = degree.contiguous(), inverse.contiguous(), omega.contiguous()
    width, dtype, plan = x.shape[1], inverse.dtype, row_plan(csr.indptr, CHUNK)
    n_rows = rows_of(dtype)
    tiles, n_slots = triton.cdiv(width, COLUMNS), triton.cdiv(plan.rows.numel(), n_rows)
    n_changes = n_slots + plan.hubs.numel() if measured else 0
    change = torch.empty(n_changes, width, dtype=dtype, device=x.device)
    if x.numel():
        weighted, weight = csr.weight is not None, csr.indices if csr.weight is None else csr.weight
        factors = _factors(alpha, (1 - alpha) * scale, dtype, x.device)
        ends = (y, rows, at, factors, inverse, degree, omega, change)
        if n_slots:
            _step_rows[n_slots, tiles](
                csr.indptr, csr.indices, weight, x, *ends, plan.rows, plan.rows.numel(), width,
                weighted=weighted, measured=measured, n_rows=n_rows, n_columns=COLUMNS, **WARP,
            )  # fmt: skip
        if plan.hubs.numel():
            partial = _chunk_sums(csr, x, plan, dtype)
            _step_hubs[plan.hubs.numel(), tiles](
                partial, x, *ends, plan.hubs, plan.bounds, n_slots, width,
                measured=measured, n_parts=PARTS, n_columns=COLUMNS, enable_fp_fusion=False,
            )  # fmt: skip
    if not measured:
        return None
    total = change.sum(0, dtype=torch.float64)
    return total if scale == 1 else total.div_(scale)


def rows_of(sums: torch.dtype) -> int:
    """Rows, or chunks, of a program."""
    return TILE_BYTES // (COLUMNS * sums.itemsize)


def _chunk_sums(csr: CSR, x: torch.Tensor, plan: RowPlan, dtype: torch.dtype) -> torch.Tensor:
    """The sum of every chunk of the hubs: [chunks, B]."""
    n, width = plan.starts.numel(), x.shape[1]
    partial = torch.empty(n, width, dtype=dtype, device=x.device)
    _chunks[triton.cdiv(n, rows_of(dtype)), triton.cdiv(width, COLUMNS)](
        csr.indices, csr.indices if csr.weight is None else csr.weight, x, partial, plan.starts, plan.ends, n, width,
        weighted=csr.weight is not None, n_rows=rows_of(dtype), n_columns=COLUMNS, **WARP,
    )  # fmt: skip
    return partial


@lru_cache(maxsize=64)
def _factors(of_sum: float, of_source: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Both factors in the dtype of the sums, cached. A float argument of a kernel would be rounded to f32."""
    return torch.tensor((of_sum, of_source), dtype=dtype, device=device)
