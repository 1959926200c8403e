"""PageRank on blocks against a dense solve and networkx, and wrong versions that the checks must catch.

p = (1-d) pi + d (P^T p + (mass on rows without weight) pi) in every block by itself, P = row-normalised weights.
"""

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from dense_pagerank import Matrix, csr_of, dense, row_normalised, slow_pair, solve_dense, star, teleports
from gpu_rag_kernels.local_pagerank import numba as kernels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import caught, refusals
from scipy.sparse import csr_matrix

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.common.segments import PIECE, SegmentSum
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import induced_subgraphs
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.types import CSR, Blocks, Ragged

Solve = Callable[..., Ragged]
NAMES = ["numba", "torch"]
N = 40
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def whole_graph(seed: int, *, undirected: bool, weighted: bool, zeros: bool = False) -> CSR:
    """40 nodes, 90 edges, the last three isolated or without edges out; zeros: some weights are 0."""
    r = np.random.default_rng(seed)
    src, dst = r.integers(0, N - 3, 90), r.integers(0, N if not undirected else N - 3, 90)
    weight = r.integers(0 if zeros else 1, 9, 90) / 4
    weight[src < 4] = 0 if zeros else weight[src < 4]
    return csr_from_edges(
        torch.tensor(src), torch.tensor(dst), N, torch.tensor(weight) if weighted else None, undirected=undirected
    )


def two_weights() -> CSR:
    """Every edge goes both ways, with another weight each: only the weights tell that it is directed."""
    pattern = whole_graph(7, undirected=True, weighted=False)
    weight = torch.from_numpy(np.random.default_rng(7).integers(1, 40, pattern.m) / 8)
    return CSR(pattern.indptr, pattern.indices, weight.float())


GRAPHS = {
    "undirected": whole_graph(1, undirected=True, weighted=False),
    "undirected weighted": whole_graph(2, undirected=True, weighted=True),
    "directed": whole_graph(3, undirected=False, weighted=False),
    "directed weighted": whole_graph(4, undirected=False, weighted=True, zeros=True),
    "two weights": two_weights(),
    "star": csr_of(star(N - 1), False),
    "no edges": csr_of(np.zeros((N, N)), False),
}


def some_blocks(csr: CSR, n_blocks: int, seed: int = 0) -> tuple[Blocks, list[list[int]], list[list[float]]]:
    """Blocks of 1 to 25 nodes; block 1 has no seeds, block 2 no nodes, block 0 is seeded at an isolated node."""
    r = np.random.default_rng(seed)
    nodes = [np.sort(r.choice(N, int(r.integers(1, 25)), replace=False)).tolist() for _ in range(n_blocks)]
    nodes[0] = sorted({*nodes[0], N - 1})
    nodes[2] = []
    seeds = [r.choice(v, int(r.integers(1, 5))).tolist() if v else [] for v in nodes]
    seeds[0], seeds[1] = [N - 1], []
    return induced_subgraphs(csr, ragged(nodes)), seeds, [(r.integers(1, 9, len(s)) / 4).tolist() for s in seeds]


def lone(blocks: Blocks, b: int) -> Blocks:
    """Block b by itself."""
    lo, hi = blocks.offsets[b : b + 2].tolist()
    first, last = blocks.csr.indptr[[lo, hi]].tolist()
    weight = None if blocks.csr.weight is None else blocks.csr.weight[first:last]
    csr = CSR(blocks.csr.indptr[lo : hi + 1] - first, blocks.csr.indices[first:last] - lo, weight)
    return Blocks(csr, torch.tensor([0, hi - lo]), blocks.global_ids[lo:hi])


def dense_block(blocks: Blocks, b: int) -> np.ndarray:
    return dense(lone(blocks, b).csr)


def restarts(blocks: Blocks, b: int, seeds: Ragged, weights: Ragged | None) -> np.ndarray:
    ids = lone(blocks, b).global_ids.tolist()
    own = slice(int(seeds.offsets[b]), int(seeds.offsets[b + 1]))
    local = ragged([[ids.index(v) for v in seeds.values[own].tolist()]])
    return teleports(len(ids), local, None if weights is None else Ragged(weights.values[own], local.offsets))[0]


def solved(a: np.ndarray, pi: np.ndarray, damping: float, *wrong: Matrix) -> np.ndarray:
    return np.asarray(solve_dense(a, pi[None], damping, *wrong)[0])


