"""The hybrid join against all pairs in whole numbers, ties included; it never builds the full matrix."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hybrid_pairs import Groups, all_scores, check_join, sets, unit_rows, words
from hypothesis import given, settings
from hypothesis import strategies as st
from joins import hybrid_argmax
from ragged_lists import ragged
from refusals import caught, refusals

from gpu_rag.graph import join as module
from gpu_rag.graph.common.dots import f32_slack
from gpu_rag.graph.join import join_index
from gpu_rag.graph.join import numba_path as join_numba
from gpu_rag.graph.join import torch_path as join_torch
from gpu_rag.graph.ragged import part_of
from gpu_rag.types import Ragged

Join = Callable[..., tuple[torch.Tensor, torch.Tensor]]
QUICK = settings(max_examples=40, deadline=None, derandomize=True)


def numba_as(dtype: torch.dtype) -> Join:
    def join(
        left: torch.Tensor, lk: Ragged, right: torch.Tensor, rk: Ragged, exclude: Groups = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        groups = exclude or (None, None)
        side = join_numba.prepared(right, rk, groups[1], dtype=dtype)
        best, index = join_numba.join_by_numba(left, lk, groups[0], side, 1)
        return index, best

    return join


JOINS: dict[str, Join] = {
    "auto": hybrid_argmax,
    "torch": lambda *sides, exclude=None: hybrid_argmax(*sides, exclude=exclude, implementation="torch"),
    "numba f32": numba_as(torch.float32),
    "numba bf16": numba_as(torch.bfloat16),
}


def tiles(patch: pytest.MonkeyPatch, rows: int, columns: int) -> None:
    patch.setattr(join_torch, "ROWS", rows)
    patch.setattr(join_torch, "COLUMNS", columns)
    patch.setattr(join_numba, "ROWS", rows)
    patch.setattr(join_numba, "SCORES", rows * columns)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles(monkeypatch, 5, 9)
    monkeypatch.setattr("gpu_rag.graph.join.torch_path.MAX_COMMON", 4)


def check(join: Join, left: torch.Tensor, lk: Ragged, right: torch.Tensor, rk: Ragged, exclude: Groups) -> None:
    check_join(join(left, lk, right, rk, exclude=exclude), all_scores(left, lk, right, rk, exclude))


@QUICK
@given(st.integers(0, 2**32 - 1), st.integers(0, 14), st.integers(0, 25), st.booleans())
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", JOINS)
def test_small_sets(name: str, seed: int, n_left: int, n_right: int, grouped: bool) -> None:
    r = np.random.default_rng(seed)
    dim, half = 1 + seed % 4, seed % 3 == 0
    left, right = unit_rows(r, n_left, dim, half), unit_rows(r, n_right, dim, half and seed % 5 > 0)
    lk, rk = keywords(r, n_left, 5, 12), keywords(r, n_right, 5, 12)
    groups = tuple(torch.from_numpy(r.integers(0, 3, n)) for n in (n_left, n_right)) if grouped else None
    check(JOINS[name], left, lk, right, rk, groups)


def keywords(r: np.random.Generator, n: int, most: int, vocabulary: int) -> Ragged:
    return ragged(words(r, n, most, vocabulary))


def larger(n: int, seed: int) -> tuple[torch.Tensor, Ragged, torch.Tensor, Ragged]:
    r = np.random.default_rng(seed)
    return (
        unit_rows(r, n, 48, True),
        keywords(r, n, 12, 400),
        unit_rows(r, n + 40, 48, True),
        keywords(r, n + 40, 12, 400),
    )


@pytest.mark.parametrize("name", JOINS)
def test_several_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles(monkeypatch, 60, 70)
    left, lk, right, rk = larger(130, 0)
    groups = torch.arange(130) // 4, torch.arange(170) // 4
    check(JOINS[name], left, lk, right, rk, groups)


def test_keywords_are_any_integers() -> None:
    left, lk, right, rk = larger(60, 2)
    want = hybrid_argmax(left, lk, right, rk)
    far = [Ragged((k.values - 40) * (10**15 + 7), k.offsets) for k in (lk, rk)]
    for implementation in ("numba", "torch"):
        index, score = hybrid_argmax(left, far[0], right, far[1], implementation=implementation)
        assert torch.equal(index, want[0]) and torch.equal(score, want[1])


def test_threads_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_numba, "ROWS", 16)
    sides = larger(150, 4)
    want = hybrid_argmax(*sides)
    got = hybrid_argmax(*sides, threads=3)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def wrong(change: Callable[[np.ndarray, np.ndarray], np.ndarray], *, last: bool = False, multi: bool = False) -> Join:
    """A join by all pairs whose scores come from `change(shares, dots)`."""

    def join(
        left: torch.Tensor, lk: Ragged, right: torch.Tensor, rk: Ragged, exclude: Groups = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        empty = [ragged([[]] * len(v)) for v in (left, right)]
        dots = 2 * all_scores(left, empty[0], right, empty[1], None)
        shares = 2 * all_scores(left, lk, right, rk, None) - dots
        if multi:  # repeats counted in the size of the union
            sizes = lk.offsets.diff().numpy()[:, None] + rk.offsets.diff().numpy()[None]
            overlap = np.array([[len(a & b) for b in sets(rk)] for a in sets(lk)])
            shares = overlap / np.maximum(sizes - overlap, 1)
        scores = change(shares, dots)
        if exclude is not None:
            scores[exclude[0].numpy()[:, None] == exclude[1].numpy()[None]] = -np.inf
        at = scores.shape[1] - 1 - scores[:, ::-1].argmax(1) if last else scores.argmax(1)
        best = torch.from_numpy(scores.max(1))
        return torch.where(best > -torch.inf, torch.from_numpy(at), -1), best

    return join


def half_sum(shares: np.ndarray, dots: np.ndarray) -> np.ndarray:
    return (shares + dots) / 2


def best_by_meaning_then_scored(shares: np.ndarray, dots: np.ndarray) -> np.ndarray:
    """The result of an index of vectors alone."""
    return np.where(dots == dots.max(1, keepdims=True), half_sum(shares, dots), -1.0)


WRONG: dict[str, Join] = {
    "no keywords": wrong(lambda shares, dots: dots / 2),
    "vector index first": wrong(best_by_meaning_then_scored),
    "last of equals": wrong(half_sum, last=True),
    "repeats count": wrong(half_sum, multi=True),
    "matches itself": lambda *sides, exclude=None: hybrid_argmax(*sides),
}


def awkward() -> tuple[torch.Tensor, Ragged, torch.Tensor, Ragged, Groups]:
    r = np.random.default_rng(0)
    left, right = unit_rows(r, 60, 6, False), unit_rows(r, 80, 6, False)
    groups = torch.arange(60) // 3, torch.arange(80) // 3
    return left, keywords(r, 60, 6, 9), right, keywords(r, 80, 6, 9), groups


test_checks_catch = caught(WRONG, check, *awkward())


@pytest.mark.parametrize("narrow", [False, True])
def test_a_slack_that_is_too_small_is_caught(narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are so near to each other that bf16 takes them for equal."""
    r = np.random.default_rng(1)
    near = r.normal(size=(1, 64)) + 0.05 * r.normal(size=(140, 64))
    vectors = torch.from_numpy(near / np.linalg.norm(near, axis=1, keepdims=True)).float()
    case = vectors[:60], keywords(r, 60, 4, 9), vectors[60:], keywords(r, 80, 4, 9), None
    join = numba_as(torch.bfloat16)
    if not narrow:
        check(join, *case)
        return
    monkeypatch.setattr(join_numba, "slack_of", lambda left, right: np.zeros(len(left.length)))
    monkeypatch.setattr(join_numba, "rounding_of", lambda dtype: 0.0)
    with pytest.raises(AssertionError):
        check(join, *case)


