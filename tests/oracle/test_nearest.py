"""The scores of `nearest` bit by bit: their sum in its documented order, rough scores that may not decide, extremes."""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import caught
from torch.overrides import TorchFunctionMode

from gpu_rag.errors import BadInput
from gpu_rag.graph.nearest import nearest, topk_rows
from gpu_rag.types import TopK

Search = Callable[[torch.Tensor, torch.Tensor, int], TopK]
needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")


def by_products(dtype: torch.dtype) -> Search:
    def search(queries: torch.Tensor, base: torch.Tensor, k: int) -> TopK:
        from gpu_rag.graph.nearest.numba_path import nearest_by_numba

        return nearest_by_numba(queries, base, k, 65536, 2, dtype)

    return search


SEARCHES = [
    pytest.param(nearest, id="auto"),
    pytest.param(lambda q, b, k: nearest(q, b, k, tile=37), id="tiles"),
    pytest.param(lambda q, b, k: nearest(q, b, k, implementation="torch"), id="torch"),
    pytest.param(lambda q, b, k: nearest(q, b, k, tile=100, implementation="torch"), id="torch tiles"),
    pytest.param(by_products(torch.float32), id="f32 products", marks=needs_numba),
    pytest.param(by_products(torch.bfloat16), id="bf16 products", marks=needs_numba),
]


def score(query: np.ndarray, row: np.ndarray) -> np.float64:
    """The documented sum, a number at a time."""
    products = query.astype(np.float64) * row.astype(np.float64)
    whole = len(products) // 32 * 32
    sums = [np.float64(0.0)] * 32
    for place in range(whole):
        sums[place % 32] += products[place]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [low + high for low, high in zip(sums[:half], sums[half:])]
    total = sums[0]
    for place in range(whole, len(products)):
        total += products[place]
    return total


def brute(queries: torch.Tensor, base: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.full((len(queries), k), -1, dtype=torch.int32)
    best = torch.full((len(queries), k), -torch.inf)
    for b, query in enumerate(queries.numpy()):
        with np.errstate(over="ignore"):
            scores = [np.float32(score(query, row)) for row in base.numpy()]
        order = sorted(range(len(scores)), key=lambda j, s=scores: (-s[j], j))[:k]
        ids[b, : len(order)] = torch.tensor(order, dtype=torch.int32)
        best[b, : len(order)] = torch.tensor(np.array([scores[j] for j in order], np.float32))
    return ids, best


def check(search: Search, queries: torch.Tensor, base: torch.Tensor, k: int) -> None:
    found = search(queries, base, k)
    ids, scores = brute(queries, base, k)
    assert torch.equal(found.scores, scores) and torch.equal(found.ids, ids)


def draw(n: int, dims: int, seed: int) -> torch.Tensor:
    return torch.randn(n, dims, generator=torch.Generator().manual_seed(seed))


def units(n: int, dims: int, seed: int) -> torch.Tensor:
    return torch.nn.functional.normalize(draw(n, dims, seed))


def nearly_equal(n: int, dims: int, seed: int) -> torch.Tensor:
    """Rows so close together that neither bf16 nor f32 products can order them."""
    return torch.nn.functional.normalize(units(1, dims, 99) + 1e-6 * draw(n, dims, seed))


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("dims", [1, 31, 32, 50, 64, 99])
def test_scores_have_the_bits_of_the_sum(search: Search, dims: int) -> None:
    for base in (draw(120, dims, 1), draw(120, dims, 2).half()):
        check(search, draw(7, dims, 3), base, 11)


def across(n: int, dims: int, seed: int) -> torch.Tensor:
    """Queries at a right angle to what those rows have in common: their scores are small beside the error."""
    centre = units(1, dims, 99)
    queries = units(n, dims, seed)
    return torch.nn.functional.normalize(queries - (queries @ centre.T) * centre)


@pytest.mark.parametrize("search", SEARCHES)
def test_rows_that_products_cannot_order(search: Search) -> None:
    for queries in (units(6, 64, 4), across(6, 64, 4)):
        check(search, queries, nearly_equal(300, 64, 5), 9)


@pytest.mark.parametrize("search", SEARCHES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 90), batch=st.integers(1, 9), k=st.integers(1, 20), seed=st.integers(0, 99),
    dims=st.sampled_from([2, 33]), scale=st.sampled_from([1.0, 1e-25, 1e-10, 1e18, 1e25]), levels=st.integers(1, 3),
)  # fmt: skip
def test_any_size_of_number_and_ties(
    search: Search, n: int, batch: int, k: int, seed: int, dims: int, scale: float, levels: int
) -> None:
    r = np.random.default_rng(seed)
    queries, base = (
        torch.from_numpy((r.integers(-levels, levels + 1, (rows, dims)) * scale / 3).astype(np.float32))
        for rows in (batch, n)
    )
    with np.errstate(over="ignore"):
        check_finite(search, queries, base, k)


