"""pagerank_topk against a dense float64 solve and brute-force ranking."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from dense_pagerank import csr_of, dense, pagerank_of, row_normalised, star
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.nearest import topk_rows
from gpu_rag.graph.pagerank import pagerank_topk, personalized_pagerank, prepare
from gpu_rag.graph.pagerank import plan as pagerank_questions
from gpu_rag.graph.pagerank.plan import Solved, plan_of, solve_tile
from gpu_rag.types import CSR, Ragged, TopK


def rank(scores: np.ndarray, k: int, lo: int, hi: int) -> TopK:
    """The brute force: sort the range by (-score, id), pad with -1 / -inf."""
    ids, best = np.full((len(scores), k), -1, np.int32), np.full((len(scores), k), -np.inf, np.float32)
    for b, row in enumerate(scores):
        order = sorted(range(lo, hi), key=lambda i: (-row[i], i))[:k]
        ids[b, : len(order)], best[b, : len(order)] = order, row[order]
    return TopK(torch.tensor(ids), torch.tensor(best))


def mesh(n: int = 60, seed: int = 0) -> CSR:
    rng = np.random.default_rng(seed)
    a = np.triu((rng.random((n, n)) < 0.08) * rng.integers(1, 30, (n, n)) / 4.0, 1)
    a[:, n - 4 :] = 0
    return csr_of(a + a.T)


Topk = Callable[..., TopK]


def check_topk_of_a_mesh(topk: Topk) -> None:
    """Ids are node ids, of the range only; scores are the PageRank scores within tol; order (-score, id)."""
    csr, rows = mesh(), [[3], [10, 20, 30], [5, 59], [58]]
    exact = pagerank_of(csr, rows)
    for lo, hi, k in ((0, 60, 10), (20, 60, 7), (0, 1, 1), (55, 60, 5), (7, 31, 24)):
        got = topk(csr, ragged(rows), k=k, ids=(lo, hi))
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
    csr = csr_of(star(30))
    for lo, hi, k in ((1, 31, 30), (1, 31, 4), (9, 31, 5)):
        got = topk(csr, ragged([[0], [0]]), k=k, ids=(lo, hi)).ids.tolist()
        assert got == [list(range(lo, lo + k))] * 2, got
    assert topk(csr, ragged([[0]]), k=3, ids=(0, 31)).ids.tolist() == [[0, 1, 2]]


def check_padding(topk: Topk) -> None:
    got = topk(csr_of(star(5)), ragged([[0], [2]]), k=5, ids=(4, 6))
    assert (got.ids[:, 2:] == -1).all() and (got.scores[:, 2:] == -torch.inf).all()
    assert got.ids[:, :2].tolist() == [[4, 5], [4, 5]] and torch.isfinite(got.scores[:, :2]).all()


def check_alone(topk: Topk) -> None:
    a, rows = mesh(), [[i % 55, (i * 7) % 55] for i in range(130)]
    whole = topk(a, ragged(rows), k=8, ids=(10, 60))
    for i in (0, 63, 64, 129):
        one = topk(a, ragged([rows[i]]), k=8, ids=(10, 60))
        assert torch.equal(one.ids[0], whole.ids[i]) and torch.equal(one.scores[0], whole.scores[i])


def reference(csr: CSR, seeds: Ragged, *, k: int, ids: tuple[int, int], choose: Any = rank) -> TopK:
    rows = [seeds.values[s:e].tolist() for s, e in pairwise(seeds.offsets.tolist())]
    return choose(np.concatenate([pagerank_of(csr, [r]) for r in rows]).astype(np.float32), k, *ids)


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


@pytest.mark.parametrize("implementation", ["numba", "scipy", "torch"])
def test_topk_is_the_ranking_of_the_full_rows(implementation: str) -> None:
    csr, seeds = mesh(seed=4), ragged([[i, 2 * i % 60] for i in range(38)] + [[]])
    options = {"damping": 0.5, "implementation": implementation}
    full = personalized_pagerank(csr, seeds, **options)
    found = pagerank_topk(csr, seeds, k=9, ids=(12, 60), **options)
    best = topk_rows(full[:-1, 12:60].contiguous(), 9, lo=12)
    assert torch.equal(found.ids[:-1], best.ids) and torch.equal(found.scores[:-1], best.scores)
    assert (found.ids[-1] == -1).all() and (found.scores[-1] == -torch.inf).all()
    assert pagerank_topk(csr, seeds, k=3, ids=(5, 5), **options).ids.tolist() == [[-1] * 3] * 39


# --- settling: the ids are the exact ones, and a looser rule is caught ------------------------------

TOL = 1e-6
SEEN = 2.5 * TOL  # a gap that tol can see
NAMES = ["numba", "scipy", "torch"]


def random_graph(seed: int, *, undirected: bool, n: int = 60, m: int = 150) -> CSR:
    r = np.random.default_rng(seed)
    ends, weight = torch.from_numpy(r.integers(0, n, (2, m))), torch.from_numpy(r.integers(1, 30, m) / 4)
    return csr_from_edges(ends[0], ends[1], n, weight, undirected=undirected)


def trap() -> CSR:
    """Node 0 keeps 9/10 of its mass a step and loses 1/10 to node 1, which keeps all: at first 0 leads by far."""
    ends = torch.tensor([[0, 0], [0, 1], [1, 1]]).T
    weight = torch.tensor([9.0, 1.0, 1.0])
    return csr_from_edges(ends[0], ends[1], 3, weight, undirected=False, drop_self_loops=False)


def narrow_trap() -> CSR:
    """The same, but at d = .85 node 1 ends only 1e-5 ahead: node 0 still leads when the error is a few times that."""
    csr, kept = trap(), (1 - 0.15 / 0.499995) / 0.85
    return CSR(csr.indptr, csr.indices, torch.tensor([kept, 1 - kept, 1.0]))


def check_sets(topk: Topk) -> None:
    """Where the exact gap can be seen the set is the exact one; no node is missed by more than tol anywhere."""
    cases = [(trap(), [[0]], [0.97]), (narrow_trap(), [[0]], [0.85])]
    cases += [(random_graph(s, undirected=s % 2 == 0), [[3], [10, 20, 30], [5, 59]], [0.5, 0.85]) for s in range(6)]
    for csr, rows, dampings in cases:
        for d in dampings:
            p = pagerank_of(csr, rows, d)
            for k, lo, hi in ((1, 0, csr.n), (5, 0, csr.n), (3, 20, 50)):
                if hi > csr.n or k >= csr.n:
                    continue
                got = topk(csr, ragged(rows), k=k, ids=(lo, hi), damping=d, max_iter=2000)
                for row, ids in zip(p[:, lo:hi], got.ids.tolist()):
                    order = np.argsort(-row, kind="stable")
                    if row[order[k - 1]] - row[order[k]] > SEEN:
                        assert {i - lo for i in ids} == set(order[:k].tolist()), f"damping {d}, k {k}"
                    assert min(row[i - lo] for i in ids) >= row[order[k - 1]] - 2 * TOL


def settled(*args: Any, **options: Any) -> TopK:
    return pagerank_topk(*args, settle=True, **options)


@pytest.mark.parametrize("name", NAMES)
def test_the_set_is_the_exact_one(name: str) -> None:
    check_sets(lambda *a, **k: settled(*a, implementation=name, **k))


def stopped(rule: Callable[[float, float, float], bool]) -> Topk:
    """Power iteration that stops when rule(gap, length of the step, damping) says so, or at 1e-12."""

    def topk(csr: CSR, seeds: Ragged, *, k: int, ids: tuple[int, int], damping: float, **_: Any) -> TopK:
        a = dense(csr)
        found = []
        for b in range(seeds.batch):
            row = seeds.values[seeds.offsets[b] : seeds.offsets[b + 1]].numpy()
            pi = np.bincount(row, minlength=csr.n) / len(row)
            p, step = pi, 1.0
            while True:
                moved = row_normalised(a).T @ p + p[a.sum(1) == 0].sum() * pi
                p, before = (1 - damping) * pi + damping * moved, p
                step = float(np.abs(p - before).sum())
                order = np.argsort(-p[slice(*ids)], kind="stable")
                best = p[slice(*ids)][order]
                if step < 1e-12 or rule(float(best[k - 1] - best[k]), step, damping):
                    break
            found.append(order[:k] + ids[0])
        return TopK(torch.tensor(np.array(found), dtype=torch.int32), torch.zeros(len(found), k))

    return topk


def test_the_checks_accept_the_right_rule() -> None:
    check_sets(stopped(lambda gap, step, d: gap > d / (1 - d) * step))


@pytest.mark.parametrize(
    "rule",
    [
        lambda gap, step, d: gap > step,  # the step is no bound of what remains
        lambda gap, step, d: gap > (1 - d) * step,
        lambda gap, step, d: step < 0.1,  # enough steps for any question
    ],
)
def test_looser_rules_are_caught(rule: Callable[[float, float, float], bool]) -> None:
    with pytest.raises(AssertionError):
        check_sets(stopped(rule))


class Halving:
    """A tile of one question whose gap is half as large at every check."""

    width, slack, coarsest = 1, 0.0, 0.0

    def __init__(self) -> None:
        self.gap = 1.0

    def sweep(self, omegas: np.ndarray, fine: bool) -> np.ndarray:
        return np.zeros(1)

    def check(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.gap /= 2
        return np.array([self.gap]), np.ones(1)


@pytest.mark.parametrize(("ahead", "gap"), [(0.7, 1 / 4), (0.66, 1 / 8), (0.29, 1 / 8), (0.28, 1 / 16)])
def test_it_settles_at_the_first_bound_below_the_gap(ahead: float, gap: float) -> None:
    """At d = 1/2 a gap g of a state of mass 1 proves an error of 2 g / (1 - g): 2/3, 2/7, 2/15 for 1/4, 1/8, 1/16."""
    plan = plan_of("power", 0.5, TOL, 1000, symmetric=False, known_mass=False)
    solved = solve_tile(Halving(), plan, np.zeros(1, np.int64), np.ones(1), lambda rows, scale: np.array([ahead]))
    assert solved.bound[0] == 2 * gap / (1 - gap) and not len(solved.unsolved)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_off_by_less_than_the_gap(name: str) -> None:
    csr, rows = random_graph(2, undirected=True), [[3], [10, 20, 30]]
    p = pagerank_of(csr, rows, 0.85)
    got = settled(csr, ragged(rows), k=4, implementation=name)
    for row, ids, scores in zip(p, got.ids.tolist(), got.scores.tolist()):
        gap = -np.diff(np.sort(row)[::-1])[3]
        assert max(abs(row[i] - s) for i, s in zip(ids, scores)) < max(2 * gap, TOL)
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_tie_and_a_full_range_end_at_tol(name: str) -> None:
    leaves = csr_of(star(9), False)
    for k, ids in ((4, (0, 10)), (10, (0, 10)), (3, (7, 10)), (2, (4, 4))):
        one = settled(leaves, ragged([[0], [], [3]]), k=k, ids=ids, implementation=name)
        two = pagerank_topk(leaves, ragged([[0], [], [3]]), k=k, ids=ids, implementation=name)
        assert torch.equal(one.ids, two.ids)
        if k != 4:
            assert torch.equal(one.scores, two.scores)


def test_a_question_alone_has_the_same_bits() -> None:
    csr = random_graph(8, undirected=True)
    rows = [[i % 60, (7 * i) % 60] for i in range(70)]
    whole = settled(csr, ragged(rows), k=5)
    again = settled(csr, ragged(rows), k=5, threads=3)
    assert torch.equal(whole.scores, again.scores)
    for i in (0, 31, 32, 69):
        one = settled(csr, ragged([rows[i]]), k=5)
        assert torch.equal(one.ids[0], whole.ids[i]) and torch.equal(one.scores[0], whole.scores[i])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([0.3, 0.85, 0.95]), st.booleans())
def test_random_graphs(seed: int, k: int, d: float, undirected: bool) -> None:
    csr = random_graph(seed, undirected=undirected, n=20, m=40)
    p = pagerank_of(csr, [[seed % 20]], d)[0]
    order = np.argsort(-p, kind="stable")
    got = settled(csr, ragged([[seed % 20]]), k=k, damping=d, max_iter=1000)
    if p[order[k - 1]] - p[order[k]] > SEEN:
        assert set(got.ids[0].tolist()) == set(order[:k].tolist())


def test_it_saves_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps: list[int] = []

    def counted_solve(*given: Any) -> Solved:
        solved = solve_tile(*given)
        sweeps.append(int(solved.steps.max()))
        return solved

    monkeypatch.setattr(pagerank_questions, "solve_tile", counted_solve)
    ends = torch.tensor([[i, i + 1] for i in range(300)] + [[0, i] for i in range(2, 60)]).T
    csr, counted = csr_from_edges(ends[0], ends[1], 301), []
    for settle in (False, True):
        sweeps.clear()
        pagerank_topk(csr, ragged([[0]]), k=1, settle=settle)
        counted.append(sum(sweeps))
    assert counted[1] <= 0.7 * counted[0], counted


# --- out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_out_is_filled_and_returned(name: str) -> None:
    csr, seeds = random_graph(3, undirected=True), ragged([[1], [], [2, 3]])
    fresh = personalized_pagerank(csr, seeds, implementation=name)
    held = torch.full((5, csr.n), torch.nan)
    again = personalized_pagerank(csr, seeds, implementation=name, out=held[1:4])
    assert again.data_ptr() == held[1:4].data_ptr() and torch.equal(fresh, held[1:4])
    assert held[[0, 4]].isnan().all(), "it wrote beside its place"


def test_out_that_does_not_fit() -> None:
    csr, seeds = random_graph(3, undirected=True), ragged([[1], [2]])
    for out in (
        torch.zeros(3, csr.n),
        torch.zeros(2, csr.n + 1),
        torch.zeros(2, csr.n, dtype=torch.float64),
        torch.zeros(csr.n, 2).T,
        torch.zeros(2, csr.n, device="meta"),
    ):
        with pytest.raises(BadInput, match="out does not fit"):
            personalized_pagerank(csr, seeds, out=out)
    prior = torch.ones(2, csr.n)
    with pytest.raises(BadInput, match="share memory"):
        personalized_pagerank(csr, prior=prior, out=prior)
