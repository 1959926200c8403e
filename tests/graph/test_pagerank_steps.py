"""A row of PageRank has the same bits alone, in any batch, at any place and with any number of threads; steps end where
their bound says so, and are as few as the solver promises.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import Job, Options, personalized_pagerank
from gpu_rag.graph.pagerank.inputs import PageRankGraph, prepare, teleport_of
from gpu_rag.graph.pagerank.plan import Plan, Tile, least_mass, plan_of, solve_tile
from gpu_rag.types import Ragged

N = 700
Solve = Callable[[PageRankGraph, list[list[int]]], torch.Tensor]
BOTH = pytest.mark.parametrize("implementation", ["numba", "torch"])


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


def solver(implementation: str, damping: float, threads: int = 1) -> Solve:
    def solve(graph: PageRankGraph, questions: list[list[int]]) -> torch.Tensor:
        offsets = np.cumsum([0] + [len(x) for x in questions])
        seeds = Ragged(torch.tensor([v for x in questions for v in x]), torch.from_numpy(offsets))
        return personalized_pagerank(graph, seeds, damping=damping, implementation=implementation, threads=threads)

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


@pytest.mark.parametrize("damping", [0.5, 0.95])
@BOTH
def test_a_row_does_not_know_its_batch(graph: PageRankGraph, implementation: str, damping: float) -> None:
    check_bits(graph, solver(implementation, damping))


def test_threads_do_not_change_bits(graph: PageRankGraph) -> None:
    questions = lists(100, 3)
    one = solver("numba", 0.85)(graph, questions)
    for threads in (2, 5):
        assert torch.equal(solver("numba", 0.85, threads)(graph, questions), one)
        check_bits(graph, solver("numba", 0.85, threads))


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


Bound = Callable[[Plan, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def seeds(*nodes: int) -> Ragged:
    """One seed a question."""
    return Ragged(torch.tensor(nodes), torch.arange(len(nodes) + 1))


def job_of(
    graph: PageRankGraph, nodes: tuple[int, ...], damping: float, tol: float, implementation: str = "numba"
) -> Job:
    options = Options(damping, tol, 1000, 64, 1)
    return Job(graph, teleport_of(graph, seeds(*nodes), None, None), implementation, options)


def check_bound(bound: Bound, seed: int, damping: float, tol: float, undirected: bool) -> None:
    """Puts a random state into a tile, checks it, and compares the bound with the true error."""
    r = np.random.default_rng(seed)
    n, nodes = 30, (0, 7, 29)
    ends = torch.from_numpy(r.integers(0, n - 1, (2, 60)))
    graph = prepare(csr_from_edges(ends[0], ends[1], n, undirected=undirected))
    job = job_of(graph, nodes, damping, tol)
    exact = torch.zeros(3, n)
    job.solve(0, 3, exact, 0)
    sharp = job_of(graph, nodes, damping, 1e-11)
    sharp.solve(0, 3, exact, 0)
    found = torch.zeros(3, n)
    tile = job.new_tile(torch.float64, np.arange(3), found, 0)
    state = exact.double().T.numpy() * graph.scale.numpy()[:, None] ** -1
    tile.x[:, :3] = state * (1 + r.choice([1e-4, 0.3]) * r.standard_normal(state.shape))  # type: ignore[attr-defined]
    gap, mass = tile.check(np.where(np.arange(tile.width) < 3, np.arange(tile.width), -1))
    least = least_mass(job.plan, job.teleport, job.graph.dangling, np.arange(3), tile.width)
    proved = bound(job.plan, gap, mass, least)[:3]
    scaled = found.double().numpy() * job.plan.scale(mass, least)[:3, None]
    error = np.abs(scaled - exact.double().numpy()).sum(1)
    assert np.all(error <= proved + 5e-7)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.5, 0.85, 0.95]), st.sampled_from([1e-2, 1e-6]), st.booleans())
def test_the_bound_holds_for_any_state(seed: int, damping: float, tol: float, undirected: bool) -> None:
    check_bound(Plan.bound, seed, damping, tol, undirected)


def as_if_the_last_step_were_the_error(plan: Plan, gap: np.ndarray, mass: np.ndarray, exact: np.ndarray) -> np.ndarray:
    return gap * 0.2


def ten_times_too_small(plan: Plan, gap: np.ndarray, mass: np.ndarray, exact: np.ndarray) -> np.ndarray:
    return plan.damping * gap / (1 - plan.damping) * 0.1


@pytest.mark.parametrize("wrong", [as_if_the_last_step_were_the_error, ten_times_too_small])
def test_checks_catch_a_bound_that_is_too_small(wrong: Bound) -> None:
    with pytest.raises(AssertionError):
        for seed in range(20):
            check_bound(wrong, seed, 0.85, 1e-6, True)


@pytest.fixture(scope="module")
def bipartite() -> PageRankGraph:
    """Passages and entities only: an eigenvalue of -1, the hardest case for plain power iteration."""
    r = np.random.default_rng(2)
    passage, entity = r.integers(0, 300, 3000), 300 + (1200 * r.random(3000) ** 2).astype(np.int64)
    return prepare(csr_from_edges(torch.from_numpy(passage), torch.from_numpy(entity), 1500))


def steps_of(graph: PageRankGraph, solver: str, damping: float) -> int:
    """By power iteration with looks at each step, or by an implementation's own solver."""
    job = job_of(graph, (3, 400, 900), damping, 1e-6, "numba" if solver == "sor" else "torch")
    plan = plan_of("power", damping, 1e-6, 1000, symmetric=True, known_mass=True) if solver == "power" else job.plan
    assert plan.solver == solver
    result = torch.zeros(3, graph.n)
    tile: Tile = job.new_tile(torch.float32, np.arange(3), result, 0)
    rows = np.where(np.arange(tile.width) < 3, np.arange(tile.width), -1)
    solved = solve_tile(tile, plan, rows, least_mass(plan, job.teleport, job.graph.dangling, np.arange(3), tile.width))
    assert not len(solved.unsolved)
    return int(solved.steps.max())


