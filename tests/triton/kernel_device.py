"""Where the kernels run: interpreted on the CPU (scripts/test_triton.sh), or on a GPU; what their tests are given."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gpu_rag_kernels import dispatch

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR, Ragged

Script = Callable[[str], Any]  # a module of scripts/, by name
DEVICE = "cuda" if torch.cuda.is_available() and not dispatch.interpreted() else "cpu"
INTERPRETED = dispatch.interpreted() and dispatch.installed("triton")
ABLE = INTERPRETED or (DEVICE == "cuda" and dispatch.installed("triton"))
NEEDS_TRITON = [pytest.mark.triton, pytest.mark.skipif(not ABLE, reason="needs triton, interpreted or a GPU")]
NEEDS_INTERPRETER = [
    pytest.mark.triton,
    pytest.mark.skipif(not INTERPRETED, reason="needs triton and TRITON_INTERPRET=1"),
]
BOTH = pytest.mark.parametrize("implementation", ["reference", pytest.param("triton", marks=NEEDS_TRITON)])


def ragged(lists: list[list[int]], dtype: torch.dtype = torch.int64) -> Ragged:
    """Lists on the device."""
    values = torch.tensor([v for row in lists for v in row], dtype=dtype, device=DEVICE)
    return Ragged(values, torch.tensor(np.cumsum([0] + [len(row) for row in lists]), device=DEVICE))


def unit_rows(r: np.random.Generator, n: int, dims: int, dtype: torch.dtype, alike: int = 0) -> torch.Tensor:
    """alike: 1, many rows are equal; 2, many differ by a step of the grid, or by half of one."""
    x = r.normal(size=(n, dims)) * 10.0 ** r.integers(-5, 1, (n, dims))
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    if alike and n:
        x = x[r.integers(0, n, n) // 4]
    if alike == 2:
        x = x + r.integers(-2, 3, x.shape) * 2.0**-25
    return torch.from_numpy(x).to(DEVICE, dtype)


def graph(n: int, m: int, *, weighted: bool = False, hub: int = 0) -> CSR:
    """Random entries, and a node 0 with `hub` neighbours."""
    r = np.random.default_rng(n + m)
    src, dst = r.integers(0, n, m).tolist() + [0] * hub, r.integers(0, n, m).tolist() + list(range(hub))
    ends = torch.tensor([src, dst], dtype=torch.int64, device=DEVICE)
    weight = torch.from_numpy(r.random(m + hub)).to(DEVICE) if weighted else None
    return csr_from_edges(ends[0], ends[1], n, weight, undirected=False, drop_self_loops=False)


def dense(csr: CSR) -> torch.Tensor:
    """f64[N, N], with ones where there are no weights."""
    a = torch.zeros(csr.n, csr.n, dtype=torch.float64, device=DEVICE)
    rows = torch.repeat_interleave(torch.arange(csr.n, device=DEVICE), csr.indptr.diff())
    a[rows, csr.indices.long()] = 1.0 if csr.weight is None else csr.weight.double()
    return a


def marked(marks: list[pytest.MarkDecorator]) -> Callable[[Any], Any]:
    """A decorator of tests with several marks."""

    def mark_all(test: Any) -> Any:
        for mark in marks:
            test = mark(test)
        return test

    return mark_all
