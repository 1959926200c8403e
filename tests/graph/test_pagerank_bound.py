"""The stopping rule of PageRank: the bound holds for any state, and steps are as few as the solver promises."""

from __future__ import annotations

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
from gpu_rag.graph.pagerank.plan import Plan, Tile, least_mass, solve_tile
from gpu_rag.types import Ragged

Bound = Callable[[Plan, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def seeds(*nodes: int) -> Ragged:
    """One seed a question."""
    return Ragged(torch.tensor(nodes), torch.arange(len(nodes) + 1))


def job_of(graph: PageRankGraph, nodes: tuple[int, ...], damping: float, tol: float, solver: str) -> Job:
    options = Options(damping, tol, 1000, solver, 64, 1)
    return Job(graph, teleport_of(graph, seeds(*nodes), None, None), "numba", options)


def check_bound(bound: Bound, seed: int, damping: float, tol: float, undirected: bool) -> None:
    """Puts a random state into a tile, checks it, and compares the bound with the true error."""
    r = np.random.default_rng(seed)
    n, nodes = 30, (0, 7, 29)
    ends = torch.from_numpy(r.integers(0, n - 1, (2, 60)))
    graph = prepare(csr_from_edges(ends[0], ends[1], n, undirected=undirected))
    job = job_of(graph, nodes, damping, tol, "power")
    exact = torch.zeros(3, n)
    job.solve(0, 3, exact, 0)
    sharp = job_of(graph, nodes, damping, 1e-11, "power")
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
    job = job_of(graph, (3, 400, 900), damping, 1e-6, solver)
    result = torch.zeros(3, graph.n)
    tile: Tile = job.new_tile(torch.float32, np.arange(3), result, 0)
    rows = np.where(np.arange(tile.width) < 3, np.arange(tile.width), -1)
    solved = solve_tile(
        tile, job.plan, rows, least_mass(job.plan, job.teleport, job.graph.dangling, np.arange(3), tile.width)
    )
    assert not len(solved.unsolved)
    return int(solved.steps.max())


@pytest.mark.parametrize(("damping", "sor", "chebyshev", "power"), [(0.5, 9, 16, 20), (0.85, 22, 38, 80)])
def test_steps(bipartite: PageRankGraph, damping: float, sor: int, chebyshev: int, power: int) -> None:
    assert steps_of(bipartite, "sor", damping) <= sor
    assert steps_of(bipartite, "chebyshev", damping) <= chebyshev
    assert steps_of(bipartite, "power", damping) >= power  # so the other two are what makes the difference


@pytest.mark.parametrize("implementation", ["numba", "scipy", "torch"])
@pytest.mark.parametrize("n_leaves", [2, 3, 10])
def test_an_error_that_every_second_step_hides(implementation: str, n_leaves: int) -> None:
    """Equal mass on the centre and a leaf: all of the error is where P^T is 0, and so are Chebyshev's odd steps."""
    centre, leaves = torch.zeros(n_leaves, dtype=torch.int64), 1 + torch.arange(n_leaves)
    graph = prepare(csr_from_edges(centre, leaves, n_leaves + 1))
    together = Ragged(torch.tensor([0, 1]), torch.tensor([0, 2]))
    for damping, tol, most in ((0.5, 1e-6, 18), (0.85, 1e-6, 40), (0.85, 1e-9, 56), (0.99, 1e-6, 180)):
        found = personalized_pagerank(
            graph, together, damping=damping, tol=tol, max_iter=most, solver="chebyshev", implementation=implementation
        )
        other = damping * 0.5 / n_leaves  # half of all mass is on the centre, before a step and after
        want = torch.tensor([0.5, (1 - damping) * 0.5 + other, *[other] * (n_leaves - 1)]).double()
        assert float((found[0].double() - want).abs().sum()) <= tol + 1e-7


def test_a_state_that_is_not_a_number_is_not_a_proof(bipartite: PageRankGraph) -> None:
    job = job_of(bipartite, (3,), 0.85, 1e-6, "sor")
    tile = job.new_tile(torch.float32, np.arange(1), torch.zeros(1, bipartite.n), 0)
    tile.x[5, 0] = np.nan  # type: ignore[attr-defined]
    rows = np.where(np.arange(tile.width) < 1, 0, -1)
    solved = solve_tile(tile, replace(job.plan, max_iter=30), rows, np.ones(tile.width))
    assert solved.unsolved.tolist() == [0]
