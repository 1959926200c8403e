"""Connected components: every implementation against union by brute force."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu_rag_kernels import dispatch
from gpu_rag_kernels.dispatch import recording
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.graph.components import BY, connected_components
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR

Label = Callable[[CSR], torch.Tensor]


def brute(n: int, pairs: list[tuple[int, int]]) -> list[int]:
    label = list(range(n))
    for _ in range(n):
        for a, b in pairs:
            label[a] = label[b] = min(label[a], label[b])
    return label


def graph(n: int, pairs: list[tuple[int, int]], undirected: bool) -> CSR:
    ends = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return csr_from_edges(ends[:, 0], ends[:, 1], n, undirected=undirected)


def check(label: Label, n: int, pairs: list[tuple[int, int]], undirected: bool) -> None:
    found = label(graph(n, pairs, undirected))
    assert found.dtype == torch.int64
    assert found.tolist() == brute(n, pairs)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 25), st.data(), st.booleans())
def test_against_brute_force(n: int, data: st.DataObject, undirected: bool) -> None:
    nodes = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(nodes, nodes), max_size=25))
    for label in (connected_components, *BY.values()):
        check(label, n, pairs, undirected)


@pytest.mark.parametrize("label", [connected_components, *BY.values()])
def test_by_hand_and_a_long_path(label: Label) -> None:
    assert label(graph(4, [(0, 2), (1, 3)], True)).tolist() == [0, 1, 0, 1]
    assert label(graph(0, [], True)).shape == (0,)
    order = [(i * 7) % 101 for i in range(101)]  # a path whose labels fall slowly
    check(label, 101, list(zip(order, order[1:], strict=False)), True)


def test_without_numba_scipy_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert dispatch.pick_implementation(cpu, family="components") == "numba"
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    assert dispatch.pick_implementation(cpu, family="components") == "scipy"
    assert dispatch.pick_implementation(gpu, family="components") == "torch"


def test_an_implementation_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    csr = graph(4, [(0, 2), (1, 3)], True)
    with recording() as record:
        for name in BY:
            assert connected_components(csr, implementation=name).tolist() == [0, 1, 0, 1]
    assert record == {"connected_components": set(BY)}
    with pytest.raises(UsageError, match="expected numba, scipy, torch, auto"):
        connected_components(csr, implementation="fast")
    with pytest.raises(UsageError, match="scipy works on the CPU"):
        dispatch.pick_implementation(torch.device("cuda"), "scipy", family="components")
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    with pytest.raises(MissingBackend):
        connected_components(csr, implementation="numba")


def one_round(csr: CSR) -> torch.Tensor:
    label = torch.arange(csr.n)
    for v in range(csr.n):
        for w in csr.indices[csr.indptr[v] : csr.indptr[v + 1]].tolist():
            label[v] = min(int(label[v]), w)
    return label


@pytest.mark.parametrize("wrong", [one_round, lambda csr: torch.zeros(csr.n, dtype=torch.int64)])
def test_checks_catch(wrong: Label) -> None:
    with pytest.raises(AssertionError):
        check(wrong, 6, [(0, 5), (5, 3), (3, 4), (1, 2)], True)
