"""The edges of a graph as PyG's `EdgeIndex`: the same edges, and a clear error without PyG."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import MissingBackend
from gpu_rag.graph import interop
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR


@st.composite
def graphs(draw: st.DrawFn) -> CSR:
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    edges = torch.tensor(draw(st.lists(st.tuples(node, node), max_size=16)), dtype=torch.int64).reshape(-1, 2).T
    weight = torch.tensor([float(w) for w in range(1, edges.shape[1] + 1)]) / 8 if draw(st.booleans()) else None
    return csr_from_edges(edges[0], edges[1], n, weight, undirected=draw(st.booleans()), drop_self_loops=False)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(graphs())
def test_pyg_edge_index(csr: CSR) -> None:
    pyg = pytest.importorskip("torch_geometric")
    edges, weight = interop.csr_to_edge_index(csr)
    assert isinstance(edges, pyg.EdgeIndex) and edges.is_sorted_by_row and edges.num_rows == csr.n
    assert weight is csr.weight and edges.shape == (2, csr.m)
    if csr.m > 1:  # PyG's check cannot take an empty list
        assert edges.validate() is edges
        (rowptr, columns), _ = edges.get_csr()
        assert rowptr.tolist() == csr.indptr.tolist() and columns.tolist() == csr.indices.tolist()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "find_spec", lambda name: None)
    with pytest.raises(MissingBackend, match="torch-geometric"):
        interop.csr_to_edge_index(csr_from_edges(torch.tensor([0]), torch.tensor([1]), 2))
