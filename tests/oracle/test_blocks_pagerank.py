"""PageRank on blocks against a dense solve and networkx, and wrong versions that the checks must catch.

p = (1-d) pi + d (P^T p + (mass on rows without weight) pi) in every block by itself, P = row-normalised weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_lists import ragged

from gpu_rag.errors import BadInput, GpuRagError, UsageError
from gpu_rag.graph.common.segments import PIECE, SegmentSum
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import induced_subgraphs
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.pagerank import personalized_pagerank
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


def star(leaves: int) -> CSR:
    return csr_from_edges(torch.zeros(leaves, dtype=torch.int64), torch.arange(1, leaves + 1), leaves + 1)


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
    "star": star(N - 1),
    "no edges": csr_from_edges(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), N),
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


def dense_block(blocks: Blocks, b: int) -> np.ndarray:
    lo, hi = blocks.offsets[b : b + 2].tolist()
    a, indptr = np.zeros((hi - lo, hi - lo)), blocks.csr.indptr.tolist()
    for i in range(lo, hi):
        for e in range(indptr[i], indptr[i + 1]):
            a[i - lo, int(blocks.csr.indices[e]) - lo] = 1.0 if blocks.csr.weight is None else blocks.csr.weight[e]
    return a


def restarts(blocks: Blocks, b: int, seeds: Ragged, weights: Ragged | None) -> np.ndarray:
    lo, hi = blocks.offsets[b : b + 2].tolist()
    ids, pi = blocks.global_ids[lo:hi].tolist(), np.zeros(hi - lo)
    for s in range(int(seeds.offsets[b]), int(seeds.offsets[b + 1])):
        pi[ids.index(int(seeds.values[s]))] += 1.0 if weights is None else float(weights.values[s])
    return pi / pi.sum() if pi.any() else pi


def row_normalised(a: np.ndarray) -> np.ndarray:
    out = a.sum(1, keepdims=True)
    return a / np.where(out > 0, out, 1)


def solve_dense(
    a: np.ndarray, pi: np.ndarray, d: float, transition: Any = row_normalised, dangling_to: Any = lambda pi: pi
) -> np.ndarray:
    lost = np.outer(dangling_to(pi), a.sum(1) == 0)
    return np.linalg.solve(np.eye(len(a)) - d * (transition(a).T + lost), (1 - d) * pi)


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
                want = solve_dense(dense_block(blocks, b), restarts(blocks, b, seeds, weights), d)
                assert np.abs(got - want).sum() <= tol + 6e-8, f"{name}, damping {d}, block {b}"
                assert abs(got.sum() - 1) <= 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_is_the_dense_solve(name: str) -> None:
    check_exact(lambda *a, **k: blocks_pagerank(*a, implementation=name, **k))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["undirected weighted", "directed"])
def test_is_networkx(kind: str, name: str) -> None:
    blocks, seeds, weights = some_blocks(GRAPHS[kind], 9, seed=5)
    found = blocks_pagerank(blocks, ragged(seeds), ragged(weights, torch.float32), tol=1e-8, implementation=name)
    for b in range(9):
        if seeds[b]:
            lo, hi = blocks.offsets[b : b + 2].tolist()
            pi = restarts(blocks, b, ragged(seeds), ragged(weights, torch.float32))
            graph = nx.from_numpy_array(dense_block(blocks, b), create_using=nx.DiGraph)
            want = nx.pagerank(graph, 0.85, personalization=dict(enumerate(pi)), tol=1e-12, max_iter=5000)
            assert sum(abs(want[i] - float(found.values[lo + i])) for i in range(hi - lo)) <= 1e-6


def slow_pair(size: int = 6, bridge: float = 0.01) -> CSR:
    """Two cliques, each node tied weakly to its twin: the residual bound is nearly tight with the seeds on one."""
    pairs = [(i + s, j + s) for s in (0, size) for i in range(size) for j in range(i)]
    ties = [(i, i + size) for i in range(size)]
    ends = torch.tensor(pairs + ties)
    weight = torch.tensor([1.0] * len(pairs) + [bridge] * len(ties))
    return csr_from_edges(ends[:, 0], ends[:, 1], 2 * size, weight)


def check_bound(solve: Solve) -> None:
    blocks = induced_subgraphs(slow_pair(), ragged([range(12)]))
    a, seeds = dense_block(blocks, 0), ragged([list(range(6))])
    for d in (0.5, 0.85, 0.95):
        want = solve_dense(a, restarts(blocks, 0, seeds, None), d)
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
        want = solve_dense(dense_block(blocks, 0), restarts(blocks, 0, seeds, None), d)
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


def wrong(transition: Any = row_normalised, dangling_to: Any = lambda pi: pi, weighted_seeds: bool = True) -> Solve:
    """The dense solve with one part exchanged."""

    def solve(blocks: Blocks, seeds: Ragged, weights: Any = None, *, damping: float = 0.85, **_: Any) -> Ragged:
        parts = []
        for b in range(blocks.offsets.shape[0] - 1):
            a = dense_block(blocks, b)
            pi = restarts(blocks, b, seeds, weights if weighted_seeds else None)
            parts.append(torch.tensor(solve_dense(a, pi, damping, transition, dangling_to) if pi.any() else pi))
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


def test_the_right_version_of_the_wrong_ones_passes() -> None:
    check_exact(wrong())


@pytest.mark.parametrize("version", WRONG.values(), ids=WRONG)
def test_checks_catch(version: Solve) -> None:
    with pytest.raises(AssertionError):
        check_exact(version)


def lone(blocks: Blocks, b: int) -> Blocks:
    """Block b by itself."""
    lo, hi = blocks.offsets[b : b + 2].tolist()
    first, last = blocks.csr.indptr[[lo, hi]].tolist()
    weight = None if blocks.csr.weight is None else blocks.csr.weight[first:last]
    csr = CSR(blocks.csr.indptr[lo : hi + 1] - first, blocks.csr.indices[first:last] - lo, weight)
    return Blocks(csr, torch.tensor([0, hi - lo]), blocks.global_ids[lo:hi])


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


@QUICK
@given(st.integers(0, 10_000), st.sampled_from(sorted(GRAPHS)), st.sampled_from(NAMES))
def test_new_names_change_nothing(seed: int, kind: str, name: str) -> None:
    csr, r = GRAPHS[kind], np.random.default_rng(seed)
    called = torch.tensor(r.permutation(N))  # node i is called called[i]
    rows = torch.repeat_interleave(torch.arange(N), csr.indptr.diff())
    weight = None if csr.weight is None else csr.weight.double()
    other = csr_from_edges(called[rows], called[csr.indices.long()], N, weight, undirected=False)
    nodes = np.sort(r.choice(N, 20, replace=False))
    seeds = r.choice(nodes, 3).tolist()
    one = blocks_pagerank(induced_subgraphs(csr, ragged([nodes.tolist()])), ragged([seeds]), implementation=name)
    moved = induced_subgraphs(other, ragged([sorted(called[nodes].tolist())]))
    two = blocks_pagerank(moved, ragged([called[seeds].tolist()]), implementation=name)
    place = torch.searchsorted(moved.global_ids, called[nodes].int())
    assert float((two.values[place] - one.values).abs().sum()) <= 2.2e-6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", sorted(GRAPHS))
def test_a_block_of_all_nodes_is_the_global_pagerank(kind: str, name: str) -> None:
    csr, seeds = GRAPHS[kind], [[0, 5], [7]]
    whole = personalized_pagerank(csr, ragged(seeds), tol=1e-8, max_iter=500)
    blocks = induced_subgraphs(csr, ragged([range(N), range(N)]))
    found = blocks_pagerank(blocks, ragged(seeds), tol=1e-8, implementation=name)
    assert float((found.values.view(2, N) - whole).abs().sum(1).max()) <= 1.5e-7


@pytest.mark.parametrize("name", NAMES)
def test_by_hand(name: str) -> None:
    csr = csr_from_edges(torch.tensor([5, 7]), torch.tensor([7, 9]), 10)
    blocks = induced_subgraphs(csr, ragged([[5, 7, 9], [5, 8], []]))
    found = blocks_pagerank(blocks, ragged([[5], [8], []]), damping=0.5, tol=1e-9, implementation=name)
    wanted = torch.tensor([7 / 12, 4 / 12, 1 / 12, 0, 1])
    assert torch.allclose(found.values, wanted, atol=1e-7) and found.offsets.tolist() == [0, 3, 5, 5]
    nothing = blocks_pagerank(induced_subgraphs(csr, ragged([])), ragged([]), implementation=name)
    assert nothing.values.shape == (0,) and nothing.offsets.tolist() == [0]


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_that_is_not_within_tol_is_an_error(name: str) -> None:
    blocks, seeds, _ = some_blocks(GRAPHS["undirected"], 5)
    with pytest.raises(GpuRagError, match="did not converge"):
        blocks_pagerank(blocks, ragged(seeds), max_iter=3, tol=1e-9, implementation=name)


def test_bad_input() -> None:
    blocks, seeds, weights = some_blocks(GRAPHS["undirected"], 4)
    good = ragged(seeds)
    outside = next(v for v in range(N) if v not in blocks.global_ids[: blocks.offsets[1]].tolist())
    for rows, match in (
        ([[outside], [], [], []], "not in its block"),
        ([[], [], [0], []], "not in its block"),
        ([[-1], [], [], []], "not in its block"),
        (seeds[:3], "do not match the blocks"),
    ):
        with pytest.raises(BadInput, match=match):
            blocks_pagerank(blocks, ragged(rows))
    for values, match in ((torch.nan, "not finite"), (-1.0, "negative"), (0.0, "sum to zero")):
        bad = Ragged(torch.full((good.values.shape[0],), values), good.offsets)
        with pytest.raises(BadInput, match=match):
            blocks_pagerank(blocks, good, bad)
    for options in ({"damping": 1.0}, {"tol": 0.0}, {"max_iter": 0}, {"threads": 0}):
        with pytest.raises(BadInput, match=next(iter(options))):
            blocks_pagerank(blocks, good, ragged(weights, torch.float32), **options)
    with pytest.raises(UsageError, match="no such implementation"):
        blocks_pagerank(blocks, good, implementation="scipy")


def test_broken_blocks() -> None:
    blocks, seeds, _ = some_blocks(GRAPHS["undirected"], 4)
    ids, offsets = blocks.global_ids, blocks.offsets
    across = CSR(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32))
    path = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 3, torch.ones(2))
    three = (torch.tensor([0, 3]), torch.tensor([3, 4, 5]))
    assert path.weight is not None
    reject = [torch.tensor([1.0, value, 1.0, 1.0]) for value in (torch.nan, torch.inf, -1.0)]
    for broken, match in (
        (Blocks(blocks.csr, offsets, ids[:-1]), "broken"),
        (Blocks(blocks.csr, offsets, ids.flip(0)), "not in order"),
        (Blocks(blocks.csr, offsets, ids - N), "nodes of blocks is no node; given -"),
        (Blocks(across, torch.tensor([0, 1, 2]), torch.tensor([3, 3])), "out of its block"),
        (Blocks(across, torch.tensor([0, 1]), torch.tensor([3])), "other nodes"),
        *((Blocks(CSR(path.indptr, path.indices, w), *three), "not finite") for w in reject),
        (Blocks(CSR(path.indptr, path.indices, path.weight[:3]), *three), "do not match"),
        (Blocks(CSR(path.indptr, path.indices[[0, 2, 1, 3]]), *three), "not sorted"),
        (Blocks(CSR(path.indptr, path.indices * 0), *three), "duplicate"),
        (Blocks(CSR(path.indptr, path.indices + 7), *three), "no node"),
        (Blocks(CSR(torch.tensor([0, 3, 1, 4]), path.indices), *three), "falls"),
        (Blocks(CSR(torch.tensor([0, 1, 3, 9]), path.indices), *three), "wrong ends"),
        (Blocks(CSR(path.indptr, path.indices.long()), *three), "wrong type"),
    ):
        with pytest.raises(BadInput, match=match):
            blocks_pagerank(broken, ragged(seeds[: broken.offsets.shape[0] - 1]))
        with pytest.raises(BadInput, match=match):
            blocks_pagerank(broken, ragged(seeds[: broken.offsets.shape[0] - 1]), implementation="torch")


@QUICK
@given(st.lists(st.sampled_from([0, 1, 2, 7, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5]), max_size=8))
def test_segment_sums(lengths: list[int]) -> None:
    values = torch.rand(sum(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(len(lengths)))
    found = SegmentSum(torch.tensor(lengths, dtype=torch.int64))(values)
    parts = values.split(lengths)
    assert torch.allclose(found, torch.tensor([float(p.sum()) for p in parts], dtype=torch.float64), rtol=1e-12)
    for length, part, total in zip(lengths, parts, found):
        assert torch.equal(SegmentSum(torch.tensor([length]))(part)[0], total), "alone as beside others"
