"""pagerank_topk that stops when its best k are settled: the ids are the exact ones, and a looser rule is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import pagerank_topk, personalized_pagerank
from gpu_rag.graph.pagerank import plan as pagerank_questions
from gpu_rag.graph.pagerank.plan import Solved, plan_of, solve_tile
from gpu_rag.types import CSR, Ragged, TopK

Topk = Callable[..., TopK]
TOL = 1e-6
SEEN = 2.5 * TOL  # a gap that tol can see
NAMES = ["numba", "scipy", "torch"]


def exact(csr: CSR, rows: list[list[int]], d: float) -> np.ndarray:
    """p = (1-d) pi + d (P^T p + (mass on rows without weight) pi)."""
    a = np.zeros((csr.n, csr.n))
    edge_rows = np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy()))
    a[edge_rows, csr.indices.numpy()] = 1.0 if csr.weight is None else csr.weight.double().numpy()
    out = a.sum(1, keepdims=True)
    p = a / np.where(out > 0, out, 1)
    found = []
    for row in rows:
        pi = np.bincount(row, minlength=csr.n) / len(row)
        lost = np.outer(pi, out[:, 0] == 0)
        found.append(np.linalg.solve(np.eye(csr.n) - d * (p.T + lost), (1 - d) * pi))
    return np.stack(found)


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
            p = exact(csr, rows, d)
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
        a = np.zeros((csr.n, csr.n))
        a[np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy())), csr.indices.numpy()] = csr.weight.numpy()
        out = a.sum(1)
        found = []
        for b in range(seeds.batch):
            row = seeds.values[seeds.offsets[b] : seeds.offsets[b + 1]].numpy()
            pi = np.bincount(row, minlength=csr.n) / len(row)
            p, step = pi, 1.0
            while True:
                moved = (a / np.where(out > 0, out, 1)[:, None]).T @ p + p[out == 0].sum() * pi
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
    p = exact(csr, rows, 0.85)
    got = settled(csr, ragged(rows), k=4, implementation=name)
    for row, ids, scores in zip(p, got.ids.tolist(), got.scores.tolist()):
        gap = -np.diff(np.sort(row)[::-1])[3]
        assert max(abs(row[i] - s) for i, s in zip(ids, scores)) < max(2 * gap, TOL)
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_tie_and_a_full_range_end_at_tol(name: str) -> None:
    leaves = csr_from_edges(torch.zeros(9, dtype=torch.int64), torch.arange(1, 10), 10)
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
    p = exact(csr, [[seed % 20]], d)[0]
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
