"""Merging and cutting of hop edges, scores of pairs, and candidates: against loops written from their definitions."""

import math
from collections.abc import Callable
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
import torch
from hybrid_pairs import sets
from hypothesis import given, settings
from hypothesis import strategies as st
from joins import hybrid_argmax
from ragged_lists import ragged

from gpu_rag.errors import BadInput
from gpu_rag.graph.frontier import described
from gpu_rag.graph.join import candidates
from gpu_rag.graph.join.candidates import SharedKeywords
from gpu_rag.graph.ragged import some_lists
from gpu_rag.methods.hoprag.stages.edges import cut_to_budget, edge_budget, edges_of_matches, strongest_parallel
from gpu_rag.methods.hoprag.stages.matching import Side, _best_of_pairs
from gpu_rag.types import Ragged

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
Edge = tuple[int, int, float]

# few vertices and few strengths, so that parallel edges and ties are common
EDGES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0.1, 0.5, 0.5000001, 0.9])), max_size=24
)


def columns(edges: list[Edge]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source, target, strength = ([e[k] for e in edges] for k in range(3))
    return np.asarray(source, np.int32), np.asarray(target, np.int32), np.asarray(strength, np.float64)


def strongest_by_hand(edges: list[Edge]) -> list[int]:
    best: dict[tuple[int, int], int] = {}
    for row, (source, target, strength) in enumerate(edges):
        held = best.get((source, target))
        if held is None or strength > edges[held][2]:
            best[source, target] = row
    return [best[pair] for pair in sorted(best)]


def check_strongest(op: Callable[..., np.ndarray], edges: list[Edge]) -> None:
    assert op(*columns(edges)).tolist() == strongest_by_hand(edges)


@QUICK
@given(EDGES)
def test_of_parallel_edges_the_strongest_stays(edges: list[Edge]) -> None:
    check_strongest(strongest_parallel, edges)


def keeps_the_first(source: np.ndarray, target: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return strongest_parallel(source, target, np.zeros_like(strength))


def keeps_the_last_of_equals(source: np.ndarray, target: np.ndarray, strength: np.ndarray) -> np.ndarray:
    back = strongest_parallel(source[::-1], target[::-1], strength[::-1])
    return len(source) - 1 - back


@pytest.mark.parametrize("wrong", [keeps_the_first, keeps_the_last_of_equals])
def test_wrong_choices_among_parallel_edges_are_caught(wrong: Callable[..., np.ndarray]) -> None:
    edges = [(0, 1, 0.5), (0, 1, 0.7), (0, 1, 0.7), (0, 2, 0.6)]
    check_strongest(strongest_parallel, edges)
    with pytest.raises(AssertionError):
        check_strongest(wrong, edges)


def cut_by_hand(edges: list[Edge], budget: int) -> list[int]:
    ranked = sorted(range(len(edges)), key=lambda e: (-edges[e][2], edges[e][0], edges[e][1]))
    last = {edges[e][0]: e for e in reversed(ranked)}  # the strongest of each source
    return sorted({*ranked[:budget], *last.values()})


def check_cut(op: Callable[..., np.ndarray], edges: list[Edge], budget: int) -> None:
    kept = op(*columns(edges), budget).tolist()
    assert kept == cut_by_hand(edges, budget)
    assert {edges[e][0] for e in kept} == {source for source, _, _ in edges}  # nobody lost the last one
    assert len(kept) <= budget + len({source for source, _, _ in edges})


def merged(edges: list[Edge]) -> list[Edge]:
    return [edges[row] for row in strongest_by_hand(edges)]


@QUICK
@given(EDGES, st.integers(0, 12))
def test_the_cut_keeps_the_strongest_and_every_last_edge(edges: list[Edge], budget: int) -> None:
    check_cut(cut_to_budget, merged(edges), budget)


def drops_last_edges(source: np.ndarray, target: np.ndarray, strength: np.ndarray, budget: int) -> np.ndarray:
    return np.sort(np.lexsort((target, source, -strength))[:budget])


def keeps_any_edge_of_each(source: np.ndarray, target: np.ndarray, strength: np.ndarray, budget: int) -> np.ndarray:
    _, first = np.unique(source, return_index=True)
    return np.union1d(drops_last_edges(source, target, strength, budget), first)


@pytest.mark.parametrize("wrong", [drops_last_edges, keeps_any_edge_of_each])
def test_wrong_cuts_are_caught(wrong: Callable[..., np.ndarray]) -> None:
    edges = [(0, 1, 0.9), (0, 2, 0.8), (1, 0, 0.1), (1, 2, 0.3)]
    assert cut_to_budget(*columns(edges), 1).tolist() == [0, 3]
    with pytest.raises(AssertionError):
        check_cut(wrong, edges, 1)


def test_the_budget_is_n_log_n() -> None:
    assert [edge_budget(n, 1.0) for n in (0, 1, 2, 3, 4, 8)] == [0, 0, 2, 4, 8, 24]
    assert edge_budget(1000, 0.5) == math.floor(500 * math.log2(1000)) and edge_budget(9, 0.0) == 0


def test_edges_of_matches_by_hand() -> None:
    """Vertices 0, 1, 2 with in-questions 0 | 1 2 | 3; out-questions 0 1 2 | 3 | 4 (no match)."""
    in_vertex, out_vertex = np.array([0, 1, 1, 2]), np.array([0, 0, 0, 1, 2])
    question, sim = np.array([2, 1, 1, 0, -1]), np.array([0.6, 0.6, 0.6, 0.2, -np.inf])
    edges, n_uncut = edges_of_matches(question, sim, out_vertex, in_vertex, 3, 1.0)
    # three of vertex 0 lead to vertex 1 with equal SIM: the lowest in-question (1), then the lowest out-question (1)
    assert {name: column.tolist() for name, column in edges.items()} == {
        "source": [0, 1], "target": [1, 0], "question": [1, 0], "out_question": [1, 3], "sim": [0.6, 0.2]
    }  # fmt: skip
    assert n_uncut == 2


@QUICK
@given(st.data())
def test_a_smaller_budget_keeps_a_part_of_the_edges(data: Any) -> None:
    n_in, n_out, n = 6, 12, 4
    question = np.array(data.draw(st.lists(st.integers(-1, n_in - 1), min_size=n_out, max_size=n_out)))
    sim = np.array(data.draw(st.lists(st.sampled_from([0.2, 0.4, 0.6]), min_size=n_out, max_size=n_out)))
    out_vertex, in_vertex = np.arange(n_out) % n, np.arange(n_in) % n
    sets = []
    for factor in (0.0, 0.2, 1.0, 9.0):
        edges, n_uncut = edges_of_matches(question, sim, out_vertex, in_vertex, n, factor)
        sets.append(set(zip(edges["source"].tolist(), edges["target"].tolist())))
        assert {v for v, _ in sets[-1]} == {int(v) for v in out_vertex[question >= 0]}
        assert len(sets[-1]) >= min(n_uncut, edge_budget(n, factor))
    assert sets[0] <= sets[1] <= sets[2] <= sets[3] and len(sets[3]) == n_uncut


def drawn_sides(seed: int, n_left: int = 7, n_right: int = 9) -> tuple[torch.Tensor, Ragged, torch.Tensor, Ragged]:
    generator = np.random.default_rng(seed)
    sides: list[Any] = []
    for n in (n_left, n_right):
        vectors = generator.integers(-1, 2, (n, 4)).astype(np.float64)  # few directions: many ties
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        words = [sorted(generator.choice(5, generator.integers(0, 4), replace=False).tolist()) for _ in range(n)]
        sides += [torch.from_numpy(vectors.astype(np.float16)), ragged(words, torch.int32)]
    return tuple(sides)


def side_of(vectors: torch.Tensor, words: Ragged) -> Side:
    return Side(vectors, words, torch.zeros(7, dtype=torch.int64), np.arange(7))


@QUICK
@given(st.integers(0, 10**6))
def test_the_best_of_all_pairs_is_that_of_the_join(seed: int) -> None:
    left, left_words, right, right_words = drawn_sides(seed)
    side, some = side_of(left, left_words), torch.arange(1 + seed % 9).flip(0)
    index, score = hybrid_argmax(left, left_words, right[: len(some)], some_lists(right_words, some.flip(0)))
    best, exact = _best_of_pairs(
        side, described(right, right_words, 5), *torch.cartesian_prod(torch.arange(7), some).T.contiguous()
    )
    assert best.tolist() == index.tolist() and exact.tolist() == score.tolist()


def test_rows_without_a_pair_have_no_best() -> None:
    left, left_words, right, right_words = drawn_sides(3)
    side, things = side_of(left, left_words), described(right, right_words, 5)
    index, score = _best_of_pairs(side, things, torch.tensor([2, 2]), torch.tensor([5, 1]))
    assert index.tolist()[:2] == [-1, -1] and index[2] in (1, 5) and score[0] == -np.inf
    empty = torch.zeros(0, dtype=torch.int64)
    assert set(_best_of_pairs(side, things, empty, empty)[0].tolist()) == {-1}


Vectors = tuple[torch.Tensor, torch.Tensor]


def pairs_of(left: Ragged, right: Ragged, vectors: Vectors, bits: Any = None) -> set[tuple[int, int]]:
    """All candidates of two sides."""
    shared, found = SharedKeywords(left, right, bits), set[tuple[int, int]]()
    for first in range(0, left.batch, 4):  # pieces of left rows, as callers ask for them
        for i, j in shared.rare_pairs(first, min(first + 4, left.batch)):
            assert (i.diff() >= 0).all()
            found |= set(zip((i + first).tolist(), j.tolist()))
    n_rows = 0
    for part in chain.from_iterable(shared.common_blocks()):
        i, j = shared.rows_of(part, *vectors)
        assert (i.diff() > 0).all() and (j.diff() > 0).all()
        found |= set(product(i.tolist(), j.tolist()))
        n_rows += len(i)
    assert n_rows == shared.n_common  # what progress counts to
    return found


def check_shared(seed: int) -> None:
    left, left_words, right, right_words = drawn_sides(seed)
    pairs = {(i, j) for (i, a), (j, b) in product(enumerate(sets(left_words)), enumerate(sets(right_words))) if a & b}
    assert pairs_of(left_words, right_words, (left, right)) == pairs


@pytest.mark.parametrize("ratio", [0, 1, 10**6])  # all keywords are common, some are, none is
def test_rows_that_share_a_keyword_are_candidates(ratio: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "RATIO", ratio)
    monkeypatch.setattr(candidates, "LEFT_ROWS", 2)
    for seed, block in product(range(40), (1, 1 << 30)):
        monkeypatch.setattr(candidates, "BLOCK", block)
        check_shared(seed)


def test_a_lost_part_of_a_common_keyword_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "RATIO", 0)
    monkeypatch.setattr(candidates, "pairwise", lambda cuts: [(0, cuts[-1] - 1)])
    with pytest.raises(AssertionError):
        check_shared(1)


def common_word(n: int, seed: int) -> tuple[torch.Tensor, Ragged]:
    """Unit rows near to each other in groups of six; word 0 belongs to all, and each row has a word of its own."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n // 6 + 1, 32))[np.arange(n) // 6] + 0.3 * rng.normal(size=(n, 32))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return torch.from_numpy(rows.astype(np.float16)), ragged([[0, 1 + seed * n + i] for i in range(n)], torch.int32)


def check_common_word(n: int = 1500) -> None:
    """Few rows with a common word are candidates, and most near rows are among these."""
    (left, left_words), (right, right_words) = common_word(n, 1), common_word(n, 2)
    right[: n // 2] = left[: n // 2]
    pairs = pairs_of(left_words, right_words, (left, right))
    near = {(i, j) for i, j in (left.float() @ right.float().T > 0.9).nonzero().tolist()}
    assert len(near & pairs) > 0.9 * len(near) > n and len(pairs) < n * n / 2


@pytest.fixture
def short_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BUCKET", 200)


@pytest.mark.usefixtures("short_buckets")
def test_near_rows_of_a_very_common_word_are_candidates() -> None:
    check_common_word()


@pytest.mark.usefixtures("short_buckets")
@pytest.mark.parametrize(("name", "value"), [("DRAWS", 1), ("BUCKET", 10**6)])
def test_too_few_draws_and_whole_lists_are_caught(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, name, value)
    with pytest.raises(AssertionError):
        check_common_word()


@pytest.mark.usefixtures("short_buckets")
def test_the_order_of_rows_does_not_show_in_candidates() -> None:
    (left, left_words), (right, right_words) = common_word(300, 1), common_word(300, 2)
    order = torch.from_numpy(np.random.default_rng(3).permutation(300))
    moved = pairs_of(left_words, some_lists(right_words, order), (left, right[order]))
    pairs = pairs_of(left_words, right_words, (left, right))
    assert {(i, int(order[j])) for i, j in moved} == pairs and len(pairs) < 300 * 300


@pytest.mark.usefixtures("short_buckets")
@pytest.mark.parametrize("n_right", [5, 250, 300])
def test_some_rows_have_the_candidates_that_they_have_among_all(n_right: int) -> None:
    (left, left_words), (right, right_words) = common_word(300, 1), common_word(300, 2)
    rows = torch.arange(7)
    some = some_lists(left_words, rows), some_lists(right_words, torch.arange(n_right)), (left[rows], right[:n_right])
    expected = {(i, j) for i, j in pairs_of(left_words, right_words, (left, right)) if i < 7 and j < n_right}
    assert pairs_of(*some, candidates.bucket_bits(left_words, right_words)) == expected != pairs_of(*some)


def test_lists_that_do_not_ascend_and_negative_words_are_refused() -> None:
    _, lists = common_word(3, 1)
    for bad in (Ragged(lists.values - 1, lists.offsets), Ragged(lists.values.flip(0), lists.offsets)):
        for sides in ((bad, lists), (lists, bad)):
            with pytest.raises(BadInput):
                SharedKeywords(*sides)
