"""Reciprocal rank fusion with exact fractions, min-max scaling, and wrong versions of both."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes, refusals

from gpu_rag.graph.fuse import minmax_rows, rrf
from gpu_rag.types import TopK

QUICK = settings(max_examples=35, deadline=None, derandomize=True, database=None, phases=[Phase.generate])


def topk(rows: list[list[int]], width: int) -> TopK:
    """Rankings as TopK; the scores are of no meaning to the fusion, so they are made up."""
    ids = torch.tensor([r + [-1] * (width - len(r)) for r in rows], dtype=torch.int32).reshape(len(rows), width)
    scores = torch.arange(width, 0, -1.0).expand(len(rows), width) * 7 % 5
    return TopK(ids, torch.where(ids < 0, -torch.inf, scores.sort(descending=True).values))


def exact(rankings: list[list[int]], constants: Sequence[float], k: int) -> list[tuple[int, Fraction]]:
    """score = sum of 1 / (constant + best rank), rank from 1; sorted by (-score, id)."""
    score: dict[int, Fraction] = {}
    for ranking, c in zip(rankings, constants):
        for rank, node in reversed(list(enumerate(ranking, 1))):
            if rank == ranking.index(node) + 1:
                score[node] = score.get(node, Fraction(0)) + 1 / (Fraction(c) + rank)
    return sorted(score.items(), key=lambda x: (-x[1], x[0]))[:k]


@st.composite
def cases(draw: Any, max_rankings: int = 3) -> tuple[list[list[list[int]]], list[float], int]:
    """[ranking][row] -> ids of 0 .. 9, with repeats inside a ranking; constants; k."""
    b, m = draw(st.integers(1, 3)), draw(st.integers(1, max_rankings))
    row = st.lists(st.integers(0, 9), max_size=6)
    rankings = draw(st.lists(st.lists(row, min_size=b, max_size=b), min_size=m, max_size=m))
    constants = draw(st.lists(st.sampled_from([60.0, 60.0, 1.0, 20.0, 0.0]), min_size=m, max_size=m))
    return rankings, constants, draw(st.integers(1, 12))


def assert_row(ids: list[int], scores: list[float], want: list[tuple[int, Fraction]]) -> None:
    n = len(want)
    assert ids[:n] == [i for i, _ in want], f"{ids} instead of {want}"
    assert np.allclose(scores[:n], [float(s) for _, s in want], rtol=1e-6, atol=0)
    assert all(i == -1 for i in ids[n:]) and all(s == -np.inf for s in scores[n:])


def check_rrf(fuse: Callable[..., TopK]) -> None:
    @QUICK
    @given(cases())
    def holds(case: Any) -> None:
        rankings, constants, k = case
        width = [max(map(len, rows)) + j % 2 for j, rows in enumerate(rankings)]
        got = fuse([topk(rows, w) for rows, w in zip(rankings, width)], k, constants=constants)
        assert got.ids.dtype == torch.int32 and got.scores.dtype == torch.float32
        assert tuple(got.ids.shape) == (len(rankings[0]), k)
        for b, (ids, scores) in enumerate(zip(got.ids.tolist(), got.scores.tolist())):
            assert_row(ids, scores, exact([rows[b] for rows in rankings], constants, k))

    holds()


def check_hand_worked(fuse: Callable[..., TopK]) -> None:
    got = fuse([topk([[7, 3, 5]], 3), topk([[3, 9]], 4)], 5, constants=[60, 60])
    assert got.ids.tolist() == [[3, 7, 9, 5, -1]]
    want = [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63, -np.inf]
    assert np.allclose(got.scores.numpy(), [want], rtol=1e-6)
    one = fuse([topk([[2, 4]], 2), topk([[4, 2]], 2)], 2, constants=[10, 0])
    assert one.ids.tolist() == [[4, 2]], "the second ranking weighs more"


def check_exact_ties(fuse: Callable[..., TopK]) -> None:
    """Equal sums in another order of terms tie exactly, and the smaller id leads."""
    two = fuse([topk([[8, 2]], 2), topk([[2, 8]], 2)], 2, constants=[60, 60])
    assert two.ids.tolist() == [[2, 8]] and len(set(two.scores[0].tolist())) == 1
    turns = [topk([[6, 1, 4]], 3), topk([[4, 6, 1]], 3), topk([[1, 4, 6]], 3)]
    for constant in (1, 7, 20, 60):
        got = fuse(turns, 3, constants=[constant] * 3)
        assert got.ids.tolist() == [[1, 4, 6]], f"constant {constant}: {got}"


def variant(first: int = 1, missing: bool = False, pads: bool = False, repeats: str = "best", **o: Any) -> Any:
    """Fusion in plain Python; the arguments make it wrong."""

    def fuse(rankings: Sequence[TopK], k: int, *, constants: Sequence[float]) -> TopK:
        out_ids, out_scores = [], []
        for b in range(rankings[0].ids.shape[0]):
            score: dict[int, Fraction] = {}
            lists = [r.ids[b].tolist() for r in rankings]
            seen_anywhere = {i for ids in lists for i in ids if i >= 0}
            for ids, c in zip(lists, constants):
                c = Fraction(constants[0] if o.get("first_constant") else c)
                for rank, i in enumerate(ids, first):
                    if (i < 0 and not pads) or (repeats == "best" and i in ids[: rank - first]):
                        continue
                    if repeats == "last" and i in ids[rank - first + 1 :]:
                        continue
                    score[i] = score.get(i, Fraction(0)) + 1 / (c + rank)
                for i in (seen_anywhere - set(ids)) if missing else ():
                    score[i] = score.get(i, Fraction(0)) + 1 / (c + len(ids) + 1)
            sign = -1 if o.get("late_ties") else 1
            order = sorted(score.items(), key=lambda x: (-x[1], sign * x[0]))[:k]
            out_ids.append([i for i, _ in order] + [-1] * (k - len(order)))
            out_scores.append([float(s) for _, s in order] + [-np.inf] * (k - len(order)))
        return TopK(torch.tensor(out_ids, dtype=torch.int32), torch.tensor(out_scores, dtype=torch.float32))

    return fuse


WRONG_RRF = {
    "rank from 0": (variant(first=0), check_hand_worked),
    "missing counts as last": (variant(missing=True), check_hand_worked),
    "padding is a node": (variant(pads=True), check_hand_worked),
    "repeats add up": (variant(repeats="all"), check_rrf),
    "the worst rank of a repeat counts": (variant(repeats="last"), check_rrf),
    "one constant for all": (variant(first_constant=True), check_hand_worked),
    "ties to the larger id": (variant(late_ties=True), check_exact_ties),
    "ties to the larger id, random": (variant(late_ties=True), check_rrf),
}
CHECKS = [check_rrf, check_hand_worked, check_exact_ties]


test_wrong_fusions_are_caught = caught(WRONG_RRF)


test_rrf = passes([variant(), rrf], CHECKS)


def test_each_question_alone_has_the_same_bits() -> None:
    r = np.random.default_rng(0)
    rankings = [
        TopK(torch.from_numpy(r.integers(-1, 2**31, (700, 40), dtype=np.int32) // scale), torch.zeros(700, 40))
        for scale in (1, 2**20, 2**26)
    ]
    rankings = [TopK(x.ids.to(dtype), x.scores) for x, dtype in zip(rankings, (torch.int32, torch.int64, torch.int32))]
    found = rrf(rankings, 50, constants=[60.0, 1.0, 0.0])
    alone = rrf([TopK(x.ids[9:10], x.scores[9:10]) for x in rankings], 50, constants=[60.0, 1.0, 0.0])
    assert torch.equal(alone.ids[0], found.ids[9]) and torch.equal(alone.scores[0], found.scores[9])


def test_scores_from_nothing_to_infinity() -> None:
    found = rrf([topk([[5, 7]], 2), topk([[9, 7, 4]], 3)], 4, constants=[1e308, -1 + 1e-16])
    assert found.ids.tolist() == [[9, 7, 4, 5]]
    assert found.scores[0].tolist() == [float(np.float32(1 / (1 + (-1 + 1e-16)))), 1.0, 0.5, 0.0]


test_bad_input_says_what = refusals(
    [
        ("constant is out of range", lambda: rrf([topk([[1]], 1)], 1, constants=[-1])),
        ("not of the same questions", lambda: rrf([topk([[1]], 1), topk([[1], [1]], 1)], 1, constants=[1, 1])),
        ("id is negative", lambda: rrf([topk([[-2]], 1)], 1, constants=[1])),
    ]
)


BIG = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
NUMBERS = st.one_of(BIG, st.integers(-8, 8).map(lambda i: i / 16))


def check_minmax(scale: Callable[[torch.Tensor], torch.Tensor]) -> None:
    @QUICK
    @given(st.integers(1, 5), st.data())
    def holds(n: int, data: Any) -> None:
        one = st.one_of(st.lists(NUMBERS, min_size=n, max_size=n), NUMBERS.map(lambda v: [v] * n))
        x = torch.tensor(data.draw(st.lists(one, min_size=1, max_size=4)), dtype=torch.float32)
        kept = x.clone()
        got = scale(x)
        assert got.dtype == torch.float32 and got.shape == x.shape and torch.equal(x, kept)
        low, high = x.double().min(1, keepdim=True).values, x.double().max(1, keepdim=True).values
        want = torch.where(high > low, (x.double() - low) / (high - low).clamp(min=1e-300), 0.0)
        assert torch.isfinite(got).all() and (got - want).abs().max() <= 1e-6
        assert ((got >= 0) & (got <= 1)).all()
        assert (got[(x.double() == low)] == 0).all(), "the least of a row is not exactly 0"
        assert (got[(x.double() == high) & (high > low)] == 1).all(), "the largest of a row is not exactly 1"

    holds()
    assert scale(torch.tensor([[0.0, 1.0, 0.25], [3.0, 3.0, 3.0]])).tolist() == [[0.0, 1.0, 0.25], [0.0, 0.0, 0.0]]


def minmax(x: torch.Tensor, axis: Any = 1, constant: float = 0.0) -> torch.Tensor:
    a = x.double().numpy()
    low, high = a.min(axis, keepdims=True), a.max(axis, keepdims=True)
    scaled = (a - low) / np.where(high > low, high - low, 1)
    return torch.tensor(np.where(high > low, scaled, constant)).float()


WRONG_MINMAX = {
    "over the whole matrix": lambda x: minmax(x, axis=None),
    "over columns": lambda x: minmax(x, axis=0),
    "constant rows are ones": lambda x: minmax(x, constant=1.0),
    "constant rows are NaN": lambda x: (x - x.amin(1, True)) / (x.amax(1, True) - x.amin(1, True)),
    "divided by the maximum": lambda x: x / x.abs().amax(1, True).clamp(min=1e-30),
    "an epsilon in the divisor": lambda x: (x - x.amin(1, True)) / (x.amax(1, True) - x.amin(1, True) + 0.5),
}


test_wrong_scalings_are_caught = caught(WRONG_MINMAX, check_minmax)


@pytest.mark.parametrize("scale", [minmax, minmax_rows], ids=["plain", "minmax_rows"])
def test_minmax_rows(scale: Any) -> None:
    check_minmax(scale)
    assert tuple(scale(torch.zeros(0, 3)).shape) == (0, 3)
    x = torch.tensor([[2.0, 4.0, 3.0], [5.0, 5.0, 5.0], [-3e38, 3e38, 0.0]])
    assert scale(x).tolist() == [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.5]]
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(scale(x)[2], scale(x[2:3])[0])
    assert minmax_rows(torch.zeros(2, 0)).shape == (2, 0)
