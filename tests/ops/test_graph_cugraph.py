"""The cuGraph backend with a stand-in for pylibcugraph: what it is handed, and what comes back. No GPU is involved."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from gpu_rag.errors import BadInput, GpuRagError, MissingBackend, UsageError
from gpu_rag.graph import cugraph
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import personalized_pagerank, prepare
from gpu_rag.types import CSR, Ragged

Calls = list[tuple[str, dict[str, Any]]]


class FakeGraph:
    def __init__(self, **given: Any):
        self.given = given


def networkx_pagerank(calls: Calls, converged: bool) -> Callable[..., Any]:
    def personalized_pagerank(*, graph: FakeGraph, **given: Any) -> Any:
        calls.append(("personalized_pagerank", given))
        indptr, columns = graph.given["src_or_offset_array"], graph.given["dst_or_index_array"]
        whole = nx.DiGraph()
        whole.add_nodes_from(range(len(indptr) - 1))
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        whole.add_weighted_edges_from(zip(rows.tolist(), columns.tolist(), graph.given["weight_array"].tolist()))
        mass = dict(zip(given["personalization_vertices"].tolist(), given["personalization_values"].tolist()))
        steps, tol = given["max_iterations"], given["epsilon"] / len(whole)
        ranks = nx.pagerank(whole, given["alpha"], mass, max_iter=steps, tol=tol, dangling=mass)
        order = list(ranks)[::-1]  # cuGraph promises no order
        return np.array(order), np.array([ranks[v] for v in order], np.float32), converged

    return personalized_pagerank


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return installed(monkeypatch, converged=True)


def installed(monkeypatch: pytest.MonkeyPatch, *, converged: bool) -> Calls:
    calls: Calls = []
    library, cupy = types.ModuleType("pylibcugraph"), types.ModuleType("cupy")

    def graph(**given: Any) -> FakeGraph:
        calls.append(("SGGraph", given))
        return FakeGraph(**given)

    held: Any = library
    held.ResourceHandle, held.SGGraph = (lambda: "handle"), graph
    held.GraphProperties = lambda **given: given
    held.personalized_pagerank = networkx_pagerank(calls, converged)
    cupy.from_dlpack = np.from_dlpack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pylibcugraph", library)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cugraph, "_check_available", lambda device: None)
    return calls


def directed(weighted: bool) -> CSR:
    r = np.random.default_rng(0)
    ends = torch.from_numpy(r.integers(0, 20, (2, 60)))
    weight = torch.from_numpy(r.random(60)) + 0.1 if weighted else None
    return csr_from_edges(ends[0], ends[1], 25, weight, undirected=False)  # some nodes are dangling


SEEDS = Ragged(torch.tensor([3, 7, 7, 1]), torch.tensor([0, 3, 3, 4]))
WEIGHTS = Ragged(torch.tensor([1.0, 2.0, 1.0, 5.0]), SEEDS.offsets)
NEGATIVE = Ragged(-WEIGHTS.values, SEEDS.offsets)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("weights", [WEIGHTS, None])
def test_gives_the_same_pagerank(calls: Calls, weighted: bool, weights: Ragged | None) -> None:
    csr = directed(weighted)
    found = cugraph.pagerank_by_cugraph(csr, SEEDS, weights, damping=0.7, tol=1e-6)
    exact = personalized_pagerank(csr, SEEDS, weights, damping=0.7, tol=1e-9)
    assert found.dtype == torch.float32 and float((found - exact).abs().sum(1).max()) < 3e-6
    assert torch.equal(found[1], torch.zeros(25)), "a question without seeds"
    again = cugraph.pagerank_by_cugraph(prepare(csr), SEEDS, weights, damping=0.7, tol=1e-6)
    assert torch.equal(again, found)


def test_one_graph_and_one_call_a_question(calls: Calls) -> None:
    csr = directed(True)
    cugraph.pagerank_by_cugraph(csr, SEEDS, WEIGHTS, damping=0.5, tol=1e-4, max_iter=77)
    assert [name for name, _ in calls] == ["SGGraph", "personalized_pagerank", "personalized_pagerank"]
    graph, first = calls[0][1], calls[1][1]
    assert graph["store_transposed"] is True and graph["renumber"] is False and graph["input_array_format"] == "CSR"
    assert graph["graph_properties"] == {"is_symmetric": False, "is_multigraph": False}
    assert np.array_equal(graph["src_or_offset_array"], csr.indptr.numpy())
    assert graph["src_or_offset_array"].dtype == graph["dst_or_index_array"].dtype == np.int64
    assert (first["alpha"], first["max_iterations"], first["fail_on_nonconvergence"]) == (0.5, 77, False)
    assert first["epsilon"] == pytest.approx(1e-4)
    assert first["personalization_vertices"].tolist() == [3, 7]
    assert first["personalization_values"].tolist() == pytest.approx([0.25, 0.75])


def test_no_convergence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, converged=False)
    with pytest.raises(GpuRagError, match="did not converge"):
        cugraph.pagerank_by_cugraph(directed(True), SEEDS)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cugraph, "find_spec", lambda name: None)
    with pytest.raises(MissingBackend, match=r"pylibcugraph is not installed; pip install 'gpu-rag\[gpu\]'"):
        cugraph.pagerank_by_cugraph(directed(True), SEEDS)
    monkeypatch.setattr(cugraph, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match="works on a GPU; given a graph on cpu"):
        cugraph.pagerank_by_cugraph(directed(True), SEEDS)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("seeds is no node", lambda csr: cugraph.pagerank_by_cugraph(csr, Ragged(SEEDS.values + 30, SEEDS.offsets))),
        ("weights do not fit", lambda csr: cugraph.pagerank_by_cugraph(csr, SEEDS, NEGATIVE)),
        ("option is out of range", lambda csr: cugraph.pagerank_by_cugraph(csr, SEEDS, damping=0.0)),
        ("option is out of range", lambda csr: cugraph.pagerank_by_cugraph(csr, SEEDS, max_iter=0)),
    ],
)  # fmt: skip
def test_bad_input_says_what(calls: Calls, match: str, call: Callable[[CSR], object]) -> None:
    with pytest.raises((BadInput, UsageError), match=match):
        call(directed(False))
    assert calls == []
