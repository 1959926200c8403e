"""Personalized PageRank against a dense float64 solve, networkx, and wrong versions that every check must catch."""

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from dense_pagerank import csr_of, dense, pagerank_of, row_normalised, slow_pair, solve_dense, star, teleports
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_pagerank import naive_pagerank
from ragged_lists import ragged
from refusals import caught, refusals

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import Restarts, personalized_pagerank, prepare
from gpu_rag.types import CSR, Ragged

Ppr = Callable[..., torch.Tensor]
TOL = {0.5: 1e-6, 0.85: 1e-6, 0.99: 1e-4}
ROUNDING = 6e-8  # of the result to f32
PATH = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 4)  # 0 - 1 - 2, and 3 alone


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


def two_weights() -> np.ndarray:
    """Every edge goes both ways, with another weight each: only the weights tell that it is directed."""
    pattern = random_graph(20, 40, 6, undirected=True, weighted=False)
    return pattern * np.random.default_rng(6).integers(1, 40, pattern.shape) / 8


def graphs() -> dict[str, CSR]:
    loops = random_graph(20, 50, 5, undirected=False, weighted=True)
    loops[[0, 3, 18], [0, 3, 18]] = 2.0
    return {
        "undirected": csr_of(random_graph(40, 90, 1, undirected=True, weighted=False), False),
        "undirected weighted": csr_of(random_graph(40, 90, 2, undirected=True, weighted=True), True),
        "directed": csr_of(random_graph(40, 90, 3, undirected=False, weighted=False), False),
        "directed weighted": csr_of(random_graph(40, 60, 4, undirected=False, weighted=True), True),
        "two weights": csr_of(two_weights(), True),
        "self-loops": csr_of(loops, True),
        "star": csr_of(star(12), False),
        "path": csr_of(np.eye(15, k=1) + np.eye(15, k=-1), False),
        "directed path": csr_of(np.eye(9, k=1), False),
        "no edges": csr_of(np.zeros((4, 4)), False),
        "slow pair": csr_of(slow_pair(), True),
    }


GRAPHS = graphs()


def seed_rows(n: int, n_rows: int, seed: int = 0) -> tuple[list[list[int]], list[list[float]]]:
    """Row 0 sits on the last node (isolated or dangling), row 1 is empty, the others have 1-4 seeds."""
    rng = np.random.default_rng(seed)
    nodes = [rng.choice(n, int(rng.integers(1, 5)), replace=False).tolist() for _ in range(n_rows)]
    nodes[:2] = [[n - 1], []]
    return nodes[:n_rows], [(rng.integers(1, 9, len(r)) / 4).tolist() for r in nodes[:n_rows]]


def reference(csr: CSR, seeds: Any = None, weights: Any = None, *, prior: Any = None, damping: float = 0.85, **_: Any):
    """The answer itself, rounded once to float32."""
    return torch.tensor(solve_dense(dense(csr), teleports(csr.n, seeds, weights, prior), damping)).float()


def l1_errors(ppr: Ppr, csr: CSR, seeds: Ragged, weights: Ragged | None, damping: float, tol: float) -> np.ndarray:
    got = ppr(csr, seeds, weights, damping=damping, tol=tol, max_iter=2000)
    assert got.dtype == torch.float32 and tuple(got.shape) == (seeds.batch, csr.n)
    want = solve_dense(dense(csr), teleports(csr.n, seeds, weights, None), damping)
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


def check_networkx(ppr: Ppr, cases: dict[str, CSR] = GRAPHS) -> None:
    for name, csr in cases.items():
        graph = nx.from_numpy_array(dense(csr), create_using=nx.DiGraph)
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
    full = torch.rand(2, csr.n, generator=torch.Generator().manual_seed(0))
    want = solve_dense(dense(csr), teleports(csr.n, None, prior=full), 0.85)
    assert np.abs(ppr(csr, prior=full).double().numpy() - want).sum(1).max() <= 1.1e-6
    ones = ppr(csr, ragged([[1, 7]]), ragged([[1.0, 1.0]], torch.float32))
    assert (ppr(csr, ragged([[1, 7]])) - ones).abs().sum() <= 2e-6