@pytest.mark.parametrize(("damping", "sor", "chebyshev", "power"), [(0.5, 9, 16, 20), (0.85, 22, 38, 80)])
def test_steps(bipartite: PageRankGraph, damping: float, sor: int, chebyshev: int, power: int) -> None:
    assert steps_of(bipartite, "sor", damping) <= sor
    assert steps_of(bipartite, "chebyshev", damping) <= chebyshev
    assert steps_of(bipartite, "power", damping) >= power  # so the other two are what makes the difference


@pytest.mark.parametrize("implementation", ["numba", "torch"])
@pytest.mark.parametrize("n_leaves", [2, 3, 10])
def test_an_error_that_every_second_step_hides(implementation: str, n_leaves: int) -> None:
    """Equal mass on the centre and a leaf: all of the error is where P^T is 0, and so are Chebyshev's odd steps."""
    centre, leaves = torch.zeros(n_leaves, dtype=torch.int64), 1 + torch.arange(n_leaves)
    graph = prepare(csr_from_edges(centre, leaves, n_leaves + 1))
    together = Ragged(torch.tensor([0, 1]), torch.tensor([0, 2]))
    for damping, tol, most in ((0.5, 1e-6, 18), (0.85, 1e-6, 40), (0.85, 1e-9, 56), (0.99, 1e-6, 180)):
        found = personalized_pagerank(
            graph, together, damping=damping, tol=tol, max_iter=most, implementation=implementation
        )
        other = damping * 0.5 / n_leaves  # half of all mass is on the centre, before a step and after
        want = torch.tensor([0.5, (1 - damping) * 0.5 + other, *[other] * (n_leaves - 1)]).double()
        assert float((found[0].double() - want).abs().sum()) <= tol + 1e-7


def test_a_state_that_is_not_a_number_is_not_a_proof(bipartite: PageRankGraph) -> None:
    job = job_of(bipartite, (3,), 0.85, 1e-6)
    tile = job.new_tile(torch.float32, np.arange(1), torch.zeros(1, bipartite.n), 0)
    tile.x[5, 0] = np.nan  # type: ignore[attr-defined]
    rows = np.where(np.arange(tile.width) < 1, 0, -1)
    solved = solve_tile(tile, replace(job.plan, max_iter=30), rows, np.ones(tile.width))
    assert solved.unsolved.tolist() == [0]
