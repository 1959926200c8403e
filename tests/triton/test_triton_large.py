"""Rows beyond 2^31 elements under Triton's interpreter: an offset of 32 bits would read or write elsewhere.

Memory that nobody touches costs nothing, so only the rows that are named here exist.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from gpu_rag_kernels import dispatch
from gpu_rag_kernels.frontier import gather_dots

INTERPRETED = dispatch.interpreted() and "triton" in dispatch.loop_backends("cpu")
pytestmark = [pytest.mark.triton, pytest.mark.skipif(not INTERPRETED, reason="needs triton and TRITON_INTERPRET=1")]


def untouched(n: int, width: int) -> torch.Tensor:
    """f16[n, width] of anything."""
    assert n * width > 2**31
    try:
        return torch.empty(n, width, dtype=torch.float16)
    except RuntimeError:
        pytest.skip(f"this machine does not give {2 * n * width / 2**30:.1f} GiB, even untouched")


def test_a_dot_product_of_a_far_row() -> None:
    dims, n = 64, 2**25 + 8
    vectors, queries = untouched(n, dims), torch.zeros(2, dims)
    queries[1, 3] = 1.0
    vectors[n - 1] = 0.0
    vectors[n - 1, 3] = 0.625
    vectors[7] = 0.0  # where 32 bits would lead
    rows, last = torch.tensor([1]), torch.tensor([n - 1])
    assert gather_dots(queries, rows, vectors, last, implementation="triton").tolist() == [0.625]


def test_a_step_of_a_far_node() -> None:
    """Node n - 1 is reached from node n - 2; one program row is launched, over all columns."""
    kernels: Any = import_module("gpu_rag_kernels.pagerank.triton")
    width, n = 512, 2**22 + 8
    x, y = untouched(n, width), untouched(n, width)
    x[n - 2 :], y[n - 1], x[6], y[7] = 2.0, 3.0, 9.0, 9.0
    indptr = torch.zeros(n + 1, dtype=torch.int64)
    indptr[n] = 1
    indices, ones = torch.tensor([n - 2], dtype=torch.int32), torch.ones(n)
    at, omega = torch.full((n,), -1, dtype=torch.int32), torch.full((width,), 0.5)
    change, factors = torch.full((1, width), torch.nan), torch.tensor([0.5, 0.25])
    kernels._step_rows[1, -(-width // kernels.COLUMNS)](
        indptr, indices, indices, x, y, torch.zeros(1, width), at, factors, ones, ones, omega, change,
        torch.tensor([n - 1]), 1, width,
        weighted=False, measured=True, n_rows=kernels.ROWS, n_columns=kernels.COLUMNS,
    )  # fmt: skip
    assert y[n - 1].tolist() == [2.0] * width, "half the way from 3 to z = 1"
    assert change[0].tolist() == [1.0] * width, "|z - x| of the row"
    assert float(y[7, 0]) == 9.0
