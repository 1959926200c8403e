"""pagerank_topk against a dense float64 solve and brute-force ranking; bad arguments; random small graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from ragged_lists import ragged

from gpu_rag.errors import BadInput, GpuRagError, UsageError
from gpu_rag.graph.pagerank import pagerank_topk, personalized_pagerank, pick_implementation, prepare
from gpu_rag.types import CSR, Ragged, TopK

QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate])


def to_csr(a: np.ndarray) -> CSR:
    rows, cols = np.nonzero(a)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(a)))])
    indices, weight = torch.tensor(cols, dtype=torch.int32), torch.tensor(a[rows, cols], dtype=torch.float32)
    return CSR(torch.tensor(indptr, dtype=torch.int64), indices, weight)


def solve(a: np.ndarray, rows: list[list[int]], damping: float = 0.85) -> np.ndarray:
    """p = (1-d) pi + d (P^T p + (mass on rows without weight) pi), uniform over the seeds of a row."""
    out, n = a.sum(1, keepdims=True), len(a)
    p, empty = a / np.where(out > 0, out, 1), out[:, 0] == 0
    pi = np.zeros((len(rows), n))
    for i, r in enumerate(rows):
        np.add.at(pi[i], r, 1 / max(len(r), 1))
    return np.stack([np.linalg.solve(np.eye(n) - damping * (p.T + np.outer(r, empty)), (1 - damping) * r) for r in pi])


def rank(scores: np.ndarray, k: int, lo: int, hi: int) -> TopK:
    """The brute force: sort the range by (-score, id), pad with -1 / -inf."""
    ids, best = np.full((len(scores), k), -1, np.int32), np.full((len(scores), k), -np.inf, np.float32)
    for b, row in enumerate(scores):
        order = sorted(range(lo, hi), key=lambda i: (-row[i], i))[:k]
        ids[b, : len(order)], best[b, : len(order)] = order, row[order]
    return TopK(torch.tensor(ids), torch.tensor(best))


def star(leaves: int) -> np.ndarray:
    a = np.zeros((leaves + 1, leaves + 1))
    a[0, 1:] = a[1:, 0] = 1.0
    return a


def mesh(n: int = 60, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = np.triu((rng.random((n, n)) < 0.08) * rng.integers(1, 30, (n, n)) / 4.0, 1)
    a[:, n - 4 :] = 0
    return a + a.T


Topk = Callable[..., TopK]


def check_topk_of_a_mesh(topk: Topk) -> None:
    """Ids are node ids, of the range only; scores are the PageRank scores within tol; order (-score, id)."""
    a, rows = mesh(), [[3], [10, 20, 30], [5, 59], [58]]
    exact = solve(a, rows)
    for lo, hi, k in ((0, 60, 10), (20, 60, 7), (0, 1, 1), (55, 60, 5), (7, 31, 24)):
        got = topk(to_csr(a), ragged(rows), k=k, ids=(lo, hi))
        assert got.ids.dtype == torch.int32 and got.scores.dtype == torch.float32
        assert tuple(got.ids.shape) == tuple(got.scores.shape) == (4, k)
        ids, scores = got.ids.numpy(), got.scores.numpy()
        assert (ids >= lo).all() and (ids < hi).all() and all(len(set(r)) == k for r in ids.tolist())
        assert np.abs(np.take_along_axis(exact, ids.astype(int), 1) - scores).max() <= 1e-6
        assert (np.abs(-np.sort(-exact[:, lo:hi], 1)[:, :k] - scores) <= 1e-6).all(), "not the best ones"
        for r in range(4):
            keys = list(zip((-scores[r]).tolist(), ids[r].tolist()))
            assert keys == sorted(keys), "not sorted by (-score, id)"


def check_ties(topk: Topk) -> None:
    """The leaves of a star tie exactly: the smallest ids of the range come first, in order."""
    csr = to_csr(star(30))
    for lo, hi, k in ((1, 31, 30), (1, 31, 4), (9, 31, 5)):
        got = topk(csr, ragged([[0], [0]]), k=k, ids=(lo, hi)).ids.tolist()
        assert got == [list(range(lo, lo + k))] * 2, got
    assert topk(csr, ragged([[0]]), k=3, ids=(0, 31)).ids.tolist() == [[0, 1, 2]]


def check_padding(topk: Topk) -> None:
    got = topk(to_csr(star(5)), ragged([[0], [2]]), k=5, ids=(4, 6))
    assert (got.ids[:, 2:] == -1).all() and (got.scores[:, 2:] == -torch.inf).all()
    assert got.ids[:, :2].tolist() == [[4, 5], [4, 5]] and torch.isfinite(got.scores[:, :2]).all()


def check_alone(topk: Topk) -> None:
    a, rows = to_csr(mesh()), [[i % 55, (i * 7) % 55] for i in range(130)]
    whole = topk(a, ragged(rows), k=8, ids=(10, 60))
    for i in (0, 63, 64, 129):
        one = topk(a, ragged([rows[i]]), k=8, ids=(10, 60))
        assert torch.equal(one.ids[0], whole.ids[i]) and torch.equal(one.scores[0], whole.scores[i])


def reference(csr: CSR, seeds: Ragged, *, k: int, ids: tuple[int, int], choose: Any = rank) -> TopK:
    a = np.zeros((csr.n, csr.n))
    a[np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy())), csr.indices.numpy()] = csr.weight.numpy()
    offsets = seeds.offsets.tolist()
    rows = [seeds.values[s:e].tolist() for s, e in pairwise(offsets)]
    return choose(np.concatenate([solve(a, [r]) for r in rows]).astype(np.float32), k, *ids)


def local_ids(scores: np.ndarray, k: int, lo: int, hi: int) -> TopK:
    got = rank(scores, k, lo, hi)
    return TopK(torch.where(got.ids >= 0, got.ids - lo, got.ids), got.scores)


def late_ties(scores: np.ndarray, k: int, lo: int, hi: int) -> TopK:
    got = rank(scores[:, ::-1], k, scores.shape[1] - hi, scores.shape[1] - lo)
    return TopK(torch.where(got.ids >= 0, scores.shape[1] - 1 - got.ids, got.ids), got.scores)


def inclusive(scores: np.ndarray, k: int, lo: int, hi: int) -> TopK:
    return rank(scores, k, lo, min(hi + 1, scores.shape[1]))


def whole_range(scores: np.ndarray, k: int, lo: int, hi: int) -> TopK:
    return rank(scores, k, 0, scores.shape[1])


def zero_padding(scores: np.ndarray, k: int, lo: int, hi: int) -> TopK:
    got = rank(scores, k, lo, hi)
    return TopK(got.ids.clamp(min=0), got.scores.clamp(min=0))


def ascending(scores: np.ndarray, k: int, lo: int, hi: int) -> TopK:
    got = rank(scores, k, lo, hi)
    return TopK(got.ids.flip(1), got.scores.flip(1))


WRONG = {
    "ids count from lo": (local_ids, check_topk_of_a_mesh),
    "ties to the larger id": (late_ties, check_ties),
    "hi included": (inclusive, check_topk_of_a_mesh),
    "range ignored": (whole_range, check_topk_of_a_mesh),
    "padded with node 0": (zero_padding, check_padding),
    "ascending": (ascending, check_topk_of_a_mesh),
}
CHECKS = [check_topk_of_a_mesh, check_ties, check_padding, check_alone]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_versions_are_caught(name: str) -> None:
    choose, check = WRONG[name]
    with pytest.raises(AssertionError):
        check(lambda *args, **named: reference(*args, **named, choose=choose))


@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_accept_a_right_one(check: Any) -> None:
    check(reference)


@pytest.mark.parametrize("check", CHECKS)
def test_pagerank_topk(check: Any) -> None:
    check(pagerank_topk)
    check(lambda csr, *args, **named: pagerank_topk(prepare(csr), *args, **named))


def test_topk_is_the_ranking_of_the_full_rows() -> None:
    csr, rows = to_csr(mesh(seed=4)), ragged([[1, 2], [], [40]])
    full = personalized_pagerank(csr, rows, damping=0.5)
    got = pagerank_topk(csr, rows, damping=0.5, k=9, ids=(12, 60))
    want = rank(full.numpy(), 9, 12, 60)
    for row in (0, 2):
        assert got.ids[row].tolist() == want.ids[row].tolist()
        assert torch.equal(got.scores[row], want.scores[row])


@st.composite
def cases(draw: Any) -> tuple[np.ndarray, list[list[int]], float]:
    n = draw(st.integers(1, 9))
    a = np.zeros((n, n))
    for i, j, w in draw(st.lists(st.tuples(*[st.integers(0, n - 1)] * 2, st.integers(1, 16)), max_size=25)):
        a[i, j] = w / 4
    if draw(st.booleans()):
        a = np.maximum(a, a.T)
    rows = draw(st.lists(st.lists(st.integers(0, n - 1), max_size=4), min_size=1, max_size=3))
    return a, rows, draw(st.sampled_from([0.5, 0.85]))


def check_random_graphs(ppr: Callable[..., torch.Tensor]) -> None:
    @QUICK
    @given(cases())
    def holds(case: Any) -> None:
        a, rows, damping = case
        got = ppr(to_csr(a), ragged(rows), damping=damping, max_iter=1000).double().numpy()
        assert np.abs(got - solve(a, rows, damping)).sum(1).max() <= 1e-6

    holds()


def test_random_graphs() -> None:
    check_random_graphs(personalized_pagerank)
    with pytest.raises(AssertionError):  # wrong: edges followed backwards
        check_random_graphs(lambda csr, rows, **named: personalized_pagerank(backwards(csr), rows, **named))


def backwards(csr: CSR) -> CSR:
    a = np.zeros((csr.n, csr.n))
    a[csr.indices.numpy(), np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy()))] = csr.weight.numpy()
    return to_csr(a)


def test_no_rows_and_no_edges() -> None:
    csr = to_csr(star(3))
    empty = Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert tuple(personalized_pagerank(csr, empty).shape) == (0, 4)
    alone = personalized_pagerank(to_csr(np.zeros((3, 3))), ragged([[2], [0, 1]]))
    assert torch.allclose(alone, torch.tensor([[0, 0, 1.0], [0.5, 0.5, 0]]), atol=1e-6)


GOOD = to_csr(star(3))
SEEDS = ragged([[0], [1, 2]])
BAD_CALLS: dict[str, Callable[[], object]] = {
    "node too large": lambda: personalized_pagerank(GOOD, ragged([[4]])),
    "negative node": lambda: personalized_pagerank(GOOD, ragged([[-1]])),
    "negative weight": lambda: personalized_pagerank(GOOD, SEEDS, ragged([[1.0], [2.0, -1.0]], torch.float32)),
    "NaN weight": lambda: personalized_pagerank(GOOD, SEEDS, ragged([[1.0], [2.0, np.nan]], torch.float32)),
    "too few weights": lambda: personalized_pagerank(GOOD, SEEDS, ragged([[1.0], [2.0]], torch.float32)),
    "weights of other rows": lambda: personalized_pagerank(GOOD, SEEDS, ragged([[1.0, 2.0], [1.0]], torch.float32)),
    "broken offsets": lambda: personalized_pagerank(GOOD, Ragged(SEEDS.values, torch.tensor([0, 2, 9]))),
    "neither seeds nor prior": lambda: personalized_pagerank(GOOD, None),
    "seeds and prior": lambda: personalized_pagerank(GOOD, SEEDS, prior=torch.ones(2, 4)),
    "prior of another width": lambda: personalized_pagerank(GOOD, None, prior=torch.ones(2, 5)),
    "NaN in the prior": lambda: personalized_pagerank(GOOD, None, prior=torch.tensor([[1.0, np.nan, 0, 0]])),
    "negative prior": lambda: personalized_pagerank(GOOD, None, prior=torch.tensor([[1.0, -0.5, 0, 0]])),
    "damping 1.5": lambda: personalized_pagerank(GOOD, SEEDS, damping=1.5),
    "damping 1": lambda: personalized_pagerank(GOOD, SEEDS, damping=1.0),
    "damping below 0": lambda: personalized_pagerank(GOOD, SEEDS, damping=-0.1),
    "damping NaN": lambda: personalized_pagerank(GOOD, SEEDS, damping=float("nan")),
    "unknown solver": lambda: personalized_pagerank(GOOD, SEEDS, solver="magic"),
    "unknown implementation": lambda: personalized_pagerank(GOOD, SEEDS, implementation="magic"),
    "range beyond the nodes": lambda: pagerank_topk(GOOD, SEEDS, k=2, ids=(0, 5)),
    "range backwards": lambda: pagerank_topk(GOOD, SEEDS, k=2, ids=(3, 1)),
    "range below 0": lambda: pagerank_topk(GOOD, SEEDS, k=2, ids=(-1, 3)),
    "unsorted graph": lambda: personalized_pagerank(CSR(GOOD.indptr, GOOD.indices.flip(0), None), SEEDS),
    "unsorted graph, prepared": lambda: prepare(CSR(GOOD.indptr, GOOD.indices.flip(0), None)),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        BAD_CALLS[name]()


def test_weights_that_are_all_zero_are_refused_or_an_empty_row() -> None:
    try:
        got = personalized_pagerank(GOOD, SEEDS, ragged([[1.0], [0.0, 0.0]], torch.float32))
    except BadInput:
        return
    assert (got[1] == 0).all() and abs(float(got[0].sum()) - 1) <= 1e-5


def test_a_row_of_zero_weights_is_dangling() -> None:
    csr = CSR(torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0], dtype=torch.int32), torch.tensor([0.0, 0.0, 1.0]))
    a = np.array([[0, 0, 0], [1.0, 0, 0], [0, 0, 0]])
    try:
        got = personalized_pagerank(csr, ragged([[0], [1], [2]]))
    except GpuRagError:
        return
    assert np.abs(got.numpy() - solve(a, [[0], [1], [2]])).sum(1).max() <= 1e-6


def test_pick_implementation_says_what_runs() -> None:
    assert pick_implementation(GOOD, "scipy") == "scipy" and pick_implementation(GOOD, "torch") == "torch"
    assert pick_implementation(GOOD, "auto") in {"numba", "scipy", "torch"}
    with pytest.raises(UsageError):
        pick_implementation(GOOD, "magic")
