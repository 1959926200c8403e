"""Connected components against scipy: the label is the smallest node id of the component; wrong versions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes

from gpu_rag.graph.components import connected_components
from gpu_rag.types import CSR

QUICK = settings(max_examples=35, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
Fn = Callable[[CSR], torch.Tensor]


def csr_of(n: int, edges: np.ndarray, weighted: bool = False, directed: bool = False) -> CSR:
    both = edges if directed else np.concatenate([edges, edges[:, ::-1]])
    m = sp.coo_matrix((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(n, n)).tocsr()
    m.sort_indices()
    weight = torch.full((m.nnz,), 0.5) if weighted else None
    return CSR(torch.tensor(m.indptr, dtype=torch.int64), torch.tensor(m.indices, dtype=torch.int32), weight)


def to_scipy(csr: CSR) -> sp.csr_matrix:
    return sp.csr_matrix((np.ones(csr.m), csr.indices.numpy(), csr.indptr.numpy()), shape=(csr.n, csr.n))


def by_scipy(csr: CSR, pick: Any = np.minimum) -> torch.Tensor:
    if csr.n == 0:
        return torch.zeros(0, dtype=torch.int64)
    _, component = sp.csgraph.connected_components(to_scipy(csr), directed=False)
    start = np.full(component.max() + 1, csr.n if pick is np.minimum else -1)
    pick.at(start, component, np.arange(csr.n))
    return torch.tensor(start[component], dtype=torch.int64)


def assert_labels(components: Fn, csr: CSR) -> None:
    got = components(csr)
    # compared as tensors: a diff of two long lists, which pytest draws in CI, takes minutes
    assert got.dtype == torch.int64 and torch.equal(got, by_scipy(csr))


def check_random(components: Fn) -> None:
    """Small graphs; where an edge is stored one way only, its direction is ignored."""

    @QUICK
    @given(st.integers(0, 12), st.booleans(), st.booleans(), st.data())
    def holds(n: int, weighted: bool, directed: bool, data: Any) -> None:
        node = st.integers(0, max(n - 1, 0))
        pairs = data.draw(st.lists(st.tuples(node, node), max_size=10 if n else 0))
        assert_labels(components, csr_of(n, np.array(pairs, dtype=int).reshape(-1, 2), weighted, directed))

    holds()


def check_long(components: Fn) -> None:
    """A path of 3,000 nodes, in order, reversed and shuffled; a comb; a large sparse random graph."""
    rng = np.random.default_rng(0)
    for names in (np.arange(3000), np.arange(3000)[::-1], rng.permutation(3000)):
        assert_labels(components, csr_of(3000, np.stack([names[:-1], names[1:]], 1)))
        halves = np.delete(np.stack([names[:-1], names[1:]], 1), [900, 1700], axis=0)
        assert_labels(components, csr_of(3001, halves))
    assert_labels(components, csr_of(4000, rng.integers(0, 4000, (2200, 2))))


def rounds(n_rounds: int) -> Fn:
    """Wrong where the diameter exceeds the fixed number of rounds of label spreading."""

    def components(csr: CSR) -> torch.Tensor:
        label, m = np.arange(csr.n), to_scipy(csr).tocoo()
        for _ in range(n_rounds):
            np.minimum.at(label, m.row, label[m.col])
        return torch.tensor(label, dtype=torch.int64)

    return components


def strong(csr: CSR) -> torch.Tensor:
    """Wrong: components that can be left and entered, by direction."""
    _, component = sp.csgraph.connected_components(to_scipy(csr), connection="strong")
    first = np.full(csr.n, csr.n)
    np.minimum.at(first, component, np.arange(csr.n))
    return torch.tensor(first[component], dtype=torch.int64)


def dense_labels(csr: CSR) -> torch.Tensor:
    """Wrong: labels count components instead of naming a node."""
    return torch.unique(by_scipy(csr), return_inverse=True)[1]


WRONG = [
    (rounds(1), check_random),
    (rounds(30), check_long),
    (lambda csr: by_scipy(csr, np.maximum), check_random),
    (strong, check_random),
    (dense_labels, check_random),
    (lambda csr: torch.arange(csr.n), check_random),
    (lambda csr: torch.zeros(csr.n, dtype=torch.int64), check_random),
]


test_wrong_components_are_caught = caught(WRONG)


test_connected_components = passes([by_scipy, connected_components], [check_random, check_long])