def check_honest_about_iterations(ppr: Ppr, _: Any = None) -> None:
    """Too few iterations for `tol` is an error, or not needed: never a silently worse answer."""
    csr, seeds = GRAPHS["undirected"], ragged([[0], [5, 6]])
    want = solve_dense(dense(csr), teleports(csr.n, seeds, None, None), 0.85)
    try:
        got = ppr(csr, seeds, max_iter=3)
    except GpuRagError:
        return
    assert np.abs(got.numpy() - want).sum(1).max() <= 1e-6


CHECKS = [check_dense, check_mass, check_networkx, check_seeds]


def wrong(transition: Any = row_normalised, change: Any = lambda p, pi: p, pi_of: Any = teleports) -> Ppr:
    """The reference with one part exchanged."""

    def ppr(csr: CSR, seeds: Any = None, weights: Any = None, *, prior: Any = None, damping: float = 0.85, **_: Any):
        pi = pi_of(csr.n, seeds, weights, prior)
        return torch.tensor(change(solve_dense(dense(csr), pi, damping, transition), pi)).float()

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
    p, pi = row_normalised(dense(csr)), teleports(csr.n, seeds, weights, None)
    return torch.tensor(np.linalg.solve(np.eye(csr.n) - damping * p.T, (1 - damping) * pi.T).T).float()


def dangling_spread(csr: CSR, seeds: Ragged, weights: Any = None, *, damping: float = 0.85, **_: Any) -> torch.Tensor:
    p, pi = dangling_uniform(dense(csr)), teleports(csr.n, seeds, weights, None)
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


def power(factor: Any = lambda d: d / (1 - d), *, back: int = 0, silent: bool = False) -> Ppr:
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
        a, pi = dense(csr), teleports(csr.n, seeds, weights, prior)
        part = functools.partial(run, row_normalised(a), a.sum(1) == 0)
        out = [part(row[None], damping, o.get("tol", 1e-6), o.get("max_iter", 200)) for row in pi]
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
    "depends on the node's number": (wrong(change=lambda p, _: p + 1e-4 * (np.arange(p.shape[1]) == 0)), check_dense),
    "stops at the residual": (power(lambda d: 1.0), check_bound),
    "one iteration too few": (power(back=1), check_bound),
    "stops at max_iter without a word": (power(silent=True), check_honest_about_iterations),
    "teleport not normalised": (wrong(pi_of=not_normalised), check_seeds),
    "teleport not normalised, mass": (wrong(change=lambda p, _: 3 * p), check_mass),
    "the last weight of a repeated seed wins": (wrong(pi_of=last_seed_wins), check_seeds),
    "an empty seed row is uniform": (wrong(pi_of=empty_is_uniform), check_mass),
}


test_wrong_versions_are_caught = caught(WRONG)


no_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
IMPLEMENTATIONS = [pytest.param("numba", marks=no_numba), "torch", "auto"]


@pytest.mark.parametrize("check", [*CHECKS, check_bound, check_honest_about_iterations])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_personalized_pagerank(implementation: str, check: Any) -> None:
    check(functools.partial(personalized_pagerank, implementation=implementation), GRAPHS)


def test_a_prepared_graph_gives_the_same_bits() -> None:
    for csr in GRAPHS.values():
        seeds = ragged(seed_rows(csr.n, 5)[0])
        assert torch.equal(personalized_pagerank(prepare(csr), seeds), personalized_pagerank(csr, seeds))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_seed_on_an_isolated_node_and_a_tolerance_for_f64(implementation: str) -> None:
    """Path 0 - 1 - 2 and node 3 alone, d = 1/2, solved on paper: from node 0 it is 7/12, 4/12, 1/12. Of [0, 3] q is
    (7/24, 4/24, 1/24, 1/4), of sum 3/4; the lost quarter returns to both seeds."""
    seeds = ragged([[0], [3], [], [0, 3]])
    found = personalized_pagerank(PATH, seeds, damping=0.5, tol=1e-9, implementation=implementation)
    expected = [[7 / 12, 4 / 12, 1 / 12, 0], [0, 0, 0, 1], [0, 0, 0, 0], [7 / 18, 4 / 18, 1 / 18, 1 / 3]]
    assert np.abs(found.numpy() - np.array(expected)).sum(1).max() < 1e-7


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
    assert np.abs(p - pagerank_of(csr, lists, damping)).sum(1).max() <= tol + ROUNDING
    assert np.abs(p.sum(1) - [bool(x) for x in lists]).max() <= 1e-5
    assert p.min() >= 0