def shares(fractions: list[tuple[int, int]], n_left: int) -> tuple[Ragged, Ragged]:
    """Keywords of one left row, 0..n_left, and of right rows that share o of a union of u, for each (o, u)."""
    lists = [[*range(o), *range(n_left, u)] for o, u in fractions]
    return ragged([list(range(n_left))]), ragged(lists)


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("name", ["numba f32", "numba bf16", "auto"])
def test_the_sum_with_a_share_has_slack(name: str, rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """7226/14291 is above 7989/15800 by 4.4e-9, but not as 14291 f32(7989/15800) <= 7226 in f32. Vectors of zeros have
    no error that would leave room."""
    one, other = (7989, 15800), (7226, 14291)
    assert other[0] * one[1] > one[0] * other[1]
    assert np.float32(one[0] / one[1]) * np.float32(other[1]) > np.float32(other[0])
    left, right = torch.zeros(1, 4), torch.zeros(2, 4)
    words = shares([one, other], 8192)
    if rounded:
        check(JOINS[name], left, words[0], right, words[1], None)
        return
    monkeypatch.setattr(join_numba, "ARITHMETIC", 0.0)
    with pytest.raises(AssertionError):
        check(JOINS[name], left, words[0], right, words[1], None)


@pytest.mark.parametrize("dim", [1, 2, 64, 384, 1024, 4096, 1 << 16])
def test_the_slack_of_unit_rows_has_room_for_a_sum(dim: int) -> None:
    """The bound (see `f32_slack`) and 6 u for a share, a sum and a rounded cut, of rows 1.01 long."""
    u = 2.0**-24
    assert f32_slack(dim) > (1.03 * dim + 1.01 * dim**0.5 + 6) * u


@pytest.mark.parametrize("name", ["torch", "numba f32", "auto"])
def test_never_the_full_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles(monkeypatch, 30, 40)
    sizes: list[int] = []
    whole, scanned = torch.mm, join_numba.score_bits

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        sizes.append(left.shape[0] * right.shape[1])
        return whole(left, right)

    def scores(matrix: torch.Tensor) -> np.ndarray:
        sizes.append(matrix.numel())
        return scanned(matrix)

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(join_numba, "score_bits", scores)
    JOINS[name](*larger(100, 5))
    assert max(sizes) <= 30 * 40 and sum(sizes) == 100 * 140


def test_an_index_is_asked_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    left, lk, right, rk, groups = awkward()
    index = join_index(right, rk, groups=groups[1])
    checked: list[str] = []
    monkeypatch.setattr(module, "check_unit_rows", lambda vectors, name: checked.append(name))
    for first in range(0, 60, 7):
        part = slice(first, min(first + 7, 60))
        own = left[part], part_of(lk, part.start, part.stop)

        def join(left: torch.Tensor, lk: Ragged, *right: object, exclude: Groups) -> tuple[torch.Tensor, torch.Tensor]:
            assert exclude is not None
            return index.best(left, lk, groups=exclude[0])

        check(join, *own, right, rk, (groups[0][part], groups[1]))
    assert set(checked) == {"left vectors"}


ONE, KEYS = torch.ones(2, 1), ragged([[1], [2]])


test_bad_input_says_what = refusals(
    [
        ("right vectors are not unit rows", lambda: hybrid_argmax(ONE, KEYS, 2 * ONE, KEYS)),
        ("right keywords do not match", lambda: hybrid_argmax(ONE, KEYS, ONE, ragged([[1]]))),
        ("differ in dimension", lambda: hybrid_argmax(ONE, KEYS, torch.eye(2), KEYS)),
        (
            "right groups do not match",
            lambda: hybrid_argmax(ONE, KEYS, ONE, KEYS, exclude=(torch.arange(2), torch.arange(3))),
        ),
        ("for one side alone", lambda: join_index(ONE, KEYS, groups=torch.arange(2)).best(ONE, KEYS)),
    ]
)
