"""Best-K selection and nearest neighbours against a full sort."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpu_rag.errors import BadInput
from gpu_rag.graph.nearest import best as module
from gpu_rag.graph.nearest import nearest, topk_rows
from gpu_rag.types import TopK

Select = Callable[..., TopK]


def brute(scores: np.ndarray, k: int, lo: int) -> list[list[tuple[int, float]]]:
    rows = []
    for row in scores:
        best = sorted(((-float(s), i + lo) for i, s in enumerate(row) if s > -np.inf))[:k]
        rows.append([(i, -s) for s, i in best] + [(-1, -np.inf)] * (k - len(best)))
    return rows


def check(select: Select, scores: np.ndarray, k: int, lo: int) -> None:
    found = select(torch.from_numpy(scores), k, lo=lo)
    assert found.ids.dtype == torch.int32 and found.scores.dtype == torch.float32
    pairs = [list(zip(i, s, strict=True)) for i, s in zip(found.ids.tolist(), found.scores.tolist(), strict=True)]
    assert pairs == brute(scores, k, lo)


FEW = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0, -np.inf, np.inf])  # ties are the rule


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    arrays.arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(0, 60)), elements=FEW),
    st.integers(0, 70),
    st.integers(0, 9),
)
def test_best_k_with_ties(scores: np.ndarray, k: int, lo: int) -> None:
    check(topk_rows, scores, k, lo)


@pytest.mark.parametrize("values", [3, 50, 10**6])
def test_long_rows_go_by_blocks(values: int) -> None:
    r = np.random.default_rng(values)
    scores = r.integers(0, values, (5, 1037)).astype(np.float32)
    scores[4] = -np.inf
    scores[4, 1036] = 1.0
    scores[3] = 7.0
    scores[2] = 0.0
    scores[2, [2 * module.BLOCK, 5 * module.BLOCK]] = 2.0, 3.0  # the peaks fall in another order than the blocks
    scores[2, [2 * module.BLOCK + 1, 5 * module.BLOCK + 1]] = 1.0
    for k in (1, 2, 7):
        assert scores.shape[1] >= 4 * module.BLOCK * k
        check(topk_rows, scores, k, 100)


def any_of_the_equal(scores: torch.Tensor, k: int, *, lo: int) -> TopK:
    values, columns = torch.topk(scores.flip(1), k, dim=1)
    return TopK((scores.shape[1] - 1 - columns + lo).int(), values)


def without_offset(scores: torch.Tensor, k: int, *, lo: int) -> TopK:
    return topk_rows(scores, k)


def returns_what_is_no_candidate(scores: torch.Tensor, k: int, *, lo: int) -> TopK:
    best = topk_rows(scores.clamp(min=-1e30), k, lo=lo)
    return TopK(best.ids, torch.where(best.scores < -1e29, -torch.inf, best.scores))


@pytest.mark.parametrize("wrong", [any_of_the_equal, without_offset, returns_what_is_no_candidate])
def test_checks_catch(wrong: Select) -> None:
    with pytest.raises(AssertionError):
        check(wrong, np.array([[1, 3, 3, 2, 3], [-np.inf, 1, -np.inf, -np.inf, 0]], np.float32), 3, 5)


def test_scores_that_cannot_be_ranked_are_refused() -> None:
    with pytest.raises(BadInput, match="NaN in row 1"):
        topk_rows(torch.tensor([[1.0, 2.0], [0.0, float("nan")]]), 1)
    with pytest.raises(BadInput, match="no matrix"):
        topk_rows(torch.zeros(3), 1)
    with pytest.raises(BadInput, match="out of range"):
        topk_rows(torch.zeros(1, 3), -1)


def vectors(n: int, dim: int, seed: int) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("tile", [1, 37, 65536])
def test_nearest_is_the_brute_force(dtype: torch.dtype, tile: int) -> None:
    queries, base = vectors(70, 24, 0), vectors(150, 24, 1).to(dtype)
    found = nearest(queries, base, 9, tile=tile)
    exact = queries.double() @ base.double().T
    assert torch.allclose(found.scores.double(), exact.sort(dim=1, descending=True).values[:, :9], atol=1e-5)
    assert torch.allclose(exact.gather(1, found.ids.long()), found.scores.double(), atol=1e-5)


def test_equal_rows_come_in_order_over_tiles() -> None:
    base = torch.ones(50, 4)
    assert nearest(torch.ones(1, 4), base, 12, tile=7).ids.tolist() == [list(range(12))]
    assert nearest(torch.ones(1, 4), base[:2], 3).ids.tolist() == [[0, 1, -1]]
    assert nearest(torch.ones(2, 4), base[:0], 2).ids.tolist() == [[-1, -1]] * 2
    assert nearest(torch.ones(0, 4), base, 2).ids.shape == (0, 2)


def check_alone(search: Callable[[torch.Tensor, torch.Tensor], TopK]) -> None:
    queries, base = vectors(131, 384, 2), vectors(1000, 384, 3).half()
    together = search(queries, base)
    for b in (0, 1, 5, 63, 64, 100, 130):
        alone = search(queries[b : b + 1], base)
        assert torch.equal(alone.scores[0], together.scores[b]) and torch.equal(alone.ids[0], together.ids[b])


def test_a_query_does_not_know_its_batch() -> None:
    check_alone(lambda queries, base: nearest(queries, base, 10, tile=300))


def test_bit_checks_catch_a_score_that_depends_on_the_batch() -> None:
    def centred(queries: torch.Tensor, base: torch.Tensor) -> TopK:
        return nearest(queries - queries.mean(0), base, 10)

    with pytest.raises(AssertionError):
        check_alone(centred)


@pytest.mark.parametrize(
    ("match", "queries", "base"),
    [
        ("queries are no matrix", torch.zeros(3), torch.zeros(2, 3)),
        ("queries are no matrix", torch.zeros(1, 3, dtype=torch.float64), torch.zeros(2, 3)),
        ("base is no matrix", torch.zeros(1, 3), torch.zeros(2, 3, dtype=torch.int32)),
        ("dimension", torch.zeros(1, 3), torch.zeros(2, 4)),
        ("NaN in row 0", torch.full((1, 3), float("nan")), torch.zeros(2, 3)),
    ],
)
def test_bad_vectors_say_what(match: str, queries: torch.Tensor, base: torch.Tensor) -> None:
    with pytest.raises(BadInput, match=match):
        nearest(queries, base, 1)
