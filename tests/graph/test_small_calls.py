"""Short calls: compiled checks against the slow ones, and scratch that is clean from call to call and from thread to
thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from gpu_rag_kernels.reach.numba import FEW
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import refusal

from gpu_rag.errors import BadInput
from gpu_rag.graph import csr as csr_module
from gpu_rag.graph import ego as blocks_module
from gpu_rag.graph import ego as ego_module
from gpu_rag.graph import ragged as ragged_module
from gpu_rag.graph.bubble import bubble_expansion
from gpu_rag.graph.common.arrays import shortened
from gpu_rag.graph.csr import check_csr, csr_from_edges
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs, local_nodes
from gpu_rag.graph.ragged import check_ragged
from gpu_rag.graph.reach import ANY, EITHER, OUT, TypedGraph, reachable, typed_graph
from gpu_rag.types import CSR, Blocks, Ragged

QUICK = settings(max_examples=200, deadline=None, derandomize=True)
N = 6000
MODULES = (blocks_module, csr_module, ragged_module)


# --- checks ----------------------------------------------------------------------------------------


def both_ways(call: Callable[[], object]) -> tuple[str, str]:
    """The refusal with the compiled checks, and without them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "compiled_checks", lambda device: None)
        slow = refusal(call)
    return refusal(call), slow


@st.composite
def lists_of(draw: st.DrawFn) -> Ragged:
    """Lists that mostly ascend, some with an offset that is moved."""
    rows = draw(st.lists(st.lists(st.integers(-1, 5), max_size=4), max_size=4))
    if draw(st.booleans()):
        rows = [sorted({v for v in row if v >= 0}) for row in rows]
    if rows and draw(st.booleans()):
        rows[-1] += rows[-1][-1:]
    lists = ragged(rows, draw(st.sampled_from([torch.int32, torch.int64])))
    if draw(st.integers(0, 3)) == 0:
        lists.offsets[draw(st.integers(0, len(rows)))] += draw(st.sampled_from([-3, -1, 1, 3]))
    return lists


@QUICK
@given(lists_of(), st.sampled_from([None, 0, 3, 5, 9]))
def test_lists_are_refused_alike(lists: Ragged, n: int | None) -> None:
    for ascending in (False, True):
        compiled, slow = both_ways(lambda ascending=ascending: check_ragged(lists, "lists", n=n, ascending=ascending))
        assert compiled == slow


@st.composite
def matrices(draw: st.DrawFn) -> CSR:
    """Small matrices of which most are broken in one place."""
    rows = draw(st.lists(st.sets(st.integers(0, 4), max_size=4).map(sorted), min_size=5, max_size=5))
    indptr = torch.tensor(np.cumsum([0] + [len(row) for row in rows]))
    indices = torch.tensor([v for row in rows for v in row], dtype=torch.int32)
    weight = torch.rand(len(indices), generator=torch.Generator().manual_seed(0)) if draw(st.booleans()) else None
    broken = draw(st.sampled_from(["", "indptr", "indices", "weight", "length"]))
    if broken == "indptr":
        indptr[draw(st.integers(0, 5))] += draw(st.sampled_from([-9, -1, 1, 9]))
    if broken == "indices" and len(indices):
        indices[draw(st.just(len(indices) - 1) | st.integers(0, len(indices) - 1))] = draw(st.integers(-2, 6))
    if broken == "weight" and weight is not None and len(indices):
        weight[draw(st.integers(0, len(indices) - 1))] = draw(st.sampled_from([-1.0, torch.nan, torch.inf, -0.0]))
    if broken == "length" and weight is not None:
        weight = weight[1:]
    return CSR(indptr, indices, weight)


@QUICK
@given(matrices())
def test_matrices_are_refused_alike(csr: CSR) -> None:
    compiled, slow = both_ways(lambda: check_csr(csr))
    assert compiled == slow


