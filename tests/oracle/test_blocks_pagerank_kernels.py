"""The parts of PageRank on blocks whose mistakes a result could hide: the symmetric case, and how many sweeps it takes
(numbers of sweeps are those of the kernels, with little to spare)."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from scipy.sparse import csr_matrix

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import induced_subgraphs
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.types import Blocks

kernels = pytest.importorskip("gpu_rag_kernels.local_pagerank.numba", reason="needs numba")
QUICK = settings(max_examples=300, deadline=None, derandomize=True)


def mirrored(matrix: np.ndarray, weighted: bool) -> bool:
    """The kernel on the non-zero entries of a dense matrix."""
    held = csr_matrix(matrix)
    n, m = len(matrix), held.nnz
    room = np.empty(n, np.uint32), np.full(m, 77, np.uint32)
    pulled = held.data.astype(np.float64) if weighted else None
    return bool(kernels.is_mirrored(held.indptr.astype(np.uint64), held.indices.astype(np.uint32), pulled, *room))


def is_symmetric(matrix: np.ndarray, weighted: bool) -> bool:
    return bool((matrix == matrix.T).all() if weighted else ((matrix > 0) == (matrix > 0).T).all())


@QUICK
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_symmetric_is_found(seed: int, n: int, changes: int, weighted: bool) -> None:
    """Symmetric matrices, and those with a few entries changed, set to zero, or swapped with another of their row."""
    r = np.random.default_rng(seed)
    half = np.triu(r.integers(1, 4, (n, n)) * (r.random((n, n)) < r.random()))
    matrix = half + np.triu(half, 1).T
    for _ in range(changes):
        matrix[r.integers(n), r.integers(n)] = r.integers(0, 4)
        row, one, other = r.integers(n, size=3)
        matrix[row, [one, other]] = matrix[row, [other, one]]
    assert mirrored(matrix, weighted) == is_symmetric(matrix, weighted)


def test_equal_degrees_are_not_enough() -> None:
    """A directed ring: each row names one column, and each column is named once."""
    assert not mirrored(np.roll(np.eye(5), 1, axis=1), False)
    assert mirrored(np.roll(np.eye(2), 1, axis=1), False), "with two nodes the ring is an edge"


def one_block(graph: nx.Graph) -> Blocks:
    ends = torch.tensor(list(graph.edges), dtype=torch.int64)
    return induced_subgraphs(csr_from_edges(ends[:, 0], ends[:, 1], len(graph)), ragged([list(range(len(graph)))]))


@pytest.mark.parametrize(
    ("graph", "most"),
    [
        (nx.barabasi_albert_graph(600, 4, seed=1), 12),  # 20 without the correction of the mass
        (nx.complete_graph(60), 7),
        (nx.disjoint_union(nx.complete_graph(40), nx.complete_graph(30)), 24),  # a slow component that stays
        (nx.path_graph(300), 32),  # mixes slowly: omega has to grow
        (nx.star_graph(200), 8),
    ],
    ids=["hubs", "clique", "two cliques", "path", "star"],
)
def test_sweeps_that_a_symmetric_block_takes(graph: nx.Graph, most: int) -> None:
    blocks, seeds = one_block(graph), ragged([[0, 3, 9]])
    found = blocks_pagerank(blocks, seeds, max_iter=most, implementation="numba").values.double()
    exact = nx.pagerank(graph, 0.85, personalization=dict.fromkeys((0, 3, 9), 1), tol=1e-14, max_iter=5000)
    assert sum(abs(exact[v] - float(found[v])) for v in exact) <= 1.1e-6
    with pytest.raises(GpuRagError, match="did not converge"):
        blocks_pagerank(blocks, seeds, max_iter=2, implementation="numba")


def test_omega_grows_only_and_stays_below_the_best_for_the_damping() -> None:
    for d in (0.1, 0.5, 0.85, 0.99):
        most = 2 / (1 + np.sqrt(1 - d * d))
        for omega in np.linspace(1.0, most, 7):
            for rate in (0.0, 1e-9, 0.05, 0.3, 0.9, 1.0):
                assert omega <= kernels.fitted(omega, rate, d) <= most + 1e-12
    best = 2 / (1 + np.sqrt(1 - 0.36))
    assert kernels.fitted(1.0, 0.36, 0.85) == pytest.approx(1 + 0.8 * (best - 1)), "Gauss-Seidel shrinks by mu^2 = .36"
