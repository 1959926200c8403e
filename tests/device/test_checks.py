"""The checks of graphs on a device: in one pass that the host waits for once, they refuse what the CPU's refuse."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from stand_in import Device, stand_in

from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.csr import check_csr, csr_from_edges
from gpu_rag.graph.nearest import on_host
from gpu_rag.graph.ragged import check_ragged, places_of
from gpu_rag.types import CSR, Ragged, TopK


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with stand_in() as made:
        yield made


def some_csr(seed: int, n: int, m: int, *, weighted: bool) -> CSR:
    drawn = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(n, (2, m), generator=drawn)
    return csr_from_edges(src, dst, n, torch.rand(m, generator=drawn) if weighted else None, undirected=False)


BAD = [-1.0, float("nan"), float("inf"), 0.0]


def spoilt(csr: CSR, where: int, value: int, part: str) -> CSR:
    """`csr` with one number of one of its arrays changed; mostly broken, at times still sound."""
    indptr, indices, weight = csr.indptr.clone(), csr.indices.clone(), csr.weight
    if part == "indptr":
        indptr[where % len(indptr)] += value
    elif part == "indices" and len(indices):
        indices[where % len(indices)] += value
    elif weight is not None and len(weight):
        weight = weight.clone()
        weight[where % len(weight)] = BAD[value % len(BAD)]
    return CSR(indptr, indices, weight)


PARTS = st.sampled_from(["indptr", "indices", "weight"])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 20), st.integers(1, 6), st.integers(0, 9), st.integers(0, 99), st.integers(-3, 3), PARTS)
def test_a_graph_is_refused_as_on_the_cpu(
    device: Device, seed: int, n: int, m: int, where: int, value: int, part: str
) -> None:
    csr = spoilt(some_csr(seed, n, m, weighted=part == "weight"), where, value, part)
    assert refusal(lambda: check_csr(device.put(csr))) == refusal(lambda: check_csr(csr))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(-1, 6), max_size=4), max_size=4), st.booleans(), st.sampled_from([5, 2**63 - 1]))
def test_lists_are_sets_as_on_the_cpu(device: Device, rows: list[list[int]], tidy: bool, n: int) -> None:
    """Lists of 32 bits too, which hold no such n."""
    rows = [sorted(set(row)) for row in rows] if tidy else rows
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    values = torch.tensor([v for row in rows for v in row], dtype=torch.int32)
    expected = all(row == sorted(set(row)) and all(0 <= v < n for v in row) for row in rows)
    for held in (values, values.long()):
        lists = Ragged(held, offsets)
        both = (lists, device.put(lists))
        said, there = (refusal(lambda one=one: check_ragged(one, "lists", n=n, ascending=True)) for one in both)
        assert said == there
        assert (said == "") == expected


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), max_size=30))
def test_places_are_those_of_nonzero(device: Device, drawn: list[bool]) -> None:
    mask = device.put(torch.tensor(drawn, dtype=torch.bool))
    device.forget()
    assert device.back(places_of(mask, sum(drawn))).tolist() == [place for place, held in enumerate(drawn) if held]
    assert not device.syncs


def test_a_result_comes_to_the_host_in_one_copy(device: Device) -> None:
    scores = torch.tensor([[0.1, -torch.inf], [-0.0, 1e-40]])
    top = TopK(torch.tensor([[3, -1], [0, 2**31 - 1]], dtype=torch.int32), scores)
    there = device.put(top)
    device.forget()
    back = on_host(there)
    assert torch.equal(back.ids, top.ids) and torch.equal(back.scores.view(torch.int32), top.scores.view(torch.int32))
    assert len(device.syncs) == 1 and on_host(top) is top


def test_sound_ones_are_waited_for_once(device: Device) -> None:
    csr = some_csr(1, 9, 20, weighted=True)
    graph = device.put(csr)
    rows = device.put(torch.nn.functional.normalize(torch.randn(3000, 2000)))  # in two parts
    for check in (lambda: check_csr(graph), lambda: check_unit_rows(rows, "rows")):
        device.forget()
        check()
        assert len(device.syncs) == 1
    assert "row 2500" in refusal(
        lambda: check_unit_rows(rows.index_fill(0, device.put(torch.tensor([2500])), 0.5), "rows")
    )
