"""close_pairs against all pairs: recall, exact scores, groups, and that the order of the rows does not show."""

from itertools import combinations
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from gpu_rag_kernels.dispatch import preferring
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.graph.nearest import pairs as pairs_module
from gpu_rag.graph.nearest.pairs import among_nearest, close_pairs, comparisons, near_pairs, plan

THRESHOLD = 0.8
PARTS = st.sampled_from([1, 5, 1 << 22])


def clustered(n: int, seed: int, dims: int = 48) -> torch.Tensor:
    """Unit rows in clusters, with cosines on both sides of the threshold."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n // 5, dims))
    rows = centres[rng.integers(0, len(centres), n)] + 0.55 * rng.normal(size=(n, dims))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return torch.from_numpy(rows.astype(np.float16))


def all_pairs(base: torch.Tensor, groups: np.ndarray, threshold: float = THRESHOLD) -> dict[tuple[int, int], float]:
    rows = base.double().numpy()
    scores = np.triu((rows @ rows.T).astype(np.float32), 1)
    left, right = np.nonzero((scores >= np.float32(threshold)) & (groups[:, None] == groups[None]))
    return {(a, b): float(scores[a, b]) for a, b in zip(left.tolist(), right.tolist())}


def found(base: torch.Tensor, groups: np.ndarray) -> dict[tuple[int, int], float]:
    left, right, score = close_pairs(base, groups, THRESHOLD)
    keys = list(zip(left.tolist(), right.tolist()))
    assert keys == sorted(set(keys)) and all(a < b for a, b in keys)
    return dict(zip(keys, score.tolist()))


def recall(given: dict[tuple[int, int], float], expected: dict[tuple[int, int], float]) -> float:
    return len(given.keys() & expected.keys()) / len(expected)


def test_nearly_all_pairs_are_found_and_scores_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    base = clustered(1500, 1)
    groups = np.random.default_rng(2).integers(0, 2, len(base)).astype(np.uint64)
    expected = all_pairs(base, groups)
    given = found(base, groups)
    assert len(expected) > 300 and recall(given, expected) >= 0.9
    assert given.items() <= expected.items()
    # plausible wrong versions: too few tables, a sketch that drops pairs at the threshold
    with monkeypatch.context() as patch:
        patch.setattr(pairs_module, "MAX_TABLES", 3)
        assert recall(found(base, groups), expected) < 0.9
    with monkeypatch.context() as patch:
        patch.setattr(pairs_module, "_SPREAD", -0.5)
        assert recall(found(base, groups), expected) < 0.9


def test_the_order_of_rows_and_other_rows_do_not_show() -> None:
    base, order = clustered(900, 3), np.random.default_rng(4).permutation(900)
    groups = np.zeros(900, np.uint64)
    place = np.argsort(order)
    moved = {tuple(sorted((int(place[a]), int(place[b])))): score for (a, b), score in found(base, groups).items()}
    assert moved == found(base[torch.from_numpy(order)], groups)
    more = torch.cat([base, clustered(100, 5)])
    assert plan(1000, THRESHOLD) == plan(900, THRESHOLD)
    kept = {pair: score for pair, score in found(more, np.zeros(1000, np.uint64)).items() if max(pair) < 900}
    assert kept == found(base, groups)


def test_the_number_of_candidates_at_a_time_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    base, groups = clustered(900, 3), np.zeros(900, np.uint64)
    whole = found(base, groups)
    monkeypatch.setattr(pairs_module, "KEYS", 50)
    assert found(base, groups) == whole
    for name, few in (("SPILLED", 1), ("BLOCK", 20)):  # several rounds of files; parts of a table
        monkeypatch.setattr(pairs_module, name, few)
        assert found(base, groups) == whole


def test_progress_moves_with_each_table_and_counts_each_row_once() -> None:
    parts: list[int] = []
    close_pairs(clustered(900, 3), np.zeros(900, np.uint64), THRESHOLD, parts.append)
    assert sum(parts) == 900 and len(parts) == plan(900, THRESHOLD)[1]


def test_many_equal_rows_cost_no_square() -> None:
    base = torch.zeros(3000, 8)
    base[:, 0] = 1
    left, right, score = close_pairs(base, np.zeros(3000, np.uint64), THRESHOLD)
    assert set((right - left).tolist()) == set(range(1, pairs_module.CAP + 1)) and set(score.tolist()) == {1.0}


def test_the_cost_falls_with_the_threshold_at_every_threshold() -> None:
    costs = [comparisons(1_000_000, threshold) for threshold in (-1.0, -0.5, 0.0, 0.5, 0.8, 0.99, 1.0)]
    assert costs == sorted(costs, reverse=True) and costs[-1] > 0
    assert comparisons(pairs_module.EXACT_ROWS, -1.0) == pairs_module.EXACT_ROWS


@pytest.mark.parametrize("n", [0, 1])
def test_of_no_row_or_one_there_is_no_pair(n: int) -> None:
    left, right, score = close_pairs(torch.ones(n, 1), np.zeros(n, np.uint64), THRESHOLD)
    assert len(left) == len(right) == len(score) == 0


@pytest.mark.parametrize("by", ["numba", "torch"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([7, 64]), st.sampled_from([0.0, 0.1, 0.5]), st.booleans())
def test_near_pairs_are_all_pairs(by: str, seed: int, size: int, share: float, halves: bool) -> None:
    check_near(by, seed, size, share, halves)


def check_near(by: str, seed: int, size: int, share: float, halves: bool) -> None:
    """In groups, by tiles, with the pairs of an earlier run, and thinned out to the nearest on the way."""
    rng, k = np.random.default_rng(seed), 2
    base = clustered(90, seed) if halves else clustered(90, seed).float()
    groups, is_new = rng.integers(0, 2, 90).astype(np.uint64), rng.random(90) < share
    expected = all_pairs(base, groups)
    left, right = np.array(list(expected), np.int64).reshape(-1, 2).T
    old = ~(is_new[left] | is_new[right])
    earlier = left[old], right[old], np.array(list(expected.values()), np.float32)[old]
    steps: list[int] = []
    given = {"groups": groups, "kept": earlier, "is_new": is_new, "advance": steps.append}
    with preferring({"ops": by}), patch.dict(pairs_module.TILE, cpu=size), patch.object(pairs_module, "PAIRS", 5):
        pairs, recall = near_pairs(base, THRESHOLD, **given)
        some, _ = near_pairs(base, THRESHOLD, **given, k=k)
    assert list(zip(*(side.tolist() for side in pairs[:2]))) == list(expected) and recall is None
    assert pairs[2].dtype == np.float32 and pairs[2].tolist() == list(expected.values()) and sum(steps) == 2 * 90
    nearest = [{*zip(*(c[np.concatenate([*among_nearest(*p, k)])].tolist() for c in p))} for p in (pairs, some)]
    assert nearest[0] == nearest[1]


@pytest.mark.parametrize("wrong", ["no slack", "exact scores dropped"])
def test_wrong_near_pairs_are_caught(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    if wrong == "no slack":
        monkeypatch.setattr(pairs_module, "products_slack", lambda rows: -0.05)
    else:
        monkeypatch.setattr(pairs_module, "exact_dots", lambda left, i, right, j: torch.ones(len(i)))
    with pytest.raises(AssertionError):
        check_near("torch", 1, 64, 0.5, True)


def are_nearest(left: np.ndarray, right: np.ndarray, score: np.ndarray, k: int) -> np.ndarray:
    numbers = np.concatenate([*among_nearest(left, right, score, k)])
    assert (np.diff(numbers) > 0).all()
    return np.isin(np.arange(len(left)), numbers)


def test_a_dense_cloud_is_cut_to_the_nearest() -> None:
    left, right = np.array(list(combinations(range(30), 2))).T
    kept = are_nearest(left, right, 1 - (right - left) / 100, 4)
    # the four nearest of an inner row are two on each side; rows at an end have them on one
    at_an_end = ((left < 2) & (right <= 4)) | ((right > 27) & (left >= 25))
    assert (kept == ((right - left <= 2) | at_an_end)).all()
    assert are_nearest(left, right, left / 1.0, 29).all()


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40), st.randoms(), st.integers(1, 4), PARTS)
@settings(deadline=None, derandomize=True)
def test_the_nearest_by_sorting_each_row(found: Any, draw: Any, k: int, most: int) -> None:
    edges = sorted((a, b) for a, b in found if a < b)
    score = {edge: draw.randrange(3) / 2 for edge in edges}
    nearest = {
        edge
        for row in range(10)
        for edge in sorted((e for e in edges if row in e), key=lambda e: (-score[e], sum(e) - row))[:k]
    }
    left, right = np.array(edges, np.int64).reshape(-1, 2).T
    with patch.object(pairs_module, "PAIRS", most):
        kept = are_nearest(left, right, np.array([*score.values()], np.float32), k)
    assert [edge in nearest for edge in edges] == kept.tolist()