def check_exact(solve: Solve, graphs: dict[str, CSR] = GRAPHS) -> None:
    """Every block within tol (L1) of the dense solve; a block without seeds is zero."""
    for name, csr in graphs.items():
        blocks, nodes, given_weights = some_blocks(csr, 7)
        seeds = ragged(nodes)
        for d, tol, weights in (
            (0.0, 1e-6, None),
            (0.5, 1e-2, None),
            (0.85, 1e-6, ragged(given_weights, torch.float32)),
            (0.99, 1e-4, None),
        ):
            found = solve(blocks, seeds, weights, damping=d, tol=tol, max_iter=5000)
            assert found.values.dtype == torch.float32 and torch.equal(found.offsets, blocks.offsets)
            for b in range(7):
                got = found.values[blocks.offsets[b] : blocks.offsets[b + 1]].double().numpy()
                if not nodes[b]:
                    assert not got.any(), f"{name}: a block without seeds is not zero"
                    continue
                want = solved(dense_block(blocks, b), restarts(blocks, b, seeds, weights), d)
                assert np.abs(got - want).sum() <= tol + 6e-8, f"{name}, damping {d}, block {b}"
                assert abs(got.sum() - 1) <= 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_is_the_dense_solve(name: str) -> None:
    check_exact(lambda *a, **k: blocks_pagerank(*a, implementation=name, **k))
    nothing = blocks_pagerank(induced_subgraphs(GRAPHS["star"], ragged([])), ragged([]), implementation=name)
    assert nothing.values.shape == (0,) and nothing.offsets.tolist() == [0]


def check_bound(solve: Solve) -> None:
    blocks = induced_subgraphs(csr_of(slow_pair()), ragged([range(12)]))
    a, seeds = dense_block(blocks, 0), ragged([list(range(6))])
    for d in (0.5, 0.85, 0.95):
        want = solved(a, restarts(blocks, 0, seeds, None), d)
        for tol in (1e-2, 1e-3, 1e-4, 1e-5):
            got = solve(blocks, seeds, damping=d, tol=tol, max_iter=2000).values.double().numpy()
            assert np.abs(got - want).sum() <= tol, f"damping {d}, tol {tol}"


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_holds_where_it_is_tight(name: str) -> None:
    check_bound(lambda *a, **k: blocks_pagerank(*a, implementation=name, **k))


def check_leak(solve: Solve) -> None:
    """From the seed walks end at once, but for a few that stay long at a third node: all the error is soon there, where
    hardly any of the PageRank is, and fades by little more than the damping. So it is nearly the bound."""
    for d in (0.5, 0.9, 0.98):
        leak, stay = 0.02 * (1 - d), 1 - 0.1 * (1 - d)
        ends = torch.tensor([[0, 0, 2, 2], [1, 2, 1, 2]])
        weight = torch.tensor([1 - leak, leak, 1 - stay, stay])
        graph = csr_from_edges(ends[0], ends[1], 3, weight, undirected=False, drop_self_loops=False)
        blocks, seeds = induced_subgraphs(graph, ragged([[0, 1, 2]])), ragged([[0]])
        want = solved(dense_block(blocks, 0), restarts(blocks, 0, seeds, None), d)
        for tol in np.geomspace(5e-4, 5e-6, 12).tolist():
            got = solve(blocks, seeds, damping=d, tol=tol, max_iter=5000).values.double().numpy()
            assert np.abs(got - want).sum() <= tol + 6e-8, f"damping {d}, tol {tol}"


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_holds_where_it_is_reached(name: str) -> None:
    check_leak(lambda *a, **k: blocks_pagerank(*a, implementation=name, **k))


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_that_is_cut_short_is_caught(name: str) -> None:
    with pytest.raises(AssertionError, match="tol"):
        check_leak(lambda *a, tol, **k: blocks_pagerank(*a, tol=1.5 * tol, implementation=name, **k))


def stops_by_the_step(blocks: Blocks, seeds: Ragged, *_: Any, damping: float = 0.85, tol: float = 1e-6, **__: Any):
    """Power iteration until a step is shorter than tol: the usual test, and no bound."""
    values = []
    for b in range(blocks.offsets.shape[0] - 1):
        a, pi = dense_block(blocks, b), restarts(blocks, b, seeds, None)
        p, step = pi, 1.0
        while step > tol:
            following = (1 - damping) * pi + damping * (row_normalised(a).T @ p + p[a.sum(1) == 0].sum() * pi)
            p, step = following, float(np.abs(following - p).sum())
        values.append(torch.tensor(p))
    return Ragged(torch.cat(values).float(), blocks.offsets)