@QUICK
@given(st.lists(st.tuples(*[st.sets(st.integers(0, 9), max_size=5).map(sorted)] * 2), max_size=4), st.integers(-1, 12))
def test_local_nodes_are_found_alike(pairs: list[tuple[list[int], list[int]]], more: int) -> None:
    """Lists of nodes that are in their blocks, but for one that may not be."""
    asked = [[v for v in wanted if v in ids] for ids, wanted in pairs]
    if asked:
        asked[-1].append(more)
    ids, lists = ragged([ids for ids, _ in pairs], torch.int32), ragged(asked)
    n = ids.values.shape[0]
    blocks = Blocks(CSR(torch.zeros(n + 1).long(), torch.zeros(0).int()), ids.offsets, ids.values)
    compiled, slow = both_ways(lambda: local_nodes(blocks, lists, "nodes"))
    assert compiled == slow
    if not slow:
        rows = local_nodes(blocks, lists, "nodes")
        assert rows.values.dtype == torch.int64 and torch.equal(ids.values[rows.values].long(), lists.values)
        block = torch.searchsorted(ids.offsets, rows.values, right=True) - 1
        assert torch.equal(block, ragged_module.row_of_value(lists))


BROKEN = CSR(torch.tensor([0, 2, 2]), torch.tensor([1, 0], dtype=torch.int32))


@pytest.mark.parametrize(
    "call",
    [
        lambda: ego_balls(BROKEN, ragged([[0]]), 1),
        lambda: induced_subgraphs(BROKEN, ragged([[0]])),
        lambda: checked(BROKEN),
    ],
)
def test_a_raw_matrix_is_checked_in_every_call(call: Callable[[], object]) -> None:
    for _ in range(2):
        with pytest.raises(BadInput, match="not sorted"):
            call()


# --- scratch ---------------------------------------------------------------------------------------


@cache
def world() -> tuple[TypedGraph, CheckedGraph]:
    """A graph with hubs: steps that sort a few entries, that mark many, and that reach most nodes."""
    r = np.random.default_rng(0)
    ends = torch.from_numpy(np.stack([(N * r.random(30_000) ** 3).astype(np.int64), r.integers(0, N, 30_000)]))
    kinds = torch.from_numpy(r.integers(0, 5, 30_000))
    weight = torch.from_numpy(r.random(30_000))
    return typed_graph(ends[0], kinds, ends[1], N, 5), checked(csr_from_edges(ends[0], ends[1], N, weight))


def asked_of_reach(seed: int, batch: int) -> tuple[Ragged, Ragged, Ragged]:
    """Chains of 0 to 4 steps from 0 to 400 starts, some given twice."""
    r = np.random.default_rng(seed)
    starts = [r.integers(0, N, r.choice([0, 1, 5, 400])).tolist() for _ in range(batch)]
    steps = r.integers(0, 5, batch).tolist()
    chains = [r.choice([ANY, 0, 1, 2, 3, 4], k).tolist() for k in steps]
    return ragged(starts), ragged(chains), ragged([r.integers(OUT, EITHER + 1, k).tolist() for k in steps])


def one_of(lists: Ragged, b: int) -> Ragged:
    first, last = lists.offsets[b : b + 2].tolist()
    return Ragged(lists.values[first:last], torch.tensor([0, last - first]))


def reach_alone(asked: tuple[Ragged, Ragged, Ragged], b: int) -> Any:
    return reachable(world()[0], *(one_of(lists, b) for lists in asked)).values


