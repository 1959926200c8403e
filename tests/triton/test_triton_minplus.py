"""`minplus_relax` in Triton against the plain reference, bit by bit: interpreted on the CPU, or on a GPU."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gpu_rag_kernels import bubble as bubble_loops
from gpu_rag_kernels.bubble import UNREACHED
from kernel_device import DEVICE, NEEDS_TRITON
from refusals import caught

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR

pytestmark = [*NEEDS_TRITON, pytest.mark.usefixtures("nan_in_fresh_memory")]
Relax = Callable[[CSR, torch.Tensor, torch.Tensor], torch.Tensor]


def by_triton(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return bubble_loops.minplus_relax(csr, cost, state, implementation="triton")


def blocks(sizes: list[int], groups: int, seed: int, hub: int = 0) -> tuple[CSR, torch.Tensor, torch.Tensor]:
    """Random local graphs side by side, costs, and a start with two anchors a group in each graph."""
    r = np.random.default_rng(seed)
    starts = np.cumsum([0, *sizes])
    n = int(starts[-1])
    state = torch.full((groups, n), UNREACHED)
    ends = [np.zeros((2, 0), np.int64)]
    for first, size in zip(starts, sizes):
        ends.append(first + r.integers(0, size, (2, 2 * size)))
        for g in range(groups):
            anchors = torch.from_numpy(first + r.integers(0, size, 2))
            state[g, anchors] = anchors
    if hub:
        ends.append(np.stack([np.zeros(hub, np.int64), np.arange(hub)]))
    src, dst = torch.from_numpy(np.concatenate(ends, 1)).to(DEVICE)
    cost = torch.from_numpy(r.integers(1, int(r.choice([2, 4, 30_000])), n))
    return csr_from_edges(src, dst, n, undirected=False), cost.to(DEVICE), state.to(DEVICE)


CASES = [
    pytest.param([1], 1, 0, id="one node"),
    pytest.param([9], 1, 0, id="one group"),
    pytest.param([12, 1, 7], 3, 0, id="three blocks, groups that fill no tile"),
    pytest.param([30], 4, 30, id="a node with more entries than are read together"),
    pytest.param([8, 8], 17, 0, id="two tiles of groups"),
]


def check(relax: Relax, sizes: list[int], groups: int, hub: int, seed: int) -> None:
    csr, cost, state = blocks(sizes, groups, seed, hub)
    kept = state.clone()
    found = relax(csr, cost, state)
    assert torch.equal(state, kept), "the state that was given is written to"
    assert found.is_contiguous()
    assert torch.equal(found, bubble_loops.minplus_relax(csr, cost, state, implementation="reference"))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("sizes", "groups", "hub"), CASES)
def test_equals_the_reference(sizes: list[int], groups: int, hub: int, seed: int) -> None:
    check(by_triton, sizes, groups, hub, seed)


def path(n: int) -> tuple[CSR, torch.Tensor, torch.Tensor]:
    """Node i is entered from i - 1 only; group 0 starts at node 0: it takes n - 1 rounds."""
    csr = csr_from_edges(torch.arange(1, n), torch.arange(n - 1), n, undirected=False)
    state = torch.full((1, n), UNREACHED)
    state[0, 0] = 0
    return CSR(csr.indptr.to(DEVICE), csr.indices.to(DEVICE)), torch.arange(1, n + 1).to(DEVICE), state.to(DEVICE)


@pytest.mark.parametrize("n", [2, 4, 5, 6, 9, 10])
def test_paths_of_any_number_of_rounds(n: int) -> None:
    csr, cost, state = path(n)
    far = [(i + 1) * (i + 2) // 2 - 1 for i in range(n)]
    assert by_triton(csr, cost, state)[0].tolist() == [(d << 32) | max(i - 1, 0) for i, d in enumerate(far)]


@pytest.mark.parametrize("n_before", [0, 1, 2, 3])
def test_a_last_round_that_changes_a_predecessor_alone(n_before: int) -> None:
    """Node 0 is as near by way of 2 as by way of 3 and 1, which takes a round more: 1 has the smaller id."""
    edges = [(0, 1), (0, 2), (1, 3), (3, 4), (2, 4), *[(4 + i, 5 + i) for i in range(n_before)]]
    into, source = torch.tensor(edges).T
    csr = csr_from_edges(into, source, 5 + n_before, undirected=False)
    state = torch.full((1, csr.n), UNREACHED)
    state[0, -1] = csr.n - 1
    cost = torch.tensor([1, 3, 5, 2, *[1] * (n_before + 1)])
    found = by_triton(CSR(csr.indptr.to(DEVICE), csr.indices.to(DEVICE)), cost.to(DEVICE), state.to(DEVICE))
    assert int(found[0, 0]) == ((6 + n_before) << 32) | 1


def test_nothing_to_do() -> None:
    csr, cost, state = path(5)
    assert by_triton(csr, cost, state[:0]).shape == (0, 5)
    unreached = torch.full_like(state, UNREACHED)
    assert torch.equal(by_triton(csr, cost, unreached), unreached)
    done = by_triton(csr, cost, state)
    assert torch.equal(by_triton(csr, cost, done), done)


def test_a_question_alone_has_the_bits_of_the_batch() -> None:
    csr, cost, state = blocks([9, 14, 6], 2, 5)
    whole = by_triton(csr, cost, state)
    first, last = 9, 23
    low, high = int(csr.indptr[first]), int(csr.indptr[last])
    alone = CSR(csr.indptr[first : last + 1] - low, csr.indices[low:high] - first)
    moved = torch.where(state == UNREACHED, state, state - first)[:, first:last]
    found = by_triton(alone, cost[first:last].contiguous(), moved.contiguous())
    assert torch.equal(torch.where(found == UNREACHED, found, found + first), whole[:, first:last])


def module() -> Any:
    return importlib.import_module("gpu_rag_kernels.bubble.triton")


def one_round(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A wrong version: it stops after a round."""
    new, flags = torch.full_like(state.T, -1).contiguous(), torch.ones(2, dtype=torch.int32, device=DEVICE)
    tile = {"n_nodes": 8, "n_entries": 8, "n_groups": 16}
    grid = -(-csr.n // 8), -(-state.shape[0] // 16)
    module()._round[grid](
        csr.indptr, csr.indices, cost, state.T.contiguous(), new, flags, csr.n, state.shape[0],
        unreached=UNREACHED, **tile,
    )  # fmt: skip
    return new.T.contiguous()


def forgets_who_was_there(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A wrong version: the predecessor is that of the predecessor."""
    found = by_triton(csr, cost, state)
    low = 2**32 - 1
    before = found.gather(1, torch.where(found == UNREACHED, 0, found & low))
    return torch.where(found == UNREACHED, found, (found & ~low) | (before & low))


test_checks_catch = caught([one_round, forgets_who_was_there], check, [30], 3, 0, 1)
