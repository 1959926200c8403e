"""The product of a rank's rows with the state of all ranks: fewer rows than columns, by every implementation."""

from __future__ import annotations

import importlib

import pytest
import torch
from gpu_rag_kernels import dispatch

from gpu_rag.bench.measure import poisoned
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank.inputs import prepare
from gpu_rag.graph.pagerank.sharded.graph import Layout, Shard, own_rows
from gpu_rag.types import CSR

DEVICE = torch.device("cuda" if torch.cuda.is_available() and not dispatch.interpreted() else "cpu")
ABLE = "triton" in dispatch.loop_backends(DEVICE.type)
BOUNDS = (0, 40, 58, 90)
STRIDE = 40
BOTH = [
    "reference",
    pytest.param(
        "triton", marks=[pytest.mark.triton, pytest.mark.skipif(not ABLE, reason="needs triton, interpreted or a GPU")]
    ),
]


def graph(weighted: bool) -> CSR:
    g = torch.Generator().manual_seed(4)
    ends = (torch.rand(2, 400, generator=g) ** 2 * 90).long()
    weight = (torch.rand(400, generator=g) + 0.1).to(DEVICE) if weighted else None
    return csr_from_edges(ends[0].to(DEVICE), ends[1].to(DEVICE), 90, weight)


def shard(csr: CSR, rank: int) -> Shard:
    """One of three ranks, without the other two."""
    whole, (lo, hi) = prepare(csr), BOUNDS[rank : rank + 2]
    return Shard(
        rank, BOUNDS, None, own_rows(whole.pull, Layout(rank, BOUNDS, None), DEVICE), whole.scale[lo:hi],
        whole.dangling.cpu(), whole.symmetric, csr.m, True,
    )  # fmt: skip


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_side_by_side_are_the_whole(
    monkeypatch: pytest.MonkeyPatch, implementation: str, weighted: bool, dtype: torch.dtype
) -> None:
    if implementation == "triton":
        monkeypatch.setattr(importlib.import_module("gpu_rag_kernels.pagerank.triton"), "CHUNK", 8)
    csr = graph(weighted)
    g = torch.Generator().manual_seed(1)
    x, source = (torch.rand(90, 5, generator=g).to(DEVICE, dtype) for _ in range(2))
    step = dispatch.kernel("ppr_spmm", "ppr_spmm", DEVICE, implementation)
    monkeypatch.setattr("gpu_rag.graph.pagerank.sharded.graph.kernel", lambda package, function, device: step)
    sizes = [b - a for a, b in zip(BOUNDS, BOUNDS[1:])]
    places = torch.cat([r * STRIDE + torch.arange(size) for r, size in enumerate(sizes)])
    with poisoned():
        whole = step(csr, x, source, 0.85)
        parts = []
        for rank, (lo, hi) in enumerate(zip(BOUNDS[:-1], BOUNDS[1:])):
            held = shard(csr, rank)
            state = torch.full((3 * STRIDE, 5), torch.nan, dtype=dtype, device=DEVICE)  # places of no node are not read
            state[places.to(DEVICE)] = x
            parts.append(held.product(state, source[lo:hi], 0.85))
            assert parts[-1].shape == (hi - lo, 5)
    assert torch.equal(torch.cat(parts), whole), "with the same bits"
    dense = torch.zeros(90, 90, dtype=torch.float64)
    rows = torch.repeat_interleave(torch.arange(90), csr.indptr.cpu().diff())
    dense[rows, csr.indices.cpu().long()] = 1.0 if csr.weight is None else csr.weight.cpu().double()
    exact = 0.85 * dense @ x.cpu().double() + 0.15 * source.cpu().double()
    assert torch.allclose(whole.cpu().double(), exact, rtol=1e-5 if dtype == torch.float32 else 1e-12)