def test_the_bound_check_catches() -> None:
    with pytest.raises(AssertionError, match="tol"):
        check_bound(stops_by_the_step)


def wrong(
    transition: Matrix = row_normalised, dangling_to: Matrix = lambda pi: pi, weighted_seeds: bool = True
) -> Solve:
    """The dense solve with one part exchanged."""

    def solve(blocks: Blocks, seeds: Ragged, weights: Any = None, *, damping: float = 0.85, **_: Any) -> Ragged:
        parts = []
        for b in range(blocks.offsets.shape[0] - 1):
            a = dense_block(blocks, b)
            pi = restarts(blocks, b, seeds, weights if weighted_seeds else None)
            parts.append(torch.tensor(solved(a, pi, damping, transition, dangling_to) if pi.any() else pi))
        return Ragged(torch.cat(parts).float(), blocks.offsets)

    return solve


def whole_graph_degrees(blocks: Blocks, seeds: Ragged, weights: Any = None, **options: Any) -> Ragged:
    """Loses the mass that a row of the whole graph sends out of the block: as if a block had one more node."""
    return wrong(lambda a: a / (a.sum(1, keepdims=True) + 1))(blocks, seeds, weights, **options)


def empty_is_uniform(blocks: Blocks, seeds: Ragged, weights: Any = None, **options: Any) -> Ragged:
    found = wrong()(blocks, seeds, weights, **options)
    sizes = blocks.offsets.diff()
    flat = torch.repeat_interleave(1 / sizes.clamp(min=1), sizes)
    without = torch.repeat_interleave(seeds.offsets.diff() == 0, sizes)
    return Ragged(torch.where(without, flat, found.values), found.offsets)


WRONG: dict[str, Solve] = {
    "column-normalised": wrong(lambda a: row_normalised(a.T).T),
    "transposed": wrong(lambda a: row_normalised(a.T)),
    "weights ignored": wrong(lambda a: row_normalised((a > 0).astype(float))),
    "dangling mass spread": wrong(dangling_to=lambda pi: np.full(len(pi), 1 / len(pi))),
    "dangling mass lost": wrong(dangling_to=np.zeros_like),
    "seed weights ignored": wrong(weighted_seeds=False),
    "degrees of the whole graph": whole_graph_degrees,
    "no seeds: uniform": empty_is_uniform,
}


test_checks_catch = caught(WRONG, check_exact)


def check_alone(solve: Solve, csr: CSR, n_blocks: int = 40) -> None:
    blocks, seeds, _ = some_blocks(csr, n_blocks, seed=3)
    together = solve(blocks, ragged(seeds))
    for b in range(n_blocks):
        alone = solve(lone(blocks, b), ragged([seeds[b]]))
        assert torch.equal(alone.values, together.values[blocks.offsets[b] : blocks.offsets[b + 1]]), f"block {b}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["undirected weighted", "directed"])
def test_alone_as_in_a_batch(kind: str, name: str) -> None:
    check_alone(lambda *a: blocks_pagerank(*a, implementation=name), GRAPHS[kind])
    blocks, seeds, _ = some_blocks(GRAPHS[kind], 40, seed=3)
    one = blocks_pagerank(blocks, ragged(seeds), implementation=name)
    assert torch.equal(one.values, blocks_pagerank(blocks, ragged(seeds), implementation=name).values)
    if name == "numba":
        assert torch.equal(one.values, blocks_pagerank(blocks, ragged(seeds), threads=3).values)


def stops_together(blocks: Blocks, seeds: Ragged) -> Ragged:
    """All blocks take the steps of the slowest: right, and other bits in other batches."""
    n_seeded = int((seeds.offsets.diff() > 0).sum())
    return blocks_pagerank(blocks, seeds, tol=1e-6 if n_seeded < 2 else 1e-9)


def test_the_batch_check_catches() -> None:
    with pytest.raises(AssertionError):
        check_alone(stops_together, GRAPHS["undirected"])


BLOCKS, SEEDS, _ = some_blocks(GRAPHS["undirected"], 4)
SEED_OF_NONE = ragged([[], [], [0], []])
test_bad_input = refusals(
    [
        ("not in its block", lambda: blocks_pagerank(BLOCKS, SEED_OF_NONE)),
        ("match the blocks", lambda: blocks_pagerank(BLOCKS, ragged(SEEDS[:3]))),
        ("damping", lambda: blocks_pagerank(BLOCKS, ragged(SEEDS), damping=1.0)),
    ]
)


