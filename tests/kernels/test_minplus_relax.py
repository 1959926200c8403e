"""The relaxation kernel: every implementation against networkx's Dijkstra, with the predecessors of the smallest id."""

from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch
from gpu_rag_kernels import bubble as kernel
from gpu_rag_kernels.bubble import UNREACHED
from gpu_rag_kernels.dispatch import installed, interpreted
from refusals import caught

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR

Relax = Callable[[CSR, torch.Tensor, torch.Tensor], torch.Tensor]


def start(n: int, groups: list[list[int]]) -> torch.Tensor:
    state = torch.full((len(groups), n), UNREACHED)
    for g, nodes in enumerate(groups):
        state[g, nodes] = torch.tensor(nodes, dtype=torch.int64)
    return state


def check(relax: Relax) -> None:
    for seed in range(40):
        r = np.random.default_rng(seed)
        n = int(r.integers(1, 30))
        ends = torch.from_numpy(r.integers(0, n, (2, int(r.integers(0, 70)))))
        pull = csr_from_edges(ends[1], ends[0], n, undirected=False)  # row u: the nodes that it is entered from
        cost = torch.from_numpy(r.integers(1, int(r.choice([2, 5, 30_000])), n))
        groups = [r.integers(0, n, 2).tolist() for _ in range(int(r.integers(1, 4)))]
        state = start(n, groups)
        kept = state.clone()
        found = relax(pull, cost, state)
        assert torch.equal(state, kept), "the state that was given is written to"
        graph = nx.DiGraph()
        graph.add_nodes_from(range(n))
        for u in range(n):
            for v in pull.indices[pull.indptr[u] : pull.indptr[u + 1]].tolist():
                graph.add_edge(v, u, weight=int(cost[u]))
        for g, nodes in enumerate(groups):
            far = nx.multi_source_dijkstra_path_length(graph, set(nodes))
            for u in range(n):
                if u not in far:
                    assert int(found[g, u]) == UNREACHED
                    continue
                tight = [v for v in graph.predecessors(u) if v in far and far[v] + int(cost[u]) == far[u]]
                assert int(found[g, u]) >> 32 == far[u], "another distance"
                assert int(found[g, u]) & (2**32 - 1) == (u if u in nodes else min(tight)), "another predecessor"


@pytest.mark.parametrize(
    "implementation", ["reference", *(["triton"] if installed("triton") and interpreted() else [])]
)
def test_is_dijkstra(implementation: str) -> None:
    check(lambda *args: kernel.minplus_relax(*args, implementation=implementation))


def rounds(csr: CSR, paid: torch.Tensor, state: torch.Tensor, n_rounds: int) -> torch.Tensor:
    """So many rounds over all entries, paid[e] for entry e."""
    rows = torch.repeat_interleave(torch.arange(csr.n), csr.indptr.diff())
    for _ in range(n_rounds):
        held = state[:, csr.indices.long()]
        offer = torch.where(held == UNREACHED, held, (held >> 32) + paid << 32 | csr.indices)
        state = state.scatter_reduce(1, rows.expand(state.shape[0], -1), offer, "amin")
    return state


def too_few_rounds(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return rounds(csr, torch.repeat_interleave(cost, csr.indptr.diff()), state, 3)


def pays_to_leave(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return rounds(csr, cost[csr.indices.long()], state, 30)


def against_the_edges(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    rows = torch.repeat_interleave(torch.arange(csr.n), csr.indptr.diff())
    turned = csr_from_edges(csr.indices.long(), rows, csr.n, undirected=False)
    return kernel.minplus_relax(turned, cost, state)


def highest_predecessor(csr: CSR, cost: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Renames the nodes backwards, so that ties go to the largest id."""
    n = csr.n
    rows = torch.repeat_interleave(torch.arange(n), csr.indptr.diff())
    turned = csr_from_edges(n - 1 - rows, n - 1 - csr.indices.long(), n, undirected=False)
    low = 2**32 - 1
    flipped = torch.where(state == UNREACHED, state, (state & ~low) | (n - 1 - (state & low))).flip(1)
    found = kernel.minplus_relax(turned, cost.flip(0), flipped).flip(1)
    return torch.where(found == UNREACHED, found, (found & ~low) | (n - 1 - (found & low)))


test_checks_catch = caught([too_few_rounds, pays_to_leave, against_the_edges, highest_predecessor], check)