def check_finite(search: Search, queries: torch.Tensor, base: torch.Tensor, k: int) -> None:
    """Check as `check` does, but a sum below every f32 is no candidate."""
    found = search(queries, base, k)
    ids, scores = brute(queries, base, k)
    assert torch.equal(found.scores, scores)
    assert torch.equal(found.ids, torch.where(scores == -torch.inf, -1, ids))


@pytest.mark.parametrize("search", SEARCHES)
def test_lengths_that_differ_a_lot(search: Search) -> None:
    lengths = 10.0 ** torch.linspace(-8, 4, 200)[torch.randperm(200, generator=torch.Generator().manual_seed(6))]
    check(search, 100 * draw(6, 40, 7), draw(200, 40, 8) * lengths[:, None], 12)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(("value", "name"), [(torch.nan, "NaN"), (torch.inf, "infinity"), (-torch.inf, "infinity")])
def test_rows_that_are_not_finite_are_refused(search: Search, value: float, name: str) -> None:
    for dtype in (torch.float32, torch.float16):
        base = draw(300, 40, 9).to(dtype)
        base[123, 7] = value
        with pytest.raises(BadInput, match=f"base are not finite; given {name} in row 123"):
            search(draw(2, 40, 10), base, 3)
    queries = draw(9, 40, 11)
    queries[8, 0] = value
    with pytest.raises(BadInput, match=f"queries are not finite; given {name} in row 8"):
        nearest(queries, draw(3, 40, 12), 1)


@needs_numba
def test_every_f16_is_read_right() -> None:
    from gpu_rag_kernels.dots.numba import score_of

    rows = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    wanted = rows.view(torch.float16).double().numpy()
    for dims in (1, 32):  # read alone, and as a vector
        raw, one = rows[:, None].repeat(1, dims).contiguous().numpy(), np.full(dims, 1 / dims)
        found = np.array([score_of(one, raw, j) for j in range(65536)])
        assert np.array_equal(found, wanted, equal_nan=True)


def test_threads_do_not_matter() -> None:
    queries, base = units(300, 8, 13), units(50_000, 8, 14).half()
    base[40_000:] = base[:10_000]  # ties over ranges: the lower row comes first
    for batch in (1, 300):
        found, alone = (nearest(queries[:batch], base, 20, threads=threads) for threads in (3, 1))
        assert torch.equal(found.ids, alone.ids) and torch.equal(found.scores, alone.scores)


def check_alone(search: Search, dtype: torch.dtype) -> None:
    """Alone, in blocks of four, in what is left of them, and in products of a tile."""
    queries, base = across(40, 70, 20), nearly_equal(700, 70, 21).to(dtype)
    whole = search(queries, base, 6)
    for size in (1, 2, 4, 5, 16, 17):
        for first in (0, 40 - size):
            part = search(queries[first : first + size], base, 6)
            assert torch.equal(part.ids, whole.ids[first : first + size]), size
            assert torch.equal(part.scores, whole.scores[first : first + size]), size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_query_does_not_know_how_many_there_are(dtype: torch.dtype) -> None:
    check_alone(nearest, dtype)
    with pytest.raises(AssertionError):
        check_alone(lambda q, b, k: nearest(q - q.mean(0), b, k), dtype)


def test_a_base_that_is_not_contiguous() -> None:
    wide, queries = draw(100, 80, 15), draw(6, 40, 16)
    for base in (wide[:, ::2], wide.T[::2][:40].T[:, :40]):
        for batch in (1, 6):
            check(nearest, queries[:batch], base, 5)


def rounded_sum(queries: torch.Tensor, base: torch.Tensor, k: int) -> TopK:
    """The product of f32 as it comes."""
    scores = queries @ base.float().T
    best = scores.sort(dim=1, descending=True, stable=True)
    return TopK(best.indices[:, :k].int(), best.values[:, :k])


def half_sums(queries: torch.Tensor, base: torch.Tensor, k: int) -> TopK:
    """The product of f16 where the rows are."""
    return topk_rows((queries.to(base.dtype) @ base.T).float(), k)


def of_unit_rows(queries: torch.Tensor, base: torch.Tensor, k: int) -> TopK:
    return nearest(torch.nn.functional.normalize(queries), torch.nn.functional.normalize(base.float()), k)


def a_tile_apart(queries: torch.Tensor, base: torch.Tensor, k: int) -> TopK:
    """Ids of the second half that count from its beginning."""
    half = len(base) // 2
    parts = [nearest(queries, part, k) for part in (base[:half], base[half:])]
    best = topk_rows(torch.cat([part.scores for part in parts], 1), k)
    return TopK(torch.cat([part.ids for part in parts], 1).gather(1, best.ids.long()), best.scores)


