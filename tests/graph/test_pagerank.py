"""Personalized PageRank against a dense solve, by every implementation and solver; wrong versions are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged

from gpu_rag.errors import BadInput, GpuRagError, UsageError
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.nearest import topk_rows
from gpu_rag.graph.pagerank import pagerank_topk, personalized_pagerank, pick_implementation, prepare
from gpu_rag.types import CSR, Ragged

WAYS = [
    ("numba", "sor"), ("numba", "chebyshev"), ("numba", "power"), ("scipy", "chebyshev"), ("scipy", "power"),
    ("torch", "chebyshev"), ("torch", "power"),
]  # fmt: skip
Solve = Callable[..., torch.Tensor]
ROUNDING = 6e-8  # of the result to f32


def dense_pagerank(csr: CSR, pi: np.ndarray, damping: float) -> np.ndarray:
    """The definition, solved: p = (1-d) pi + d (P^T p + lost(p) pi); rows of `pi` are questions."""
    n = csr.n
    weight = np.ones(csr.m) if csr.weight is None else csr.weight.double().numpy()
    a = np.zeros((n, n))
    a[np.repeat(np.arange(n), np.diff(csr.indptr.numpy())), csr.indices.numpy()] = weight
    total = a.sum(1)
    lost = total == 0
    p = a / np.where(lost, 1, total)[:, None]
    rows = []
    for restart in pi:
        m = np.eye(n) - damping * p.T - damping * np.outer(restart, lost)
        rows.append(np.linalg.solve(m, (1 - damping) * restart))
    return np.array(rows).reshape(len(pi), n)


def restart(n: int, lists: list[list[int]]) -> np.ndarray:
    pi = np.zeros((len(lists), n))
    for row, nodes in zip(pi, lists, strict=True):
        np.add.at(row, nodes, 1 / max(len(nodes), 1))
    return pi


def random_graph(n: int, m: int, seed: int, *, undirected: bool, weighted: bool) -> CSR:
    r = np.random.default_rng(seed)
    hubs = (n * r.random((2, m)) ** 3).astype(np.int64)  # cubed: a few nodes take most edges
    weight = torch.from_numpy(r.random(m).astype(np.float32) + 0.01) if weighted else None
    return csr_from_edges(torch.from_numpy(hubs[0]), torch.from_numpy(hubs[1]), n, weight, undirected=undirected)


def check_against_dense(solve: Solve) -> None:
    """The checks that a PageRank must pass; a wrong one fails them."""
    for undirected in (True, False):
        for weighted in (False, True):
            csr = random_graph(60, 90, 3, undirected=undirected, weighted=weighted)
            lists = [[0], [1, 5, 9], [59, 58, 57], [7, 7, 8], [40]]
            for damping in (0.5, 0.85):
                p = solve(csr, ragged(lists), damping=damping).numpy()
                gap = np.abs(p - dense_pagerank(csr, restart(60, lists), damping)).sum(1).max()
                assert gap <= 1e-6 + ROUNDING, f"L1 error {gap} at damping {damping}"
                assert np.abs(p.sum(1) - 1).max() <= 1e-5


def by(implementation: str, solver: str) -> Solve:
    def solve(csr: CSR, seeds: Ragged, **options: Any) -> torch.Tensor:
        kind = solver if solver != "chebyshev" or prepare(csr).symmetric else "power"
        return personalized_pagerank(csr, seeds, implementation=implementation, solver=kind, **options)

    return solve


@pytest.mark.parametrize(("implementation", "solver"), WAYS)
def test_is_the_dense_solution(implementation: str, solver: str) -> None:
    check_against_dense(by(implementation, solver))


def uniform(csr: CSR, seeds: Ragged, **_: object) -> torch.Tensor:
    return torch.full((seeds.batch, csr.n), 1 / csr.n)


def too_few_steps(csr: CSR, seeds: Ragged, *, damping: float) -> torch.Tensor:
    return personalized_pagerank(csr, seeds, damping=damping, tol=1e-4)


def without_return(csr: CSR, seeds: Ragged, *, damping: float) -> torch.Tensor:
    """Mass of dangling nodes is lost, as if the sum did not matter."""
    p = personalized_pagerank(csr, seeds, damping=damping)
    lost = prepare(csr).dangling
    return p / (1 + damping * p[:, lost].sum(1, keepdim=True))


def against_the_edges(csr: CSR, seeds: Ragged, *, damping: float) -> torch.Tensor:
    return personalized_pagerank(prepare(csr).pull, seeds, damping=damping)


def neighbours_lane(csr: CSR, seeds: Ragged, *, damping: float) -> torch.Tensor:
    return personalized_pagerank(csr, seeds, damping=damping).roll(1, 0)


@pytest.mark.parametrize("wrong", [uniform, too_few_steps, without_return, against_the_edges, neighbours_lane])
def test_checks_catch(wrong: Solve) -> None:
    with pytest.raises(AssertionError):
        check_against_dense(wrong)


@pytest.mark.parametrize(("implementation", "solver"), WAYS)
def test_by_hand(implementation: str, solver: str) -> None:
    """Path 0 - 1 - 2 and node 3 alone, d = 1/2, solved on paper: from node 0 it is 7/12, 4/12, 1/12."""
    csr = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 4)
    seeds = ragged([[0], [3], [], [0, 3]])
    p = personalized_pagerank(csr, seeds, damping=0.5, implementation=implementation, solver=solver)
    # [0, 3]: q = (7/24, 4/24, 1/24, 1/4) has the sum 3/4; the lost quarter returns to both seeds
    expected = [[7 / 12, 4 / 12, 1 / 12, 0], [0, 0, 0, 1], [0, 0, 0, 0], [7 / 18, 4 / 18, 1 / 18, 1 / 3]]
    assert np.abs(p.numpy() - np.array(expected)).sum(1).max() < 1e-6


@pytest.mark.parametrize(("implementation", "solver"), WAYS)
def test_a_seed_on_an_isolated_node_and_a_tolerance_for_f64(implementation: str, solver: str) -> None:
    csr = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 4)
    p = personalized_pagerank(
        csr, ragged([[0, 3]]), damping=0.5, tol=1e-9, implementation=implementation, solver=solver
    )
    assert p[0].tolist() == pytest.approx([7 / 18, 4 / 18, 1 / 18, 1 / 3], abs=1e-7)


@st.composite
def cases(draw: st.DrawFn) -> tuple[CSR, list[list[int]], float]:
    n = draw(st.integers(1, 24))
    nodes = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(nodes, nodes), max_size=60))
    weight = draw(st.none() | st.lists(st.floats(0, 100, width=32), min_size=len(edges), max_size=len(edges)))
    ends = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    csr = csr_from_edges(
        ends[:, 0], ends[:, 1], n, None if weight is None else torch.tensor(weight, dtype=torch.float32),
        undirected=draw(st.booleans()), drop_self_loops=draw(st.booleans()),
    )  # fmt: skip
    lists = draw(st.lists(st.lists(nodes, max_size=4), min_size=1, max_size=5))
    return csr, lists, draw(st.sampled_from([0.0, 0.3, 0.5, 0.85, 0.93]))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(cases(), st.sampled_from([1e-3, 1e-6, 1e-8]))
def test_error_is_within_the_tolerance(case: tuple[CSR, list[list[int]], float], tol: float) -> None:
    csr, lists, damping = case
    p = personalized_pagerank(csr, ragged(lists), damping=damping, tol=tol, max_iter=1000).double().numpy()
    exact = dense_pagerank(csr, restart(csr.n, lists), damping)
    assert np.abs(p - exact).sum(1).max() <= tol + ROUNDING
    assert np.abs(p.sum(1) - [bool(x) for x in lists]).max() <= 1e-5
    assert p.min() >= 0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(cases(), st.integers(0, 2**31))
def test_relabelled_nodes_give_the_relabelled_result(case: tuple[CSR, list[list[int]], float], seed: int) -> None:
    csr, lists, damping = case
    name = torch.from_numpy(np.random.default_rng(seed).permutation(csr.n))
    rows = torch.repeat_interleave(torch.arange(csr.n), csr.indptr.diff())
    again = csr_from_edges(
        name[rows], name[csr.indices.long()], csr.n, csr.weight, undirected=False, drop_self_loops=False
    )
    renamed = [[int(name[v]) for v in x] for x in lists]
    p = personalized_pagerank(csr, ragged(lists), damping=damping)
    q = personalized_pagerank(again, ragged(renamed), damping=damping)
    assert (p - q[:, name]).abs().sum(1).max() <= 2.2e-6


def test_the_mean_of_seeds_is_the_mean_of_their_rows() -> None:
    """Linear in pi on a graph without dangling nodes."""
    csr = random_graph(50, 300, 1, undirected=True, weighted=False)
    seeds = [v for v in range(50) if csr.indptr[v] < csr.indptr[v + 1]][:4]
    alone = personalized_pagerank(csr, ragged([[v] for v in seeds]))
    both = personalized_pagerank(csr, ragged([seeds]))
    assert (alone.mean(0) - both[0]).abs().sum() < 3e-6


@pytest.mark.parametrize("implementation", ["numba", "scipy", "torch"])
def test_prior_and_weights_say_the_same(implementation: str) -> None:
    csr = random_graph(40, 100, 5, undirected=True, weighted=True)
    seeds, weights = ragged([[3, 4], [], [9]]), Ragged(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 2, 2, 3]))
    prior = torch.zeros(3, 40)
    prior[0, 3], prior[0, 4], prior[2, 9] = 0.5, 1.5, 2.0
    p = personalized_pagerank(csr, seeds, weights, implementation=implementation)
    q = personalized_pagerank(csr, prior=prior, implementation=implementation)
    assert (p - q).abs().sum(1).max() < 1e-6
    assert not p[1].any()
    full = torch.rand(2, 40, generator=torch.Generator().manual_seed(0))
    exact = dense_pagerank(csr, (full.double() / full.double().sum(1, keepdim=True)).numpy(), 0.85)
    assert (
        np.abs(personalized_pagerank(csr, prior=full, implementation=implementation).numpy() - exact).sum(1).max()
        < 1.1e-6
    )


@pytest.mark.parametrize("implementation", ["numba", "scipy", "torch"])
def test_topk_is_the_best_of_the_range(implementation: str) -> None:
    csr = random_graph(80, 200, 8, undirected=True, weighted=False)
    seeds = ragged([[i, 2 * i] for i in range(38)] + [[]])
    whole = personalized_pagerank(csr, seeds, implementation=implementation)
    found = pagerank_topk(csr, seeds, k=7, ids=(21, 70), implementation=implementation)
    best = topk_rows(whole[:-1, 21:70].contiguous(), 7, lo=21)
    assert torch.equal(found.ids[:-1], best.ids) and torch.equal(found.scores[:-1], best.scores)
    assert (found.ids[-1] == -1).all() and (found.scores[-1] == -torch.inf).all()
    assert pagerank_topk(csr, seeds, k=3, ids=(5, 5)).ids.tolist() == [[-1] * 3] * 39


def test_nothing_in_nothing_out() -> None:
    none = csr_from_edges(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 0)
    for implementation in ("numba", "scipy", "torch"):
        assert personalized_pagerank(none, ragged([[], []]), implementation=implementation).shape == (2, 0)
    csr = csr_from_edges(torch.tensor([0]), torch.tensor([1]), 2)
    assert personalized_pagerank(csr, ragged([])).shape == (0, 2)
    assert personalized_pagerank(none, prior=torch.zeros(2, 0)).shape == (2, 0)


def test_a_large_hub_and_strong_damping_stay_within_the_tolerance() -> None:
    """Rounding of f32 alone would miss these tolerances: fine steps and the f64 state must take over."""
    n = 4000
    leaves = torch.arange(1, n)
    csr = csr_from_edges(
        torch.cat([torch.zeros(n - 1, dtype=torch.int64), leaves[:-1]]), torch.cat([leaves, leaves[1:]]), n
    )
    seeds = ragged([[0], [17, 3000]])
    for damping in (0.85, 0.99):
        exact = dense_by_iteration(csr, restart(n, [[0], [17, 3000]]), damping)
        for solver in ("sor", "chebyshev"):
            p = personalized_pagerank(csr, seeds, damping=damping, solver=solver, max_iter=2000).double().numpy()
            assert np.abs(p - exact).sum(1).max() <= 1e-6 + ROUNDING


def dense_by_iteration(csr: CSR, pi: np.ndarray, damping: float) -> np.ndarray:
    from scipy.sparse import csr_matrix

    a = csr_matrix((np.ones(csr.m), csr.indices.numpy(), csr.indptr.numpy()), shape=(csr.n, csr.n))
    step = a.T.tocsr().multiply(1 / np.diff(csr.indptr.numpy())[None, :]).tocsr()
    p = pi.T.copy()
    for _ in range(int(np.log(1e-12) / np.log(damping))):
        p = (1 - damping) * pi.T + damping * (step @ p)
    return p.T


def test_weights_beyond_the_range_of_f32_states() -> None:
    weight = torch.tensor([1e-42, 3e-42, 1e-42, 2.0, 5.0, 1e38])
    csr = csr_from_edges(torch.tensor([0, 1, 0, 3, 4, 5]), torch.tensor([1, 2, 2, 4, 5, 6]), 7, weight)
    for implementation in ("numba", "scipy", "torch"):
        p = personalized_pagerank(csr, ragged([[0], [1, 3]]), implementation=implementation).numpy()
        assert np.abs(p - dense_pagerank(csr, restart(7, [[0], [1, 3]]), 0.85)).sum(1).max() <= 1e-6 + ROUNDING


def test_too_few_steps_are_an_error_not_a_result() -> None:
    csr = random_graph(200, 800, 2, undirected=True, weighted=False)
    with pytest.raises(GpuRagError, match="did not converge.*raise max_iter"):
        personalized_pagerank(csr, ragged([[0]]), max_iter=3)


PATH = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 4)
ONE = ragged([[0]])


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("one of the seeds is no node", lambda: personalized_pagerank(PATH, ragged([[4]]))),
        ("one of the seeds is no node", lambda: personalized_pagerank(PATH, ragged([[-1]]))),
        (
            "seeds are no integers",
            lambda: personalized_pagerank(PATH, Ragged(torch.tensor([0.0]), torch.tensor([0, 1]))),
        ),
        ("offsets of seeds", lambda: personalized_pagerank(PATH, Ragged(torch.tensor([0]), torch.tensor([0, 2])))),
        ("rows of weights", lambda: personalized_pagerank(PATH, ONE, Ragged(torch.ones(1), torch.tensor([0, 0, 1])))),
        ("seed weight is neg", lambda: personalized_pagerank(PATH, ONE, Ragged(-torch.ones(1), torch.tensor([0, 1])))),
        ("sum to zero", lambda: personalized_pagerank(PATH, ONE, Ragged(torch.zeros(1), torch.tensor([0, 1])))),
        ("not finite", lambda: personalized_pagerank(PATH, ONE, Ragged(torch.tensor([np.nan]), torch.tensor([0, 1])))),
        ("seeds or a prior", lambda: personalized_pagerank(PATH)),
        ("seeds or a prior", lambda: personalized_pagerank(PATH, ONE, prior=torch.ones(1, 4))),
        ("prior does not fit", lambda: personalized_pagerank(PATH, prior=torch.ones(1, 3))),
        ("prior has a negative", lambda: personalized_pagerank(PATH, prior=-torch.ones(1, 4))),
        ("prior has a negative", lambda: personalized_pagerank(PATH, prior=torch.full((1, 4), torch.inf))),
        ("damping", lambda: personalized_pagerank(PATH, ONE, damping=1.0)),
        ("damping", lambda: personalized_pagerank(PATH, ONE, damping=float("nan"))),
        ("tol", lambda: personalized_pagerank(PATH, ONE, tol=0.0)),
        ("threads", lambda: personalized_pagerank(PATH, ONE, threads=0)),
        ("no such solver", lambda: personalized_pagerank(PATH, ONE, solver="push")),
        ("no such PageRank", lambda: pick_implementation(PATH, "cupy")),
        ("sor works row by row", lambda: personalized_pagerank(PATH, ONE, solver="sor", implementation="torch")),
        ("range of nodes", lambda: pagerank_topk(PATH, ONE, k=1, ids=(2, 5))),
        ("column index", lambda: personalized_pagerank(CSR(PATH.indptr, PATH.indices + 2), ONE)),
    ],
)
def test_bad_input_says_what(match: str, call: Callable[[], object]) -> None:
    with pytest.raises((BadInput, UsageError), match=match):
        call()


def test_a_directed_graph_refuses_chebyshev() -> None:
    with pytest.raises(BadInput, match="symmetric"):
        personalized_pagerank(random_graph(9, 20, 0, undirected=False, weighted=False), ONE, solver="chebyshev")


def test_the_choice_is_said() -> None:
    assert pick_implementation(PATH) == "numba"
    assert pick_implementation(prepare(PATH), "scipy") == "scipy"
