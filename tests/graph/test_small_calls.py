"""Short calls: compiled checks against slow ones, and scratch that is clean from call to call and from thread to
thread."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import refusal, slow_checks

from gpu_rag.errors import BadInput
from gpu_rag.graph import ego as ego_module
from gpu_rag.graph import ragged as ragged_module
from gpu_rag.graph.bubble import bubble_expansion
from gpu_rag.graph.csr import check_csr, csr_from_edges
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs
from gpu_rag.graph.ragged import check_ragged, expand
from gpu_rag.graph.reach import ANY, EITHER, OUT, TypedGraph, reachable, typed_graph
from gpu_rag.types import CSR, Ragged

QUICK = settings(max_examples=200, deadline=None, derandomize=True)
N = 6000


def both_ways(call: Callable[[], object]) -> tuple[str, str]:
    """The refusal with the compiled checks, and without them."""
    with slow_checks(ragged_module):
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


def is_set(lists: Ragged, n: int) -> bool:
    """Whether the offsets cut the values into lists, each strictly ascending and in [0, n)."""
    values, offsets = lists.values.tolist(), lists.offsets.tolist()
    if offsets[0] != 0 or offsets[-1] != len(values) or offsets != sorted(offsets):
        return False
    rows = [values[a:b] for a, b in zip(offsets, offsets[1:])]
    return all(0 <= v < n for v in values) and all(row == sorted(set(row)) for row in rows)


@QUICK
@given(lists_of(), st.sampled_from([None, 0, 3, 5, 9]))
def test_lists_are_refused_alike_unless_they_are_sets(lists: Ragged, n: int | None) -> None:
    """By compiled checks and slow ones, which say of sets nothing, and of what has no order that it has none."""
    in_range, slow = both_ways(lambda: check_ragged(lists, "lists", n=n))
    assert in_range == slow
    said, slow = both_ways(lambda: check_ragged(lists, "lists", n=n, ascending=True))
    assert said == slow
    assert said == in_range or (in_range == "" and "not in order" in said)
    assert n is None or (said == "") == is_set(lists, n)


@pytest.mark.parametrize("most", [1, 3, 7, 1000])
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=12))
def test_pieces_hold_all_and_no_more_than_they_may(most: int, spans: list[tuple[int, int]]) -> None:
    first = torch.tensor([a for a, _ in spans], dtype=torch.int64)
    last = torch.tensor([a + length for a, length in spans], dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged_module, "EXPAND_AT_ONCE", most)
        pieces = [(owner.tolist(), place.tolist()) for owner, place in expand(first, last)]
    found = [pair for owner, place in pieces for pair in zip(owner, place)]
    assert found == [(i, p) for i, (a, length) in enumerate(spans) for p in range(a, a + length)]
    assert all(len(owner) <= most or len(set(owner)) == 1 for owner, _ in pieces)
    assert len(pieces) <= max(1, len(spans))


SMALL = 6
ROWS = st.lists(st.lists(st.integers(-1, SMALL), max_size=4), max_size=4)
SHIFTS = st.sampled_from([0, 0, 0, 0, 1, -1])


@QUICK
@given(ROWS, ROWS, SHIFTS, st.sampled_from([torch.int32, torch.int64]), st.booleans())
def test_questions_of_reachable_are_refused_alike(
    starts: list[list[int]], chains: list[list[int]], shift: int, dtype: torch.dtype, matching: bool
) -> None:
    """By numba in one compiled pass, by torch with the slow checks: one message, or one answer."""
    graph = typed_graph(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0]), torch.tensor([1, 2, 3]), SMALL, 3)
    if matching:
        chains = (chains + [[]] * 4)[: len(starts)]
    directions = [[1 + abs(v) % 3 for v in row] for row in chains]
    if directions and directions[-1] and shift < 0:
        directions[-1][-1] = 4
    asked = [ragged(starts, dtype), ragged(chains), ragged(directions)]
    if shift > 0:
        asked[len(starts) % 3].offsets[-1] += shift
    found = [refusal(lambda i=i: reachable(graph, *asked, implementation=i)) for i in ("numba", "torch")]  # type: ignore[misc]
    assert found[0] == found[1]


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
    ball = ego_balls(world()[1], seeds, b % 4, limit=(None, 40, 0, 1000)[b // 4 % 4], include=[(b % 3, N)])
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


def is_sound(csr: CSR) -> bool:
    """Row pointers that never fall, from 0 to the number of entries; rows that ascend inside the matrix; weights that
    are finite and not negative."""
    indptr, indices, n = csr.indptr.tolist(), csr.indices.tolist(), csr.n
    if indptr[0] != 0 or indptr[n] != len(indices) or indptr != sorted(indptr):
        return False
    if csr.weight is not None and (len(csr.weight) != len(indices) or not all(0 <= w < np.inf for w in csr.weight)):
        return False
    rows = [indices[a:b] for a, b in zip(indptr, indptr[1:])]
    return all(row == sorted(set(row)) and all(0 <= column < n for column in row) for row in rows)


@st.composite
def matrices(draw: st.DrawFn) -> CSR:
    """Matrices, of which most have one fault planted: two entries exchanged or made equal, a column beyond the matrix,
    an entry that changes its row, a row pointer or a weight that is wrong."""
    n = draw(st.integers(1, 5))
    rows = [sorted(draw(st.sets(st.integers(0, n - 1), max_size=4))) for _ in range(n)]
    indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    indices = torch.tensor([column for row in rows for column in row], dtype=torch.int32)
    m, weight = len(indices), torch.ones(len(indices)) if draw(st.booleans()) else None
    fault, at = draw(st.sampled_from(["", "swap", "repeat", "column", "move", "pointer", "weight", "length"])), 0
    if m > 1:
        at = draw(st.integers(0, m - 2))
    if fault == "swap" and m > 1:
        indices[[at, at + 1]] = indices[[at + 1, at]]
    elif fault == "repeat" and m > 1:
        indices[at + 1] = indices[at]
    elif fault == "column" and m:
        indices[at] = draw(st.sampled_from([-1, n]))
    elif fault in ("move", "pointer"):
        steps = [-1, 1] if fault == "move" else [-m - 1, -2, 2, m + 1]
        indptr[draw(st.integers(0, n))] += draw(st.sampled_from(steps))
    elif fault == "weight" and weight is not None and m:
        weight[at] = draw(st.sampled_from([-1.0, np.nan, np.inf, -0.0]))
    elif fault == "length" and weight is not None:
        weight = weight[1:]
    return CSR(indptr, indices, weight)


def test_a_matrix_is_refused_if_a_look_at_every_row_refuses_it() -> None:
    sound = []

    @settings(max_examples=600, deadline=None, derandomize=True)
    @given(matrices())
    def compare(csr: CSR) -> None:
        sound.append(is_sound(csr))
        assert (refusal(lambda: check_csr(csr)) == "") == sound[-1]

    compare()
    assert 0.2 < np.mean(sound) < 0.8  # both kinds are among the draws