def by_document(csr: CSR, seeds: Ragged, first: int, **options: Any) -> torch.Tensor:
    """PageRank with the nodes before `first` in the order of their first document, as for a large graph."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_rag.graph.pagerank.numba_path.REORDERED", 1)
        graph = replace(prepare(csr), documents_from=first)
        return personalized_pagerank(graph, seeds, implementation="numba", threads=first % 3 + 1, **options)


def check_order(ppr: Ppr, case: tuple[CSR, list[list[int]], float], first: int, lo: int) -> None:
    """Within the tolerance of the dense solve; a range of nodes, and a row alone, have the bits of the whole."""
    csr, lists, damping = case
    p = ppr(csr, ragged(lists), first, damping=damping, max_iter=1000)
    assert np.abs(p.double().numpy() - pagerank_of(csr, lists, damping)).sum(1).max() <= 1e-6 + ROUNDING
    part = ppr(csr, ragged(lists), first, damping=damping, max_iter=1000, ids=(lo, csr.n))
    assert torch.equal(part, p[:, lo:])
    assert torch.equal(ppr(csr, ragged(lists[-1:]), first, damping=damping, max_iter=1000), p[-1:])


@no_numba
@settings(max_examples=50, deadline=None, derandomize=True)
@given(cases(), st.data())
def test_rows_by_document(case: tuple[CSR, list[list[int]], float], data: st.DataObject) -> None:
    nodes = st.integers(0, case[0].n)
    check_order(by_document, case, data.draw(nodes), data.draw(nodes))


@no_numba
def test_rows_by_document_are_in_that_order_and_their_check_finds_a_result_in_theirs() -> None:
    """Nodes 0..3 are entities, 4..6 documents: 0 is in document 6, 1 in 4 and 5, 2 in none, 3 in 4."""
    from gpu_rag_kernels.pagerank.numba import order_by_document

    ends = torch.tensor([[0, 6], [1, 5], [1, 4], [3, 4], [2, 0]]).T
    csr = csr_from_edges(ends[0], ends[1], 7)
    order = order_by_document(csr.indptr.numpy(), csr.indices.numpy(), 4)
    assert order.tolist() == [1, 3, 0, 2]
    rows = torch.tensor([*order.tolist(), 4, 5, 6])

    def unmapped(*given: Any, ids: tuple[int, int] = (0, 7), **options: Any) -> torch.Tensor:
        return by_document(*given, **options)[:, rows][:, ids[0] : ids[1]]

    case = csr, [[0], [5, 2]], 0.85
    check_order(by_document, case, 4, 2)
    with pytest.raises(AssertionError):
        check_order(unmapped, case, 4, 2)


@no_numba
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(4, 24), st.booleans(), st.sampled_from([0.3, 0.85, 0.99]))
def test_solved_rows_leave_the_schur_complement(seed: int, n: int, weighted: bool, damping: float) -> None:
    """S = M_cc - M_cf M_ff^-1 M_fc of M = D - d A, f the solved rows; no two of them are neighbours."""
    from gpu_rag.graph.pagerank.numba_path import Rows

    a, first = random_graph(n, 2 * n, seed, undirected=True, weighted=weighted), n - seed % 3 - 1
    graph = replace(prepare(csr_of(a, weighted)), documents_from=first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_rag.graph.pagerank.numba_path.REORDERED", 1)
        rows = Rows(graph, damping, seed % 3 + 1)
    starts, ends, columns, weights = rows.entries
    got = np.diag(rows.diagonal[: rows.n_swept])
    for i in range(rows.n_swept):
        place = slice(starts[i], ends[i])
        got[i, columns[place]] -= damping * weights[place]  # no column twice
        assert len(set(columns[place])) == ends[i] - starts[i]
    m = np.diag(graph.scale.numpy()) - damping * a
    c, f = rows.node[: rows.n_swept], rows.node[rows.n_swept :]
    near = (a > 0).sum(1)
    assert (f < first).all() and (near[f] <= 2).all() and not a[np.ix_(f, f)].any()
    assert len(f) or not ((near[:first] > 0) & (near[:first] <= 2)).any()
    want = m[np.ix_(c, c)] - m[np.ix_(c, f)] @ np.linalg.solve(m[np.ix_(f, f)], m[np.ix_(f, c)])
    assert np.allclose(got, want, rtol=1e-12, atol=1e-12)


# Documents 3 and 4. Of the entities, 0 has the neighbours 1 and 3, 1 also 4, and 2 only 4: 0 and 2 are solved for.
SOLVED = csr_from_edges(*torch.tensor([[0, 1], [0, 3], [1, 3], [1, 4], [2, 4]]).T, 5)


@no_numba
@pytest.mark.parametrize("wrong", ["", "what a solved seed passes on", "the part of its own"])
def test_seeds_at_solved_rows_and_their_results(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_rag.graph.pagerank import numba_path

    rows = numba_path.Rows
    case = SOLVED, [[0], [2], [1, 3], [0, 2, 4]], 0.85
    if wrong == "what a solved seed passes on":
        monkeypatch.setattr(numba_path.NumbaTile, "_pass_on", lambda *_: None)
    if wrong == "the part of its own":

        def without(graph: Any, damping: float, threads: int) -> Any:
            made = rows(graph, damping, threads)
            made.own, made.diagonal = 0 * made.own, made.diagonal + made.own
            return made

        monkeypatch.setattr(numba_path, "Rows", without)
    if not wrong:
        check_order(by_document, case, 3, 1)
        return
    with pytest.raises((AssertionError, GpuRagError)):
        check_order(by_document, case, 3, 1)


@no_numba
@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(8, 30), st.sampled_from([0.5, 0.85]))
def test_a_restart_everywhere_in_a_large_graph(seed: int, n: int, damping: float) -> None:
    """Within the tolerance of the dense solve, from its own start; a row alone has the bits of its batch. Question 3
    restarts at one entity and one document."""
    csr, first = csr_of(random_graph(n, 2 * n, seed, undirected=True, weighted=True), True), n - 5
    rng = np.random.default_rng(seed)
    nodes, mass = np.sort(rng.integers(0, first, (4, 1)), 1), rng.random((4, 1))
    last = rng.random((4, 5))
    last[2], mass[2], last[3, 1:] = 0, 0, 0  # question 2 restarts nowhere

    def restarts(part: slice) -> Restarts:
        return Restarts(
            torch.from_numpy(nodes[part]), *(torch.from_numpy(x[part].astype(np.float32)) for x in (mass, last))
        )

    def ranks(part: slice) -> torch.Tensor:
        graph = replace(prepare(csr), documents_from=first)
        return personalized_pagerank(graph, prior=restarts(part), damping=damping, implementation="numba")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_rag.graph.pagerank.numba_path.REORDERED", 1)
        p, alone = ranks(slice(4)), [ranks(slice(i, i + 1)) for i in range(4)]
    prior = np.zeros((4, n), np.float32)
    prior[:, first:] = last
    prior[np.arange(4), nodes[:, 0]] += mass[:, 0].astype(np.float32)
    want = solve_dense(dense(csr), teleports(n, None, None, torch.from_numpy(prior)), damping)
    assert np.abs(p.double().numpy() - want).sum(1).max() <= 1e-6 + ROUNDING
    assert torch.equal(torch.cat(alone), p) and not p[2].any()


@no_numba
def test_what_a_walk_does_not_reach_in_a_large_graph_has_no_rank() -> None:
    """Entities 0, 1 and documents 6, 7 are apart from entities 2..5 and documents 8, 9."""
    ends = torch.tensor(
        [[0, 6], [0, 7], [1, 6], [1, 7], [2, 8], [2, 9], [3, 8], [3, 9], [4, 8], [5, 4], [5, 9], [5, 3]]
    ).T
    last = torch.tensor([[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]])
    prior = Restarts(torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1), last)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_rag.graph.pagerank.numba_path.REORDERED", 1)
        graph = replace(prepare(csr_from_edges(ends[0], ends[1], 10)), documents_from=6)
        p = personalized_pagerank(graph, prior=prior, implementation="numba")
    assert not p[0, [2, 3, 4, 5, 8, 9]].any() and (p[1] > 0).all()


def test_a_large_hub_and_strong_damping_stay_within_the_tolerance() -> None:
    """Rounding of f32 alone would miss these tolerances: fine steps and the f64 state must take over."""
    leaves = torch.arange(1, 4000)
    csr = csr_from_edges(
        torch.cat([torch.zeros(3999, dtype=torch.int64), leaves[:-1]]), torch.cat([leaves, leaves[1:]]), 4000
    )
    seeds = ragged([[0], [17, 3000]])
    for damping in (0.85, 0.99):
        exact = naive_pagerank(csr, seeds, damping=damping)
        for name in ("numba", "torch"):
            p = personalized_pagerank(csr, seeds, damping=damping, implementation=name, max_iter=2000)
            assert (p - exact).abs().sum(1).max() <= 1e-6 + ROUNDING


def test_weights_beyond_the_range_of_f32_states() -> None:
    weight = torch.tensor([1e-42, 3e-42, 1e-42, 2.0, 5.0, 1e38])
    csr = csr_from_edges(torch.tensor([0, 1, 0, 3, 4, 5]), torch.tensor([1, 2, 2, 4, 5, 6]), 7, weight)
    for implementation in ("numba", "torch"):
        p = personalized_pagerank(csr, ragged([[0], [1, 3]]), implementation=implementation).numpy()
        assert np.abs(p - pagerank_of(csr, [[0], [1, 3]])).sum(1).max() <= 1e-6 + ROUNDING


def test_nothing_in_nothing_out() -> None:
    none = csr_of(np.zeros((0, 0)))
    for implementation in ("numba", "torch"):
        assert personalized_pagerank(none, ragged([[], []]), implementation=implementation).shape == (2, 0)
    assert personalized_pagerank(PATH, ragged([])).shape == (0, 4)
    assert personalized_pagerank(none, prior=torch.zeros(2, 0)).shape == (2, 0)


def test_rows_of_zero_weights_are_dangling() -> None:
    csr = CSR(torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0], dtype=torch.int32), torch.tensor([0.0, 0.0, 1.0]))
    found = personalized_pagerank(csr, ragged([[0], [1], [2]]))
    assert np.abs(found.numpy() - pagerank_of(csr, [[0], [1], [2]])).sum(1).max() <= 1e-6


ONE = ragged([[0]])


def of(**options: Any) -> Callable[[], object]:
    return lambda: personalized_pagerank(PATH, **{"seeds": ONE, **options})


def weighing(offsets: list[int], *weights: float) -> Callable[[], object]:
    return of(weights=Ragged(torch.tensor(weights), torch.tensor(offsets)))


test_bad_input_says_what = refusals(
    [
        ("one of the seeds is no node", of(seeds=ragged([[4]]))),
        ("seed weight is neg", weighing([0, 1], -1.0)),
        ("not finite", weighing([0, 1], np.nan)),
        ("prior does not fit", of(seeds=None, prior=torch.ones(1, 3))),
        *(("damping", of(damping=value)) for value in (1.0, 1.5, -0.1, float("nan"))),
        ("max_iter is out of range; given 1000001; expected <= 1,000,000", of(max_iter=10**6 + 1)),
        *(
            ("range of nodes", lambda ids=ids: personalized_pagerank(PATH, ONE, ids=ids))
            for ids in ((2, 5), (3, 1), (-1, 3))
        ),
        ("column index", lambda: personalized_pagerank(CSR(PATH.indptr, PATH.indices + 2), ONE)),
    ]
)
