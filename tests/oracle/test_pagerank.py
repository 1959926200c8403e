"""Personalized PageRank against a dense float64 solve, networkx, and wrong versions that every check must catch.

p = (1-d) pi + d (P^T p + (mass on rows without weight) pi), P = row-normalised weights.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from ragged_lists import ragged

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.pagerank import personalized_pagerank, prepare
from gpu_rag.graph.pagerank.naive import naive_pagerank
from gpu_rag.types import CSR, Ragged

Ppr = Callable[..., torch.Tensor]
TOL = {0.5: 1e-6, 0.85: 1e-6, 0.99: 1e-4}


def to_csr(a: np.ndarray, weighted: bool) -> CSR:
    rows, cols = np.nonzero(a)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(a)))])
    weight = torch.tensor(a[rows, cols], dtype=torch.float32) if weighted else None
    return CSR(torch.tensor(indptr, dtype=torch.int64), torch.tensor(cols, dtype=torch.int32), weight)


def to_dense(csr: CSR) -> np.ndarray:
    a = np.zeros((csr.n, csr.n))
    rows = np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy()))
    a[rows, csr.indices.numpy()] = 1.0 if csr.weight is None else csr.weight.numpy()
    return a


def random_graph(n: int, n_edges: int, seed: int, *, undirected: bool, weighted: bool, empty: int = 3) -> np.ndarray:
    """Nodes n - empty .. n - 1 have no edge out; in a directed graph the first of them has edges in."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, n - empty, n_edges), rng.integers(0, n - empty, n_edges)
    a = np.zeros((n, n))
    a[src, dst] = rng.integers(1, 40, n_edges) / 8 if weighted else 1.0
    np.fill_diagonal(a, 0)
    if undirected:
        return np.maximum(a, a.T)
    a[: n // 4, n - empty] = 1.0
    return a


def star(leaves: int) -> np.ndarray:
    a = np.zeros((leaves + 1, leaves + 1))
    a[0, 1:] = a[1:, 0] = 1.0
    return a


def slow_pair(size: int = 6, bridge: float = 0.01) -> np.ndarray:
    """Two cliques, node i tied weakly to its twin: with the seeds on one clique the residual bound is nearly tight."""
    clique, ties = np.ones((size, size)) - np.eye(size), bridge * np.eye(size)
    return np.block([[clique, ties], [ties, clique]])


def two_weights() -> np.ndarray:
    """Every edge goes both ways, with another weight each: only the weights tell that it is directed."""
    pattern = random_graph(20, 40, 6, undirected=True, weighted=False)
    return pattern * np.random.default_rng(6).integers(1, 40, pattern.shape) / 8


def graphs() -> dict[str, CSR]:
    loops = random_graph(20, 50, 5, undirected=False, weighted=True)
    loops[[0, 3, 18], [0, 3, 18]] = 2.0
    return {
        "undirected": to_csr(random_graph(40, 90, 1, undirected=True, weighted=False), False),
        "undirected weighted": to_csr(random_graph(40, 90, 2, undirected=True, weighted=True), True),
        "directed": to_csr(random_graph(40, 90, 3, undirected=False, weighted=False), False),
        "directed weighted": to_csr(random_graph(40, 60, 4, undirected=False, weighted=True), True),
        "two weights": to_csr(two_weights(), True),
        "self-loops": to_csr(loops, True),
        "star": to_csr(star(12), False),
        "path": to_csr(np.eye(15, k=1) + np.eye(15, k=-1), False),
        "directed path": to_csr(np.eye(9, k=1), False),
        "no edges": to_csr(np.zeros((4, 4)), False),
        "slow pair": to_csr(slow_pair(), True),
    }


GRAPHS = graphs()
SYMMETRIC = {name: g for name, g in GRAPHS.items() if (to_dense(g) == to_dense(g).T).all()}
DIRECTED = {name: g for name, g in GRAPHS.items() if name not in SYMMETRIC}


def seed_rows(n: int, n_rows: int, seed: int = 0) -> tuple[list[list[int]], list[list[float]]]:
    """Row 0 sits on the last node (isolated or dangling), row 1 is empty, the others have 1-4 seeds."""
    rng = np.random.default_rng(seed)
    nodes = [rng.choice(n, int(rng.integers(1, 5)), replace=False).tolist() for _ in range(n_rows)]
    nodes[:2] = [[n - 1], []]
    return nodes[:n_rows], [(rng.integers(1, 9, len(r)) / 4).tolist() for r in nodes[:n_rows]]


def teleports(n: int, seeds: Ragged | None, weights: Ragged | None, prior: torch.Tensor | None) -> np.ndarray:
    """pi f64[B, N]: rows sum to 1, or to 0 where no seed is given; weights of a repeated seed add up."""
    if prior is not None:
        pi = prior.numpy().astype(np.float64)
    else:
        pi = np.zeros((seeds.batch, n))
        rows = np.repeat(np.arange(seeds.batch), np.diff(seeds.offsets.numpy()))
        np.add.at(pi, (rows, seeds.values.numpy()), 1.0 if weights is None else weights.values.numpy())
    total = pi.sum(1, keepdims=True)
    return pi / np.where(total > 0, total, 1)


def row_normalised(a: np.ndarray) -> np.ndarray:
    out = a.sum(1, keepdims=True)
    return a / np.where(out > 0, out, 1)


def solve_dense(a: np.ndarray, pi: np.ndarray, damping: float, transition: Any = row_normalised) -> np.ndarray:
    p, empty, eye = transition(a), a.sum(1) == 0, np.eye(len(a))
    return np.stack([np.linalg.solve(eye - damping * (p.T + np.outer(r, empty)), (1 - damping) * r) for r in pi])


def reference(csr: CSR, seeds: Any = None, weights: Any = None, *, prior: Any = None, damping: float = 0.85, **_: Any):
    """The answer itself, rounded once to float32."""
    return torch.tensor(solve_dense(to_dense(csr), teleports(csr.n, seeds, weights, prior), damping)).float()


# --- the checks ------------------------------------------------------------------------------------


def l1_errors(ppr: Ppr, csr: CSR, seeds: Ragged, weights: Ragged | None, damping: float, tol: float) -> np.ndarray:
    got = ppr(csr, seeds, weights, damping=damping, tol=tol, max_iter=2000)
    assert got.dtype == torch.float32 and tuple(got.shape) == (seeds.batch, csr.n)
    want = solve_dense(to_dense(csr), teleports(csr.n, seeds, weights, None), damping)
    return np.abs(got.numpy().astype(np.float64) - want).sum(1)


def check_dense(ppr: Ppr, cases: dict[str, CSR] = GRAPHS) -> None:
    """Every row within `tol` (L1) of the dense solve, for every graph and damping, weighted seeds and not."""
    for name, csr in cases.items():
        nodes, weights = seed_rows(csr.n, 5)
        for damping, tol in TOL.items():
            for w in (None, ragged(weights, torch.float32)) if damping < 0.9 else (None,):
                errors = l1_errors(ppr, csr, ragged(nodes), w, damping, tol)
                assert (errors <= tol).all(), f"{name}, damping {damping}: L1 errors {errors}"


def check_bound(ppr: Ppr, _: Any = None) -> None:
    """`tol` is a bound of the L1 error also where the residual says least about it."""
    csr = GRAPHS["slow pair"]
    for damping in (0.5, 0.85, 0.95):
        for tol in (1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5):
            errors = l1_errors(ppr, csr, ragged([list(range(6)), [0]]), None, damping, tol)
            assert (errors <= tol).all(), f"damping {damping}, tol {tol}: {errors}"


def check_mass(ppr: Ppr, cases: dict[str, CSR] = GRAPHS) -> None:
    """Rows sum to 1 (1e-5) and hold no negative mass; the row without seeds is exactly zero."""
    for name, csr in cases.items():
        nodes, _ = seed_rows(csr.n, 6)
        for damping in (0.5, 0.85):
            got = ppr(csr, ragged(nodes), damping=damping).double()
            assert torch.isfinite(got).all() and (got >= -1e-6).all(), name
            assert (got[1] == 0).all(), f"{name}: the empty seed row is not zero"
            total = got.sum(1)[[0, 2, 3, 4, 5]]
            assert (total - 1).abs().max() <= 1e-5, f"{name}: rows sum to {total}"


def check_batch(ppr: Ppr, cases: dict[str, CSR] = GRAPHS) -> None:
    """A row alone is BIT-equal to that row in any batch, whatever its neighbours and its place."""
    for csr in list(cases.values())[:2]:
        nodes, _ = seed_rows(csr.n, 200, seed=7)
        whole = ppr(csr, ragged(nodes))
        assert torch.equal(whole, ppr(csr, ragged(nodes))), "two runs differ"
        for i in (0, 1, 63, 64, 199):
            assert torch.equal(ppr(csr, ragged([nodes[i]]))[0], whole[i]), f"row {i} alone differs"
        for start, stop in ((0, 3), (5, 69), (1, 66)):
            assert torch.equal(ppr(csr, ragged(nodes[start:stop])), whole[start:stop]), f"rows {start}:{stop} differ"
        assert torch.equal(ppr(csr, ragged(nodes[::-1])), whole.flip(0)), "the order of a batch matters"


def check_relabel(ppr: Ppr, cases: dict[str, CSR] = GRAPHS) -> None:
    """New names for the nodes change nothing else."""
    for name, csr in cases.items():
        perm = np.random.default_rng(3).permutation(csr.n)  # node i is called perm[i]
        a = to_dense(csr)
        moved = np.zeros_like(a)
        moved[np.ix_(perm, perm)] = a
        nodes, _ = seed_rows(csr.n, 4)
        got = ppr(to_csr(moved, csr.weight is not None), ragged([[int(perm[x]) for x in r] for r in nodes]))
        error = (got[:, torch.tensor(perm)].double() - ppr(csr, ragged(nodes)).double()).abs().sum(1)
        assert (error <= 2e-6).all(), f"{name}: {error}"


def check_networkx(ppr: Ppr, cases: dict[str, CSR] = GRAPHS) -> None:
    for name, csr in cases.items():
        graph = nx.from_numpy_array(to_dense(csr), create_using=nx.DiGraph)
        nodes, weights = [[0, 2], [csr.n - 1, 1]], [[1.0, 3.0], [2.0, 2.0]]
        got = ppr(csr, ragged(nodes), ragged(weights, torch.float32), damping=0.85).numpy()
        for row, n, w in zip(got, nodes, weights):
            want = nx.pagerank(graph, 0.85, personalization=dict(zip(n, w)), tol=1e-9, max_iter=500)
            assert sum(abs(want[i] - row[i]) for i in range(csr.n)) <= 1e-5, name


def check_seeds(ppr: Ppr, cases: dict[str, CSR] = GRAPHS) -> None:
    """Seeds are normalised, add up when repeated, and mean the same as the dense prior they spell out."""
    csr = next(iter(cases.values()))
    base = ppr(csr, ragged([[1, 7], [3]]), ragged([[0.25, 0.75], [1.0]], torch.float32))
    same = {
        "scaled": (ragged([[1, 7], [3]]), ragged([[1.0, 3.0], [0.125]], torch.float32)),
        "reordered": (ragged([[7, 1], [3]]), ragged([[3.0, 1.0], [5.0]], torch.float32)),
        "repeated": (ragged([[7, 1, 7], [3, 3]]), ragged([[1.0, 1.0, 2.0], [1.0, 4.0]], torch.float32)),
        "int32": (ragged([[1, 7], [3]], torch.int32), ragged([[0.25, 0.75], [1.0]], torch.float32)),
    }
    for name, (seeds, weights) in same.items():
        assert (ppr(csr, seeds, weights) - base).abs().sum(1).max() <= 2e-6, name
    prior = torch.zeros(3, csr.n)
    prior[0, 1], prior[0, 7], prior[1, 3] = 2.0, 6.0, 0.5
    kept = prior.clone()
    got = ppr(csr, prior=prior)
    assert torch.equal(prior, kept), "the prior was written to"
    assert (got[:2] - base).abs().sum(1).max() <= 2e-6 and (got[2] == 0).all()
    ones = ppr(csr, ragged([[1, 7]]), ragged([[1.0, 1.0]], torch.float32))
    assert (ppr(csr, ragged([[1, 7]])) - ones).abs().sum() <= 2e-6


def check_honest_about_iterations(ppr: Ppr, _: Any = None) -> None:
    """Too few iterations for `tol` is an error, or not needed: never a silently worse answer."""
    csr, seeds = GRAPHS["undirected"], ragged([[0], [5, 6]])
    want = solve_dense(to_dense(csr), teleports(csr.n, seeds, None, None), 0.85)
    try:
        got = ppr(csr, seeds, max_iter=3)
    except GpuRagError:
        return
    assert np.abs(got.numpy() - want).sum(1).max() <= 1e-6


CHECKS = [check_dense, check_mass, check_batch, check_relabel, check_networkx, check_seeds]

# --- wrong versions --------------------------------------------------------------------------------


def wrong(transition: Any = row_normalised, change: Any = lambda p, pi: p, pi_of: Any = teleports) -> Ppr:
    """The reference with one part exchanged."""

    def ppr(csr: CSR, seeds: Any = None, weights: Any = None, *, prior: Any = None, damping: float = 0.85, **_: Any):
        pi = pi_of(csr.n, seeds, weights, prior)
        return torch.tensor(change(solve_dense(to_dense(csr), pi, damping, transition), pi)).float()

    return ppr


def column_normalised(a: np.ndarray) -> np.ndarray:
    return row_normalised(a.T).T


def transposed(a: np.ndarray) -> np.ndarray:
    return row_normalised(a.T)


def unweighted(a: np.ndarray) -> np.ndarray:
    return row_normalised((a > 0).astype(float))


def dangling_uniform(a: np.ndarray) -> np.ndarray:
    return row_normalised(np.where(a.sum(1, keepdims=True) > 0, a, 1.0))


def lost_mass(csr: CSR, seeds: Ragged, weights: Any = None, *, damping: float = 0.85, **_: Any) -> torch.Tensor:
    p, pi = row_normalised(to_dense(csr)), teleports(csr.n, seeds, weights, None)
    return torch.tensor(np.linalg.solve(np.eye(csr.n) - damping * p.T, (1 - damping) * pi.T).T).float()


def dangling_spread(csr: CSR, seeds: Ragged, weights: Any = None, *, damping: float = 0.85, **_: Any) -> torch.Tensor:
    p, pi = dangling_uniform(to_dense(csr)), teleports(csr.n, seeds, weights, None)
    return torch.tensor(np.linalg.solve(np.eye(csr.n) - damping * p.T, (1 - damping) * pi.T).T).float()


def not_normalised(n: int, seeds: Any, weights: Any, prior: Any) -> np.ndarray:
    pi = teleports(n, seeds, weights, prior)
    given = weights.values.numpy() if weights is not None else np.ones(0)
    return pi * (given.sum() if len(given) else 1)


def last_seed_wins(n: int, seeds: Any, weights: Any, prior: Any) -> np.ndarray:
    if prior is not None:
        return teleports(n, seeds, weights, prior)
    pi = np.zeros((seeds.batch, n))
    rows = np.repeat(np.arange(seeds.batch), np.diff(seeds.offsets.numpy()))
    pi[rows, seeds.values.numpy()] = 1.0 if weights is None else weights.values.numpy()
    return pi / np.maximum(pi.sum(1, keepdims=True), 1e-30)


def empty_is_uniform(n: int, seeds: Any, weights: Any, prior: Any) -> np.ndarray:
    pi = teleports(n, seeds, weights, prior)
    return np.where(pi.any(1, keepdims=True), pi, 1 / n)


def half_precision(p: np.ndarray, _: np.ndarray) -> np.ndarray:
    return p.astype(np.float16)


def uniform(p: np.ndarray, pi: np.ndarray) -> np.ndarray:
    return np.full_like(p, 1 / p.shape[1]) * pi.any(1, keepdims=True)


def power(factor: Any = lambda d: d / (1 - d), *, back: int = 0, together: bool = False, silent: bool = False) -> Ppr:
    """Power iteration until factor(d) |x' - x|_1 <= tol; returns the iterate `back` steps before that."""

    def run(p: np.ndarray, empty: np.ndarray, pi: np.ndarray, d: float, tol: float, max_iter: int) -> np.ndarray:
        xs = [pi]
        for _ in range(max_iter):
            x = xs[-1]
            xs.append((1 - d) * pi + d * (x @ p + (x @ empty)[:, None] * pi))
            if factor(d) * np.abs(xs[-1] - x).sum(1).max() <= tol:
                return xs[-1 - back]
        if silent:
            return xs[-1]
        raise GpuRagError("no convergence")

    def ppr(csr: CSR, seeds: Any = None, weights: Any = None, *, prior: Any = None, damping: float = 0.85, **o: Any):
        a, pi = to_dense(csr), teleports(csr.n, seeds, weights, prior)
        groups = [pi] if together else list(pi[:, None])
        part = functools.partial(run, row_normalised(a), a.sum(1) == 0)
        out = [part(g, damping, o.get("tol", 1e-6), o.get("max_iter", 200)) for g in groups]
        return torch.tensor(np.concatenate(out)).float()

    return ppr


WRONG = {
    "column-normalised": (wrong(column_normalised), check_dense),
    "P instead of its transpose": (wrong(transposed), check_dense),
    "edge weights ignored": (wrong(unweighted), check_dense),
    "uniform": (wrong(change=uniform), check_dense),
    "uniform against networkx": (wrong(change=uniform), check_networkx),
    "damping swapped": (lambda *a, damping=0.85, **o: reference(*a, damping=1 - damping, **o), check_dense),
    "dangling mass lost": (lost_mass, check_mass),
    "dangling mass spread uniformly": (dangling_spread, check_dense),
    "dangling mass spread uniformly, against networkx": (dangling_spread, check_networkx),
    "half precision state": (wrong(change=half_precision), check_dense),
    "depends on the node's number": (wrong(change=lambda p, _: p + 1e-4 * (np.arange(p.shape[1]) == 0)), check_relabel),
    "stops at the residual": (power(lambda d: 1.0), check_bound),
    "one iteration too few": (power(back=1), check_bound),
    "stops at max_iter without a word": (power(silent=True), check_honest_about_iterations),
    "converges as a batch": (power(together=True), check_batch),
    "teleport not normalised": (wrong(pi_of=not_normalised), check_seeds),
    "teleport not normalised, mass": (wrong(change=lambda p, _: 3 * p), check_mass),
    "the last weight of a repeated seed wins": (wrong(pi_of=last_seed_wins), check_seeds),
    "an empty seed row is uniform": (wrong(pi_of=empty_is_uniform), check_mass),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_versions_are_caught(name: str) -> None:
    fn, check = WRONG[name]
    with pytest.raises(AssertionError):
        check(fn)


@pytest.mark.parametrize("check", [*CHECKS, check_bound])
def test_the_checks_accept_the_dense_solve(check: Any) -> None:
    check(reference)


def test_the_naive_version_is_the_dense_solve() -> None:
    for csr in GRAPHS.values():
        seeds = ragged(seed_rows(csr.n, 4)[0])
        assert np.abs(naive_pagerank(csr, seeds).numpy() - reference(csr, seeds).numpy()).sum(1).max() <= 1e-7


@pytest.mark.parametrize("check", [check_bound, check_mass, check_networkx])
def test_the_checks_accept_power_iteration(check: Any) -> None:
    check(power())


# --- the real one ----------------------------------------------------------------------------------

no_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
IMPLEMENTATIONS = [pytest.param("numba", marks=no_numba), "scipy", "torch", "auto"]
RUNS = [("scipy", "power"), ("scipy", "chebyshev"), ("torch", "power"), ("torch", "chebyshev"), ("auto", "auto")]
RUNS += [pytest.param("numba", s, marks=no_numba) for s in ("power", "chebyshev", "sor")]


@pytest.mark.parametrize("check", [*CHECKS, check_bound, check_honest_about_iterations])
@pytest.mark.parametrize(("implementation", "solver"), RUNS)
def test_personalized_pagerank(implementation: str, solver: str, check: Any) -> None:
    ppr = functools.partial(personalized_pagerank, implementation=implementation, solver=solver)
    check(ppr, SYMMETRIC if solver == "chebyshev" else GRAPHS)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_chebyshev_on_a_directed_graph_is_right_or_refused(implementation: str) -> None:
    ppr = functools.partial(personalized_pagerank, implementation=implementation, solver="chebyshev")
    for name, csr in DIRECTED.items():
        try:
            check_dense(ppr, {name: csr})
        except GpuRagError:
            continue


@pytest.mark.parametrize("solver", ["power", "auto"])
def test_a_prepared_graph_gives_the_same_bits(solver: str) -> None:
    for csr in GRAPHS.values():
        seeds = ragged(seed_rows(csr.n, 5)[0])
        got = personalized_pagerank(prepare(csr), seeds, solver=solver)
        assert torch.equal(got, personalized_pagerank(csr, seeds, solver=solver))


def test_threads_change_no_bit_and_blocks_keep_the_bound() -> None:
    for csr in (GRAPHS["directed weighted"], GRAPHS["undirected"]):
        seeds = ragged(seed_rows(csr.n, 150)[0])
        assert torch.equal(personalized_pagerank(csr, seeds), personalized_pagerank(csr, seeds, threads=2))
        check_dense(functools.partial(personalized_pagerank, threads=2, block=16), {"one graph": csr})
