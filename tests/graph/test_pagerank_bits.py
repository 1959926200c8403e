"""A row of PageRank has the same bits alone, in any batch, at any place and with any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import PageRankGraph, personalized_pagerank, prepare
from gpu_rag.types import Ragged

N = 700
Solve = Callable[[PageRankGraph, list[list[int]]], torch.Tensor]
IMPLEMENTATIONS = [("numba", "sor"), ("numba", "chebyshev"), ("scipy", "chebyshev"), ("torch", "chebyshev")]


@pytest.fixture(scope="module", params=[False, True], ids=["pattern", "weighted"])
def graph(request: pytest.FixtureRequest) -> PageRankGraph:
    r = np.random.default_rng(11)
    ends = (N * r.random((2, 4000)) ** 2).astype(np.int64)
    weight = torch.from_numpy(r.random(4000).astype(np.float32)) if request.param else None
    return prepare(csr_from_edges(torch.from_numpy(ends[0]), torch.from_numpy(ends[1]), N, weight))


def lists(count: int, seed: int) -> list[list[int]]:
    """Question 0 starts at a hub, the last on an isolated node; questions converge after different numbers of steps."""
    r = np.random.default_rng(seed)
    some = [r.integers(0, N, r.integers(1, 6)).tolist() for _ in range(count - 2)]
    return [[0], *some, [N - 1, 3]]


def solver(implementation: str, solver: str, damping: float, threads: int = 1) -> Solve:
    def solve(graph: PageRankGraph, questions: list[list[int]]) -> torch.Tensor:
        offsets = np.cumsum([0] + [len(x) for x in questions])
        seeds = Ragged(torch.tensor([v for x in questions for v in x]), torch.from_numpy(offsets))
        return personalized_pagerank(
            graph, seeds, damping=damping, implementation=implementation, solver=solver, threads=threads
        )

    return solve


def check_bits(graph: PageRankGraph, solve: Solve) -> None:
    questions = lists(70, 0)
    together = solve(graph, questions)
    for b in (0, 1, 31, 32, 33, 64, 69):
        assert torch.equal(solve(graph, [questions[b]])[0], together[b]), f"question {b} alone"
    for few in (1, 2, 8, 9):  # numba's rows hold 1, 8 or 32 questions
        assert torch.equal(solve(graph, questions[:few]), together[:few]), f"{few} questions"
    order = np.random.default_rng(5).permutation(70)
    shuffled = solve(graph, [questions[b] for b in order])
    assert torch.equal(shuffled, together[torch.from_numpy(order)])


@pytest.mark.parametrize("damping", [0.5, 0.85, 0.95])
@pytest.mark.parametrize(("implementation", "kind"), IMPLEMENTATIONS)
def test_a_row_does_not_know_its_batch(graph: PageRankGraph, implementation: str, kind: str, damping: float) -> None:
    check_bits(graph, solver(implementation, kind, damping))


def test_rows_hold_as_many_questions_as_the_tests_ask() -> None:
    from gpu_rag.graph.pagerank.numba_path import lanes_for

    assert [lanes_for(few) for few in (1, 2, 8, 9, 70)] == [1, 8, 8, 32, 32]


@pytest.mark.parametrize("damping", [0.5, 0.85])
def test_sweeps_in_one_call_are_the_sweeps_one_by_one(
    graph: PageRankGraph, damping: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_rag.graph.pagerank.numba_path import NumbaTile

    solve, questions = solver("numba", "sor", damping), lists(9, 6)
    together = [solve(graph, questions[:few]) for few in (1, 9)]
    monkeypatch.delattr(NumbaTile, "sweep_until")
    for few, found in zip((1, 9), together):
        assert torch.equal(solve(graph, questions[:few]), found)


def test_threads_do_not_change_bits(graph: PageRankGraph) -> None:
    questions = lists(100, 3)
    one = solver("numba", "sor", 0.85)(graph, questions)
    for threads in (2, 5):
        assert torch.equal(solver("numba", "sor", 0.85, threads)(graph, questions), one)
        check_bits(graph, solver("numba", "sor", 0.85, threads))


def stops_with_the_slowest(graph: PageRankGraph, questions: list[list[int]]) -> torch.Tensor:
    """A wrong version: one number of steps for a whole batch, which depends on who is in it."""
    steps = 10 + max(len(x) for x in questions)
    p = torch.zeros(len(questions), N, dtype=torch.float64)
    for row, nodes in zip(p, questions, strict=True):
        row[nodes] = 1 / len(nodes)
    pi, a = p.clone(), graph.pull
    weight = torch.ones(a.m) if a.weight is None else a.weight
    dense = torch.zeros(N, N, dtype=torch.float64)
    dense[torch.repeat_interleave(torch.arange(N), a.indptr.diff()), a.indices.long()] = weight.double()
    for _ in range(steps):
        p = 0.15 * pi + 0.85 * (p / graph.scale) @ dense.T
    return p.float()


def test_checks_catch_a_shared_step_count(graph: PageRankGraph) -> None:
    with pytest.raises(AssertionError):
        check_bits(graph, stops_with_the_slowest)


def test_a_prior_row_does_not_know_its_batch(graph: PageRankGraph) -> None:
    prior = torch.rand(40, N, generator=torch.Generator().manual_seed(1)) ** 8
    together = personalized_pagerank(graph, prior=prior)
    for b in (0, 17, 39):
        assert torch.equal(personalized_pagerank(graph, prior=prior[b : b + 1])[0], together[b])
