"""The PageRank step kernel: every implementation against the dense formula."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu_rag_kernels import pagerank as kernel
from gpu_rag_kernels.dispatch import loop_backends

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR

Step = Callable[[CSR, torch.Tensor, torch.Tensor, float], torch.Tensor]


def graph(n: int, m: int, weighted: bool) -> CSR:
    g = torch.Generator().manual_seed(n + m)
    ends = torch.randint(0, n, (2, m), generator=g)
    weight = torch.rand(m, generator=g) if weighted else None
    return csr_from_edges(ends[0], ends[1], n, weight, undirected=False)


def check(step: Step) -> None:
    for n, m, width, weighted in ((1, 0, 1, False), (50, 0, 3, False), (40, 200, 16, False), (40, 200, 5, True)):
        csr = graph(n, m, weighted)
        dense = torch.zeros(n, n, dtype=torch.float64)
        rows = torch.repeat_interleave(torch.arange(n), csr.indptr.diff())
        dense[rows, csr.indices.long()] = 1.0 if csr.weight is None else csr.weight.double()
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
            x, source = torch.randn(n, width, dtype=dtype), torch.randn(n, width, dtype=dtype)
            kept = x.clone(), source.clone()
            y = step(csr, x, source, 0.85)
            exact = 0.85 * dense @ x.double() + 0.15 * source.double()
            assert y.dtype == dtype and (y.double() - exact).abs().max() < tolerance
            assert torch.equal(x, kept[0]) and torch.equal(source, kept[1])


@pytest.mark.parametrize("implementation", loop_backends())
def test_is_the_formula(implementation: str) -> None:
    torch.manual_seed(0)
    check(lambda *args: kernel.ppr_spmm(*args, implementation=implementation))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda csr, x, source, alpha: kernel.ppr_spmm(csr, x, source, 1 - alpha),
        lambda csr, x, source, alpha: kernel.ppr_spmm(CSR(csr.indptr, csr.indices), x, source, alpha),
        lambda csr, x, source, alpha: kernel.ppr_spmm(csr, x, source, alpha) + alpha * source,
    ],
)
def test_checks_catch(wrong: Step) -> None:
    with pytest.raises(AssertionError):
        check(wrong)


def test_by_hand() -> None:
    path = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 4)
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    assert kernel.ppr_spmm(path, x, torch.zeros(4, 1), 0.5).flatten().tolist() == [1.0, 2.5, 1.0, 0.0]