@QUICK
@given(st.lists(st.sampled_from([0, 1, 2, 7, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5]), max_size=8))
def test_segment_sums(lengths: list[int]) -> None:
    values = torch.rand(sum(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(len(lengths)))
    found = SegmentSum(torch.tensor(lengths, dtype=torch.int64), len(values))(values)
    parts = values.split(lengths)
    assert torch.allclose(found, torch.tensor([float(p.sum()) for p in parts], dtype=torch.float64), rtol=1e-12)
    for length, part, total in zip(lengths, parts, found):
        assert torch.equal(SegmentSum(torch.tensor([length]), length)(part)[0], total), "alone as beside others"


# --- parts whose mistakes a result could hide: the symmetric case, and numbers of sweeps with little to spare

MANY = settings(max_examples=300, deadline=None, derandomize=True)


def mirrored(matrix: np.ndarray, weighted: bool) -> bool:
    """The kernel on the non-zero entries of a dense matrix."""
    held = csr_matrix(matrix)
    n, m = len(matrix), held.nnz
    room = np.empty(n, np.uint32), np.full(m, 77, np.uint32)
    pulled = held.data.astype(np.float64) if weighted else None
    return bool(kernels.is_mirrored(held.indptr.astype(np.uint64), held.indices.astype(np.uint32), pulled, *room))


def is_symmetric(matrix: np.ndarray, weighted: bool) -> bool:
    return bool((matrix == matrix.T).all() if weighted else ((matrix > 0) == (matrix > 0).T).all())


@MANY
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_symmetric_is_found(seed: int, n: int, changes: int, weighted: bool) -> None:
    """Symmetric matrices, and those with a few entries changed, set to zero, or swapped with another of their row."""
    r = np.random.default_rng(seed)
    half = np.triu(r.integers(1, 4, (n, n)) * (r.random((n, n)) < r.random()))
    matrix = half + np.triu(half, 1).T
    for _ in range(changes):
        matrix[r.integers(n), r.integers(n)] = r.integers(0, 4)
        row, one, other = r.integers(n, size=3)
        matrix[row, [one, other]] = matrix[row, [other, one]]
    assert mirrored(matrix, weighted) == is_symmetric(matrix, weighted)


def one_block(graph: nx.Graph) -> Blocks:
    ends = torch.tensor(list(graph.edges), dtype=torch.int64)
    return induced_subgraphs(csr_from_edges(ends[:, 0], ends[:, 1], len(graph)), ragged([list(range(len(graph)))]))


@pytest.mark.parametrize(
    ("graph", "most"),
    [
        (nx.barabasi_albert_graph(600, 4, seed=1), 12),  # 20 without the correction of the mass
        (nx.complete_graph(60), 7),
        (nx.disjoint_union(nx.complete_graph(40), nx.complete_graph(30)), 24),  # a slow component that stays
        (nx.path_graph(300), 32),  # mixes slowly: omega has to grow
        (nx.star_graph(200), 8),
    ],
    ids=["hubs", "clique", "two cliques", "path", "star"],
)
def test_sweeps_that_a_symmetric_block_takes(graph: nx.Graph, most: int) -> None:
    blocks, seeds = one_block(graph), ragged([[0, 3, 9]])
    found = blocks_pagerank(blocks, seeds, max_iter=most, implementation="numba").values.double()
    exact = nx.pagerank(graph, 0.85, personalization=dict.fromkeys((0, 3, 9), 1), tol=1e-14, max_iter=5000)
    assert sum(abs(exact[v] - float(found[v])) for v in exact) <= 1.1e-6
    with pytest.raises(GpuRagError, match="did not converge"):
        blocks_pagerank(blocks, seeds, max_iter=2, implementation="numba")


def test_omega_grows_only_and_stays_below_the_best_for_the_damping() -> None:
    for d in (0.1, 0.5, 0.85, 0.99):
        most = 2 / (1 + np.sqrt(1 - d * d))
        for omega in np.linspace(1.0, most, 7):
            for rate in (0.0, 1e-9, 0.05, 0.3, 0.9, 1.0):
                assert omega <= kernels.fitted(omega, rate, d) <= most + 1e-12
    best = 2 / (1 + np.sqrt(1 - 0.36))
    assert kernels.fitted(1.0, 0.36, 0.85) == pytest.approx(1 + 0.8 * (best - 1)), "Gauss-Seidel shrinks by mu^2 = .36"
