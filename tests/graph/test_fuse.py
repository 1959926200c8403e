"""Reciprocal rank fusion and row scaling against plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput
from gpu_rag.graph.fuse import minmax_rows, rrf
from gpu_rag.types import TopK

Fuse = Callable[..., TopK]


def ranking(rows: Sequence[Sequence[int]], width: int) -> TopK:
    ids = torch.tensor([list(r) + [-1] * (width - len(r)) for r in rows], dtype=torch.int32).reshape(len(rows), width)
    return TopK(ids, torch.where(ids >= 0, 0.0, -torch.inf))


def brute(lists: Sequence[Sequence[int]], constants: Sequence[float], k: int) -> list[tuple[int, np.float32]]:
    score: dict[int, float] = {}
    for items, constant in zip(lists, constants, strict=True):
        for item in dict.fromkeys(items):
            score[item] = score.get(item, 0.0) + 1 / (constant + 1 + items.index(item))
    best = sorted((-np.float32(s), i) for i, s in score.items())[:k]
    return [(i, -s) for s, i in best] + [(-1, np.float32(-np.inf))] * (k - len(best))


def check(fuse: Fuse, questions: list[list[list[int]]], constants: list[float], k: int) -> None:
    """questions[b][r]: what ranking r says for question b."""
    width = [max((len(q[r]) for q in questions), default=0) for r in range(len(constants))]
    rankings = [ranking([q[r] for q in questions], width[r]) for r in range(len(constants))]
    found = fuse(rankings, k, constants=constants)
    assert found.ids.dtype == torch.int32 and found.scores.dtype == torch.float32
    for b, lists in enumerate(questions):
        pairs = list(zip(found.ids[b].tolist(), found.scores[b].numpy(), strict=True))
        assert pairs == brute(lists, constants, k)


CONSTANTS = [60.0, 1.0, 0.0]


def by_torch(rankings: Sequence[TopK], k: int, *, constants: Sequence[float]) -> TopK:
    return rrf(rankings, k, constants=constants, implementation="torch")


@pytest.mark.parametrize("fuse", [rrf, by_torch])
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 8), max_size=7), min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(0, 12),
)
def test_is_the_formula(fuse: Fuse, questions: list[list[list[int]]], k: int) -> None:
    check(fuse, questions, CONSTANTS, k)


def test_many_questions_by_threads_have_the_bits_of_torch_and_of_each_alone() -> None:
    r = np.random.default_rng(0)
    rankings = [
        TopK(torch.from_numpy(r.integers(-1, 2**31, (700, 40), dtype=np.int32) // scale), torch.zeros(700, 40))
        for scale in (1, 2**20, 2**26)
    ]
    rankings = [TopK(x.ids.to(dtype), x.scores) for x, dtype in zip(rankings, (torch.int32, torch.int64, torch.int32))]
    want = by_torch(rankings, 50, constants=CONSTANTS)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = rrf(rankings, 50, constants=CONSTANTS)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found.ids, want.ids) and torch.equal(found.scores, want.scores)
    alone = rrf([TopK(x.ids[9:10], x.scores[9:10]) for x in rankings], 50, constants=CONSTANTS)
    assert torch.equal(alone.ids[0], want.ids[9]) and torch.equal(alone.scores[0], want.scores[9])


@pytest.mark.parametrize("fuse", [rrf, by_torch])
def test_scores_from_nothing_to_infinity(fuse: Fuse) -> None:
    found = fuse([ranking([[5, 7]], 2), ranking([[9, 7, 4]], 3)], 4, constants=[1e308, -1 + 1e-16])
    assert found.ids.tolist() == [[9, 7, 4, 5]]
    assert found.scores[0].tolist() == [float(np.float32(1 / (1 + (-1 + 1e-16)))), 1.0, 0.5, 0.0]


def test_by_hand() -> None:
    found = rrf([ranking([[5, 7]], 3), ranking([[7, 9]], 2)], 4, constants=[1, 1])
    assert found.ids.tolist() == [[7, 5, 9, -1]]
    assert torch.allclose(found.scores[0, :3], torch.tensor([1 / 3 + 1 / 2, 1 / 2, 1 / 3]))
    assert rrf([ranking([[4, 2]], 2), ranking([[2, 4]], 2)], 2, constants=[60, 60]).ids.tolist() == [[2, 4]]


def rank_from_zero(rankings: Sequence[TopK], k: int, *, constants: Sequence[float]) -> TopK:
    return rrf(rankings, k, constants=[c - 0.5 for c in constants])


def one_constant(rankings: Sequence[TopK], k: int, *, constants: Sequence[float]) -> TopK:
    return rrf(rankings, k, constants=[constants[0]] * len(constants))


def duplicates_count_twice(rankings: Sequence[TopK], k: int, *, constants: Sequence[float]) -> TopK:
    single = [
        TopK(torch.where(torch.arange(r.ids.shape[1]) == c, r.ids, -1), r.scores)
        for r in rankings
        for c in range(r.ids.shape[1])
    ]
    return rrf(
        single, k, constants=[c for r, c in zip(rankings, constants, strict=True) for _ in range(r.ids.shape[1])]
    )


@pytest.mark.parametrize("wrong", [rank_from_zero, one_constant, duplicates_count_twice])
def test_checks_catch(wrong: Fuse) -> None:
    with pytest.raises(AssertionError):
        check(wrong, [[[3, 1, 3], [1, 3], []], [[2], [], [2, 5]]], CONSTANTS, 4)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("nothing to fuse", lambda: rrf([], 1, constants=[])),
        ("needs a constant", lambda: rrf([ranking([[1]], 1)], 1, constants=[])),
        ("constant is out of range", lambda: rrf([ranking([[1]], 1)], 1, constants=[-1])),
        ("not of the same questions", lambda: rrf([ranking([[1]], 1), ranking([[1], [1]], 1)], 1, constants=[1, 1])),
        ("id is negative", lambda: rrf([ranking([[-2]], 1)], 1, constants=[1])),
        ("not finite", lambda: minmax_rows(torch.tensor([[1.0, float("inf")]]))),
        ("no matrix", lambda: minmax_rows(torch.zeros(3))),
    ],
)
def test_bad_input_says_what(match: str, call: Callable[[], object]) -> None:
    with pytest.raises(BadInput, match=match):
        call()


def check_minmax(scaled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0], [-3e38, 3e38, 0.0]])
    assert torch.equal(scaled(x), torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.5]]))
    assert scaled(torch.zeros(2, 0)).shape == (2, 0) and scaled(torch.zeros(0, 3)).shape == (0, 3)


def test_minmax() -> None:
    check_minmax(minmax_rows)
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(minmax_rows(x)[2], minmax_rows(x[2:3])[0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: (x - x.amin()) / (x.amax() - x.amin()),
        lambda x: (x - x.amin(1, keepdim=True)) / (x.amax(1, keepdim=True) - x.amin(1, keepdim=True)),
    ],
)
def test_minmax_checks_catch(wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check_minmax(wrong)
