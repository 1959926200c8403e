"""Graphs to other libraries and back: the same graph, the same memory where that is promised, clear errors."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from gpu_rag.errors import BadInput
from gpu_rag.graph import interop
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.reach import TypedGraph, typed_graph
from gpu_rag.types import CSR

QUICK = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def graphs(draw: st.DrawFn) -> CSR:
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    edges = torch.tensor(draw(st.lists(st.tuples(node, node), max_size=16)), dtype=torch.int64).reshape(-1, 2).T
    weight = torch.tensor([float(w) for w in range(1, edges.shape[1] + 1)]) / 8 if draw(st.booleans()) else None
    return csr_from_edges(edges[0], edges[1], n, weight, undirected=draw(st.booleans()), drop_self_loops=False)


def same(one: CSR, other: CSR, *, ones: bool = False) -> None:
    """ones: a matrix without weights may have come back with weights of 1."""
    assert torch.equal(one.indptr, other.indptr) and torch.equal(one.indices, other.indices)
    assert (one.indptr.dtype, one.indices.dtype) == (other.indptr.dtype, other.indices.dtype)
    if one.weight is None and ones and other.weight is not None:
        assert torch.equal(other.weight, torch.ones(one.m))
    else:
        assert (one.weight is None) == (other.weight is None)
        assert one.weight is None or other.weight is None or torch.equal(one.weight, other.weight)


def dense(csr: CSR) -> np.ndarray:
    """Entry by entry."""
    matrix = np.zeros((csr.n, csr.n))
    for row in range(csr.n):
        for e in range(int(csr.indptr[row]), int(csr.indptr[row + 1])):
            matrix[row, int(csr.indices[e])] = 1.0 if csr.weight is None else float(csr.weight[e])
    return matrix


@QUICK
@given(graphs())
def test_scipy(csr: CSR) -> None:
    matrix = interop.csr_to_scipy(csr)
    assert np.array_equal(matrix.toarray(), dense(csr))
    same(csr, interop.csr_from_scipy(matrix), ones=True)
    same(csr, interop.csr_from_scipy(matrix.tocsc().astype(np.float64)), ones=True)


def test_scipy_duplicates_are_summed_and_the_matrix_is_left_alone() -> None:
    held = scipy.sparse.coo_matrix(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2)).tocsr()
    twice = scipy.sparse.csr_matrix((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2, 2])), shape=(2, 2))
    same(interop.csr_from_scipy(twice), interop.csr_from_scipy(held))
    assert twice.nnz == 2 and interop.csr_from_scipy(twice).weight.tolist() == [3.0]  # type: ignore[union-attr]


@QUICK
@given(graphs())
def test_networkx(csr: CSR) -> None:
    graph = interop.csr_to_networkx(csr)
    assert list(graph) == list(range(csr.n))
    assert graph.is_directed() != np.array_equal(dense(csr), dense(csr).T)
    assert np.array_equal(nx.to_numpy_array(graph), dense(csr))
    back, names = interop.csr_from_networkx(graph, weight=None if csr.weight is None else "weight")
    same(csr, back)
    assert names == list(range(csr.n))


def test_networkx_names_and_parallel_edges() -> None:
    graph = nx.MultiDiGraph([("b", "a"), ("b", "a"), ("a", "c")])
    csr, names = interop.csr_from_networkx(graph)
    assert names == ["b", "a", "c"] and dense(csr).tolist() == [[0, 2, 0], [0, 0, 1], [0, 0, 0]]
    empty, none = interop.csr_from_networkx(nx.Graph())
    assert (empty.n, empty.m, none) == (0, 0, []) and empty.weight is not None
    assert interop.csr_from_networkx(nx.Graph(), weight=None)[0].weight is None


# --- the same memory -------------------------------------------------------------------------------


def weighted() -> CSR:
    return csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 4, torch.tensor([0.5, 2.0]))


def test_dlpack_shares_memory_both_ways() -> None:
    csr = weighted()
    indptr, indices, weight = interop.csr_arrays(csr)
    assert isinstance(weight, np.ndarray) and weight.dtype == np.float32
    for array, tensor in ((indptr, csr.indptr), (indices, csr.indices), (weight, csr.weight)):
        assert array.__array_interface__["data"][0] == tensor.data_ptr()  # type: ignore[union-attr]
    mine = [np.array([0, 1, 1]), np.array([1], np.int32), np.array([3.0], np.float32)]
    back = interop.csr_from_arrays(*mine)
    mine[2][0] = 7.0
    assert back.weight is not None and back.weight.tolist() == [7.0], "the same memory"
    assert interop.csr_arrays(CSR(csr.indptr, csr.indices))[2] is None
    same(csr, interop.csr_from_arrays(*interop.csr_arrays(csr, torch.from_dlpack)))


# --- PyG -------------------------------------------------------------------------------------------


@QUICK
@given(graphs())
def test_pyg_edge_index(csr: CSR) -> None:
    pyg = pytest.importorskip("torch_geometric")
    edges, weight = interop.csr_to_edge_index(csr)
    assert isinstance(edges, pyg.EdgeIndex) and edges.is_sorted_by_row and edges.num_rows == csr.n
    if csr.m > 1:  # its own check cannot take an empty list
        assert edges.validate() is edges
        (rowptr, columns), _ = edges.get_csr()
        assert rowptr.tolist() == csr.indptr.tolist() and columns.tolist() == csr.indices.tolist()
    same(csr, interop.csr_from_edge_index(edges, csr.n, weight))


@st.composite
def typed(draw: st.DrawFn) -> tuple[TypedGraph, dict[str, tuple[int, int]], list[str]]:
    a, b = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    node = st.integers(0, a + b - 1)
    edges = draw(st.lists(st.tuples(node, st.integers(0, 2), node), max_size=14))
    columns = torch.tensor(edges, dtype=torch.int64).reshape(-1, 3).T
    relations = ["cites", "has", "wrote"]
    return typed_graph(*columns, a + b, 3), {"book": (0, a), "person": (a, a + b)}, relations


@pytest.mark.filterwarnings("ignore:The node types")  # that no edge leads to
@QUICK
@given(typed())
def test_pyg_hetero(case: tuple[TypedGraph, dict[str, tuple[int, int]], list[str]]) -> None:
    pytest.importorskip("torch_geometric")
    graph, ranges, relations = case
    hetero = interop.typed_to_hetero(graph, ranges, relations)
    assert hetero.validate() and hetero.node_types == list(ranges)
    assert hetero.num_edges == graph.out_node.shape[0]
    back, back_ranges, names = interop.typed_from_hetero(hetero)
    assert back_ranges == ranges and set(names) <= set(relations)
    for side in ("out", "in"):
        indptr, relation, node = (getattr(graph, f"{side}_{part}") for part in ("indptr", "relation", "node"))
        assert torch.equal(indptr, getattr(back, f"{side}_indptr")) and torch.equal(node, getattr(back, f"{side}_node"))
        kinds = [names[r] for r in getattr(back, f"{side}_relation").tolist()]
        assert kinds == [relations[r] for r in relation.tolist()]


@pytest.mark.filterwarnings("ignore:The node types")
@QUICK
@given(graphs(), st.integers(0, 8))
def test_pyg_hetero_of_a_csr(csr: CSR, cut: int) -> None:
    pytest.importorskip("torch_geometric")
    cut = min(cut, csr.n)
    ranges = {"passage": (0, cut), "entity": (cut, csr.n)}
    hetero = interop.csr_to_hetero(csr, ranges)
    assert hetero.validate() and hetero.num_edges == csr.m
    back, back_ranges = interop.csr_from_hetero(hetero)
    assert back_ranges == ranges
    same(csr if csr.m else CSR(csr.indptr, csr.indices), back)
    if csr.m:  # PyG's own way to one graph
        whole = hetero.to_homogeneous()
        assert whole.num_nodes == csr.n
        same(
            csr,
            interop.csr_from_edge_index(whole.edge_index, csr.n, whole.edge_weight if csr.weight is not None else None),
        )


def test_pyg_hetero_relations_become_one_matrix() -> None:
    pyg = pytest.importorskip("torch_geometric")
    hetero = pyg.data.HeteroData()
    hetero["a"].num_nodes, hetero["b"].num_nodes = 1, 2
    for name, weight in (("likes", 0.5), ("knows", 2.0)):
        hetero["a", name, "b"].edge_index = torch.tensor([[0], [1]])
        hetero["a", name, "b"].edge_weight = torch.tensor([weight])
    csr, ranges = interop.csr_from_hetero(hetero)
    assert ranges == {"a": (0, 1), "b": (1, 3)} and dense(csr).tolist() == [[0, 0, 2.5], [0, 0, 0], [0, 0, 0]]
    del hetero["a", "likes", "b"].edge_weight
    with pytest.raises(BadInput, match="only some edge types have weights; given 1 of 2"):
        interop.csr_from_hetero(hetero)


def test_pyg_hetero_by_hand() -> None:
    pytest.importorskip("torch_geometric")
    graph = typed_graph(torch.tensor([0, 2, 2]), torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2]), 3, 2)
    hetero = interop.typed_to_hetero(graph, {"book": (0, 2), "person": (2, 3)}, ["cites", "likes"])
    assert {kind: hetero[kind].edge_index.tolist() for kind in hetero.edge_types} == {
        ("book", "cites", "book"): [[0], [1]],
        ("person", "likes", "book"): [[0], [0]],
        ("person", "likes", "person"): [[0], [0]],
    }


def nodes_not_shifted(graph: TypedGraph, ranges: dict[str, tuple[int, int]], relations: list[str]) -> Any:
    """A wrong version: whole-graph ids in each kind."""
    hetero = interop.typed_to_hetero(graph, ranges, relations)
    for left, name, right in hetero.edge_types:
        shift = torch.tensor([[ranges[left][0]], [ranges[right][0]]])
        hetero[left, name, right].edge_index = hetero[left, name, right].edge_index + shift
    return hetero


def test_pyg_would_see_nodes_that_are_not_shifted() -> None:
    pytest.importorskip("torch_geometric")
    graph = typed_graph(torch.tensor([2]), torch.tensor([0]), torch.tensor([0]), 3, 1)
    with pytest.raises(ValueError):
        nodes_not_shifted(graph, {"book": (0, 2), "person": (2, 3)}, ["likes"]).validate()


# --- errors ----------------------------------------------------------------------------------------


test_bad_input_says_what = refusals(
    [
        ("square", lambda: interop.csr_from_scipy(scipy.sparse.csr_matrix((2, 3)))),
        ("wrong shape", lambda: interop.csr_from_edge_index(torch.zeros(3, dtype=torch.int64), 2)),
        ("dst of an edge is no node", lambda: interop.csr_from_edge_index(torch.tensor([[0], [2]]), 2)),
        ("do not cover", lambda: interop.csr_to_hetero(weighted(), {"a": (0, 3)})),
    ]
)
