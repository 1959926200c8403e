"""Kernels read element i of an array at i: with gaps between elements, and beyond 2^31 of them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from gpu_rag_kernels import bubble as bubble_loops
from gpu_rag_kernels import ego as ego_loops
from gpu_rag_kernels import frontier as frontier_loops
from gpu_rag_kernels import pagerank as pagerank_loops
from gpu_rag_kernels.frontier import gather_dots
from kernel_device import DEVICE, NEEDS_INTERPRETER, NEEDS_TRITON, marked

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR, Ragged

pytestmark = NEEDS_TRITON
N = 6


def spaced(a: torch.Tensor) -> torch.Tensor:
    """The same values, every second element in memory; between them lie others of the array."""
    held = torch.stack([a, a.flip(0)], dim=-1)[..., 0]
    assert torch.equal(held, a) and not held.is_contiguous()
    return held


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def whole(low: int, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def graph(way: Callable[[torch.Tensor], torch.Tensor], *, weighted: bool) -> CSR:
    ends = whole(0, N, 2, 14)
    made = csr_from_edges(ends[0], ends[1], N, drawn(14) + 0.1 if weighted else None, undirected=False)
    return CSR(way(made.indptr), way(made.indices), None if made.weight is None else way(made.weight))


def step(way: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    x, y = drawn(N, 3), drawn(N, 3, seed=1)
    at = torch.tensor([-1, 1, -1, 0, -1, 2], dtype=torch.int32, device=DEVICE)
    restart = pagerank_loops.Restart(way(drawn(3, 3, seed=2)), way(at))
    degree = drawn(N, seed=3) + 0.5
    change = pagerank_loops.ppr_step(
        graph(way, weighted=True), x, y, restart, 0.85, way(degree), way(1 / degree), way(drawn(3, seed=4)),
        implementation="triton",
    )  # fmt: skip
    return y, change


def hop(way: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    front, seen = way(whole(0, 2**62, N, 2)), way(whole(0, 2**62, N, 2, seed=1))
    return ego_loops.msbfs_or(graph(way, weighted=False), front, seen, implementation="triton")


def relax(way: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    state = torch.full((2, N), bubble_loops.UNREACHED, device=DEVICE)
    state[0, 0], state[1, 3] = 0, 3
    cost = way(whole(1, 9, N))
    return (bubble_loops.minplus_relax(graph(way, weighted=False), cost, way(state), implementation="triton"),)


def gather(way: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    rows = [torch.nn.functional.normalize(drawn(count, 5, seed=count), dim=1) for count in (2, N)]
    lists = Ragged(way(whole(0, N, 7)), way(torch.tensor([0, 3, 7], device=DEVICE)))
    owner, bias = way(torch.tensor([1, 0], device=DEVICE)), way(drawn(7).double())
    best = frontier_loops.ragged_gather_dot_topk(
        way(rows[0]), way(rows[1]), lists, 2, owner=owner, bias=bias, implementation="triton"
    )
    return best.ids, best.scores


@pytest.mark.parametrize("op", [step, hop, relax, gather], ids=lambda op: op.__name__)
def test_gaps_change_nothing(op: Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]) -> None:
    for one, other in zip(op(spaced), op(lambda a: a), strict=True):
        assert torch.equal(one, other)


def untouched(n: int, width: int) -> torch.Tensor:
    """f16[n, width] of anything."""
    assert n * width > 2**31
    try:
        return torch.empty(n, width, dtype=torch.float16)
    except RuntimeError:
        pytest.skip(f"this machine does not give {2 * n * width / 2**30:.1f} GiB, even untouched")


@marked(NEEDS_INTERPRETER)
def test_a_dot_product_of_a_far_row() -> None:
    dims, n = 64, 2**25 + 8
    vectors, queries = untouched(n, dims), torch.zeros(2, dims)
    queries[1, 3] = 1.0
    vectors[n - 1] = 0.0
    vectors[n - 1, 3] = 0.625
    vectors[7] = 0.0  # where 32 bits would lead
    rows, last = torch.tensor([1]), torch.tensor([n - 1])
    assert gather_dots(queries, rows, vectors, last, implementation="triton").tolist() == [0.625]


@marked(NEEDS_INTERPRETER)
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
        weighted=False, measured=True, n_rows=kernels.rows_of(torch.float32), n_columns=kernels.COLUMNS,
    )  # fmt: skip
    assert y[n - 1].tolist() == [2.0] * width, "half the way from 3 to z = 1"
    assert change[0].tolist() == [1.0] * width, "|z - x| of the row"
    assert float(y[7, 0]) == 9.0
