"""The rows of a CSR for kernels: rows of similar degree together, hubs cut into chunks. The plan is made once for a
graph.

A program takes several rows and runs as long as its longest row. So rows are ordered by degree, longest first, and the
programs that start last are short. A row with more than `chunk` entries is a hub: separate programs take its chunks,
and a second kernel combines their results in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from gpu_rag.types import CSR


@dataclass(frozen=True)
class RowPlan:
    """rows: i64, rows of at most `chunk` entries, by descending degree; hubs: i64, the other rows, ascending; starts,
    ends: i64[chunks], the entries of each chunk, hub after hub; bounds: i64[hubs + 1], the chunks of each hub."""

    rows: torch.Tensor
    hubs: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    bounds: torch.Tensor


def packed(csr: CSR) -> CSR:
    """`csr` with contiguous arrays, because kernels ignore strides."""
    indptr, indices, weight = csr.indptr, csr.indices, csr.weight
    if all(a is None or a.is_contiguous() for a in (indptr, indices, weight)):
        return csr  # the same object, because plans are cached under it
    return CSR(indptr.contiguous(), indices.contiguous(), None if weight is None else weight.contiguous())


_plans: Any = WeakTensorKeyDictionary()  # row pointers -> chunk -> plan


def row_plan(indptr: torch.Tensor, chunk: int) -> RowPlan:
    """The plan of row pointers i64[N+1], cached while they live."""
    plans: dict[int, RowPlan] = _plans.setdefault(indptr, {})
    if chunk not in plans:
        plans[chunk] = _planned(indptr, chunk)
    return plans[chunk]


def _planned(indptr: torch.Tensor, chunk: int) -> RowPlan:
    degree = indptr.diff()
    hubs = (degree > chunk).nonzero()[:, 0]
    order = torch.argsort(degree, descending=True, stable=True)
    counts = (degree[hubs] + chunk - 1) // chunk
    bounds = torch.zeros(hubs.shape[0] + 1, dtype=torch.int64, device=degree.device)
    bounds[1:] = counts.cumsum(0)
    owner = torch.repeat_interleave(torch.arange(hubs.shape[0], device=degree.device), counts)
    inner = torch.arange(owner.shape[0], device=degree.device) - bounds[owner]
    starts = indptr[hubs][owner] + inner * chunk
    ends = torch.minimum(starts + chunk, indptr[hubs + 1][owner])
    return RowPlan(order[hubs.shape[0] :], hubs, starts, ends, bounds)
