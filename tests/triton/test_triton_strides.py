"""Kernels read element i of an array at i: arrays with gaps between their elements give what packed ones give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_rag_kernels import bubble as bubble_loops
from gpu_rag_kernels import dispatch
from gpu_rag_kernels import ego as ego_loops
from gpu_rag_kernels import frontier as frontier_loops
from gpu_rag_kernels import join as join_loops
from gpu_rag_kernels import pagerank as pagerank_loops

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR, Ragged

DEVICE = "cuda" if torch.cuda.is_available() and not dispatch.interpreted() else "cpu"
pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif("triton" not in dispatch.loop_backends(DEVICE), reason="needs triton, or its interpreter"),
]
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


def spmm(way: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    x, source = way(drawn(N, 3)), way(drawn(N, 3, seed=1))
    return (pagerank_loops.ppr_spmm(graph(way, weighted=True), x, source, 0.85, implementation="triton"),)


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


def join(way: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    sides = []
    for seed, n in ((1, 3), (2, N)):
        vectors = torch.nn.functional.normalize(drawn(n, 5, seed=seed), dim=1)
        head, group = (drawn(n, 4, seed=seed) < 0.5).half(), whole(0, 2, n, seed=seed)
        sides.append(join_loops.Side(way(vectors), way(head), way(head.sum(1).int() + group.int()), way(group)))
    found = join_loops.join_top1(sides[0], sides[1], strip=4, implementation="triton")
    return found.best, found.index, found.second


@pytest.mark.parametrize("op", [spmm, step, hop, relax, gather, join], ids=lambda op: op.__name__)
def test_gaps_change_nothing(op: Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]) -> None:
    for one, other in zip(op(spaced), op(lambda a: a), strict=True):
        assert torch.equal(one, other)
