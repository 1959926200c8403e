"""Held rows searched by torch and by faiss: against sums in fractions, equal bits, ties, choices."""

import importlib.util
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from gpu_rag_kernels import dispatch
from gpu_rag_kernels.dispatch import preferring, recording
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from gpu_rag.graph.nearest import index as module
from gpu_rag.graph.nearest import nearest
from gpu_rag.graph.nearest.index import FaissIndex, NearestRows, pick_index
from gpu_rag.types import TopK

HAS_FAISS = importlib.util.find_spec("faiss") is not None
needs_faiss = pytest.mark.skipif(not HAS_FAISS, reason="needs faiss")
Search = Callable[[torch.Tensor, torch.Tensor, int], TopK]


def units(n: int, dims: int, seed: int) -> torch.Tensor:
    rows = torch.randn(n, dims, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows)


def clustered(n: int, seed: int, dims: int = 32) -> torch.Tensor:
    """Rows around 50 centres, as real vectors lie."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(50, dims, generator=torch.Generator().manual_seed(99))
    rows = centres[torch.randint(50, (n,), generator=generator)] + 0.4 * torch.randn(n, dims, generator=generator)
    return torch.nn.functional.normalize(rows)


def exact(queries: torch.Tensor, base: torch.Tensor, k: int) -> tuple[list[list[int]], list[list[float]]]:
    """The k best by (-score, row), the score a sum of fractions on the grid of 2^-24 rounded to f32."""

    def grid(row: torch.Tensor) -> list[Fraction]:
        return [Fraction(round(Fraction(x) * 2**24), 2**24) for x in row.double().tolist()]

    rows, ids, scores = [grid(row) for row in base], [], []
    for query in map(grid, queries):
        values = [float(np.float32(float(sum(map(Fraction.__mul__, query, row))))) for row in rows]
        best = sorted(range(len(rows)), key=lambda i, v=values: (-v[i], i))[:k]
        ids.append(best + [-1] * (k - len(best)))
        scores.append([values[i] for i in best] + [-np.inf] * (k - len(best)))
    return ids, scores


def check(search: Search, queries: torch.Tensor, base: torch.Tensor, k: int) -> None:
    found = search(queries, base, k)
    assert found.ids.dtype == torch.int32 and found.scores.dtype == torch.float32
    ids, scores = exact(queries, base, k)
    assert torch.equal(found.ids, torch.tensor(ids, dtype=torch.int32).reshape(len(queries), k))
    assert torch.equal(found.scores, torch.tensor(scores, dtype=torch.float32).reshape(len(queries), k))


def by_faiss(queries: torch.Tensor, base: torch.Tensor, k: int) -> TopK:
    return FaissIndex(base).search(queries, k)


def with_ties(n: int, seed: int) -> torch.Tensor:
    """Rows of few different values, so that most scores are shared."""
    rows = torch.randint(-1, 2, (n, 3), generator=torch.Generator().manual_seed(seed)).float()
    return torch.nn.functional.normalize(rows)  # rows of zeros stay


@needs_faiss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_is_the_sum(dtype: torch.dtype) -> None:
    check(by_faiss, units(5, 16, 1), units(70, 16, 2).to(dtype), 7)


@needs_faiss
@settings(max_examples=25, deadline=None, derandomize=True)
@given(n=st.integers(0, 60), batch=st.integers(1, 4), k=st.integers(0, 12), seed=st.integers(0, 1000))
def test_ties_come_in_order(n: int, batch: int, k: int, seed: int) -> None:
    check(by_faiss, with_ties(batch, seed + 1), with_ties(n, seed), k)


@needs_faiss
def test_more_equal_rows_than_candidates() -> None:
    base = units(1, 8, 3).repeat(500, 1)
    found = by_faiss(base[:2], base, 5)
    assert torch.equal(found.ids, torch.arange(5, dtype=torch.int32).expand(2, 5))


@needs_faiss
def test_rows_that_f32_cannot_order_are_all_looked_at() -> None:
    """300 rows as near to each query as f32 can tell: the first candidates of faiss are not the best ones."""
    queries = units(4, 64, 0)
    base = torch.cat([torch.nn.functional.normalize(query + 2e-7 * units(300, 64, 6) * 8) for query in queries])
    for k in (1, 5):
        check(by_faiss, queries, base, k)


@needs_faiss
def test_a_query_does_not_know_its_batch() -> None:
    queries, index = units(131, 64, 6), FaissIndex(units(2000, 64, 7))
    together = index.search(queries, 9)
    for b in (0, 1, 63, 64, 130):
        alone = index.search(queries[b : b + 1], 9)
        assert torch.equal(alone.ids[0], together.ids[b]) and torch.equal(alone.scores[0], together.scores[b])


def first_found(queries: torch.Tensor, base: torch.Tensor, k: int) -> TopK:
    """Candidates as the library sorts them, no second look."""
    return nearest(queries, base, k)


class NotWidened(FaissIndex):
    """Proposes candidates from the end of each tie, as if no other row could be as near."""

    def propose(self, queries: torch.Tensor, k: int) -> TopK:
        scores = queries @ self.base.float().T
        ids = scores.shape[1] - 1 - scores.flip(1).sort(dim=1, descending=True, stable=True).indices[:, :k]
        return TopK(ids.int(), torch.full(ids.shape, -1.0))


def test_checks_catch_scores_that_are_not_exact() -> None:
    with pytest.raises(AssertionError):
        check(first_found, units(20, 48, 11), units(90, 48, 12), 5)


@needs_faiss
def test_checks_catch_candidates_that_are_not_enough() -> None:
    case = with_ties(3, 1), with_ties(2000, 2), 4
    check(by_faiss, *case)
    with pytest.raises(AssertionError):
        check(lambda queries, base, k: NotWidened(base).search(queries, k), *case)


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda name: object())
    assert pick_index() == "torch" and pick_index("faiss") == "faiss"


def rows_by_faiss(base: torch.Tensor, queries: torch.Tensor) -> TopK:
    with preferring({"neighbours": "faiss"}):
        return NearestRows(base).search(queries, 1)


test_bad_input_says_what = needs_faiss(
    refusals(
        [
            ("base are not unit rows", lambda: rows_by_faiss(torch.ones(2, 3), units(1, 3, 0))),
            ("queries do not fit", lambda: rows_by_faiss(units(2, 3, 0), units(1, 4, 0))),
        ]
    )
)


BASE, QUERIES = units(300, 24, 0).half(), units(7, 24, 1)


@pytest.mark.parametrize("by", ["auto", "torch", pytest.param("faiss", marks=needs_faiss)])
def test_kept_rows_are_searched_alike(by: str) -> None:
    with preferring({} if by == "auto" else {"neighbours": by}):
        for k in (1, 10, 300):
            top, (ids, scores) = NearestRows(BASE).search(QUERIES, k), exact(QUERIES, BASE, k)
            assert top.ids.tolist() == ids and torch.allclose(top.scores, torch.tensor(scores), atol=1e-6)
        if by != "auto":
            assert NearestRows(BASE[:0]).search(QUERIES, 2).ids.tolist() == [[-1, -1]] * 7


@needs_faiss
def test_an_index_is_made_once_and_every_search_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], module.FaissIndex
    monkeypatch.setattr(module, "FaissIndex", lambda base: made.append(1) or real(base))
    held = NearestRows(BASE)
    for _ in range(2):
        with preferring({"neighbours": "faiss"}), recording() as ran:
            held.search(QUERIES, 3)
        assert ran["nearest_index"] == {"faiss"} and "nearest" not in ran and made == [1]
    with recording() as ran:
        held.search(QUERIES, 3)
    assert ran == {"nearest": {"numba"}}