test_checks_catch = caught(
    [rounded_sum, half_sums, of_unit_rows, a_tile_apart],
    lambda wrong: check(wrong, draw(7, 99, 3), draw(120, 99, 1).half(), 11),
)


@needs_numba
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checks_catch_a_filter_that_is_too_narrow(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_rag.graph.nearest import numba_path as nearest_numba

    monkeypatch.setattr(nearest_numba, "slack_of", lambda asked, rows: np.zeros(len(asked.length)))
    with pytest.raises(AssertionError):
        check(by_products(dtype), across(40, 64, 4), nearly_equal(300, 64, 5), 9)


@needs_numba
def test_checks_catch_rows_that_are_passed_over_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rough scores of one row at a time, believed as they are, lose rows that torch finds."""
    from gpu_rag.graph.nearest import numba_path as nearest_numba

    queries = across(16, 400, 4)
    base = torch.nn.functional.normalize(units(1, 400, 99) + 1e-8 * draw(4000, 400, 5))  # the last bits differ
    wanted = nearest(queries, base, 9, implementation="torch")
    found = nearest(queries, base, 9)
    assert torch.equal(found.ids, wanted.ids) and torch.equal(found.scores, wanted.scores)
    monkeypatch.setattr(nearest_numba, "unit_of", lambda n_dims: 0.0)
    assert not torch.equal(nearest(queries, base, 9).ids, wanted.ids)


def test_checks_catch_torch_tiles_that_are_too_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no rows beyond k a rough score that is believed as it is loses one; the proved bound finds them."""
    from gpu_rag.graph.nearest import torch_path as nearest_torch

    def by_torch(q: torch.Tensor, b: torch.Tensor, k: int) -> TopK:
        return nearest(q, b, k, implementation="torch")

    asked, rows = across(40, 64, 4), nearly_equal(300, 64, 5)
    monkeypatch.setattr(nearest_torch, "MORE", 0)
    monkeypatch.setattr(nearest_torch, "MANY", 1)
    check(by_torch, asked, rows, 9)
    monkeypatch.setattr(nearest_torch, "products_slack", lambda rows: 0.0)
    with pytest.raises(AssertionError):
        check(by_torch, asked, rows, 9)


def test_few_rows_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Well-spread rows: those that are proposed; equal rows, for the queries that see them: many more, then all."""
    from gpu_rag.graph.nearest import torch_path as nearest_torch

    counted: list[int] = []
    scored = nearest_torch.scores_of

    def counting(queries: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        counted.append(len(b))
        return scored(queries, b, *rest)

    monkeypatch.setattr(nearest_torch, "scores_of", counting)
    queries, base = units(50, 64, 17), units(5000, 64, 18)
    nearest(queries, base, 10, implementation="torch")
    assert counted == [50 * (10 + nearest_torch.MORE)]
    for n, all_scored in ((100, 0), (1600, 1600)):
        base[1000 : 1000 + n] = queries[3]
        counted.clear()
        found = nearest(queries, base, 10, implementation="torch")
        assert found.ids[3].tolist() == [*range(1000, 1010)]
        assert counted[:2] == [50 * (10 + nearest_torch.MORE), 10 + nearest_torch.MANY]
        assert all_scored <= sum(counted[2:]) <= all_scored + 10


def test_short_rows_and_long_queries_are_told_apart() -> None:
    """The squares of these rows vanish in f32, their products with these queries do not."""
    queries, base = across(30, 64, 4) * 2.0**70, nearly_equal(300, 64, 5) * 2.0**-80
    check(lambda q, b, k: nearest(q, b, k, implementation="torch"), queries, base, 9)
    check(lambda q, b, k: nearest(q, b, k, implementation="torch"), queries * 2.0**50, base * 2.0**40, 9)


class Largest(TorchFunctionMode):
    """Records the size of the largest tensor that any torch function returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.numel())
        return out


@pytest.mark.parametrize("whole", [False, True])
def test_never_more_scores_at_once_than_a_tile(whole: bool) -> None:
    """Here a quarter of all scores would already fail, as those of the whole product do."""
    queries, base = draw(64, 2, 0), draw(8192, 2, 1)
    with Largest() as largest:
        rounded_sum(queries, base, 4) if whole else nearest(queries, base, 4, tile=256)
    assert (largest.numel > 64 * 8192 // 4) == whole


def test_nothing_to_search() -> None:
    assert nearest(torch.zeros(0, 4), torch.zeros(3, 4), 2).ids.shape == (0, 2)
    assert nearest(torch.ones(2, 4), torch.zeros(0, 4), 3).ids.tolist() == [[-1] * 3] * 2