def balls_alone(asked: tuple[Ragged, Ragged, Ragged], b: int) -> Any:
    """A ball and its subgraph; the limit changes from question to question."""
    seeds = one_of(asked[0], b)
    ball = ego_balls(world()[1], seeds, b % 4, limit=(None, 40, 0, 1000)[b // 4 % 4], exclude=[(0, b % 3)])
    blocks = induced_subgraphs(world()[1], ball)
    assert blocks.csr.weight is not None
    return torch.cat([ball.values, blocks.csr.indptr, blocks.csr.indices, blocks.csr.weight.view(torch.int32)])


def bubbles_alone(asked: tuple[Ragged, Ragged, Ragged], b: int) -> Any:
    seeds = one_of(asked[0], b)
    anchors = Ragged(seeds.values[:6].unique(), torch.tensor([0, len(seeds.values[:6].unique())]))
    blocks = induced_subgraphs(world()[1], ego_balls(world()[1], anchors, 1, limit=500))
    groups = Ragged(torch.arange(anchors.values.shape[0]) % 3, anchors.offsets)
    found = bubble_expansion(blocks, blocks.global_ids % 7, anchors, groups)
    return torch.cat([found.nodes.values, found.nodes.offsets, found.distance, found.groups, found.kind])


def test_the_world_has_all_kinds_of_steps() -> None:
    """Few entries, and many that are sorted or read off the marks; else the tests below see little."""
    found = reachable(world()[0], *asked_of_reach(1, 80))
    sizes = found.offsets.diff()
    assert (sizes == 0).any() and ((sizes > 0) & (sizes < FEW)).any()
    assert ((sizes > FEW) & (sizes < N // 16)).any() and (sizes > N // 16).any()


def test_reach_equals_torch() -> None:
    asked = asked_of_reach(1, 80)
    found = reachable(world()[0], *asked)
    other = reachable(world()[0], *asked, implementation="torch")
    assert torch.equal(found.values, other.values) and torch.equal(found.offsets, other.offsets)


@pytest.mark.parametrize("limit", [None, 200])
@pytest.mark.parametrize("batch", [1, 4, 5, 70])
def test_balls_of_small_and_large_groups_equal_torch(batch: int, limit: int | None) -> None:
    """Up to four questions are searched one by one, more of them by bits."""
    seeds = asked_of_reach(2, batch)[0]
    for radius, ranges in ((0, {}), (2, {}), (3, {"include": [(100, 5000)]})):
        found = ego_balls(world()[1], seeds, radius, limit=limit, **ranges)
        other = ego_balls(world()[1], seeds, radius, limit=limit, implementation="torch", **ranges)
        assert torch.equal(found.values, other.values) and torch.equal(found.offsets, other.offsets)


ALONE = [reach_alone, balls_alone, bubbles_alone]


@pytest.mark.parametrize("alone", ALONE)
def test_calls_in_any_order_give_the_same(alone: Callable[..., Any]) -> None:
    asked = asked_of_reach(3, 30)
    first = [alone(asked, b) for b in range(30)]
    for b in np.random.default_rng(4).integers(0, 30, 90).tolist():
        assert torch.equal(alone(asked, b), first[b]), b


@pytest.mark.parametrize("alone", ALONE)
def test_calls_from_two_threads_give_the_same(alone: Callable[..., Any]) -> None:
    asked = asked_of_reach(5, 24)
    first = [alone(asked, b) for b in range(24)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            for b, again in enumerate(pool.map(lambda b: alone(asked, b), range(24))):
                assert torch.equal(again, first[b]), b


def dirty(shape: Any, dtype: Any = np.float64) -> np.ndarray:
    """Memory as an earlier call may have left it: small numbers, which look like places in a block."""
    return (np.arange(int(np.prod(shape))) % 50).astype(dtype).reshape(shape).copy()


def test_what_memory_held_before_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few nodes of a large graph, of which only a part is cleared, and many."""
    wanted = [ragged([[5, 9, 700]]), ragged([list(range(0, N, 2))]), ragged([[1], [], [2, 3], list(range(900))])]
    other = [induced_subgraphs(world()[1], nodes, implementation="torch") for nodes in wanted]
    monkeypatch.setattr(ego_module.np, "empty", dirty)
    for nodes, expected in zip(wanted, other):
        found = induced_subgraphs(world()[1], nodes)
        assert torch.equal(found.csr.indptr, expected.csr.indptr) and torch.equal(
            found.csr.indices, expected.csr.indices
        )


def test_shortened_in_place() -> None:
    rows = np.arange(12).reshape(6, 2).copy()
    assert shortened(rows, 2).tolist() == [[0, 1], [2, 3]] and shortened(np.empty((3, 0)), 1).shape == (1, 0)
