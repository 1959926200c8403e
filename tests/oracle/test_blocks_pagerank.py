"""PageRank on blocks against a dense solve, and wrong versions that the checks must catch.

p = (1-d) pi + d (P^T p + (mass on rows without weight) pi) in every block by itself, P = row-normalised adjacency.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense_pagerank import Matrix, csr_of, dense, row_normalised, slow_pair, solve_dense, star, teleports
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import caught, refusals

from gpu_rag.graph.common.segments import PIECE, SegmentSum
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import induced_subgraphs
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.types import CSR, Blocks, Ragged

Solve = Callable[..., Ragged]
N = 40
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def whole_graph(seed: int) -> CSR:
    """40 nodes, 90 edges, the last three isolated."""
    src, dst = torch.from_numpy(np.random.default_rng(seed).integers(0, N - 3, (2, 90)))
    return csr_from_edges(src, dst, N)


GRAPHS = {
    "undirected": whole_graph(1),
    "further": whole_graph(2),
    "star": csr_of(star(N - 1), False),
    "no edges": csr_of(np.zeros((N, N)), False),
}


def some_blocks(csr: CSR, n_blocks: int, seed: int = 0) -> tuple[Blocks, list[list[int]]]:
    """Blocks of 1 to 25 nodes; block 1 has no seeds, block 2 no nodes, block 0 is seeded at an isolated node."""
    r = np.random.default_rng(seed)
    nodes = [np.sort(r.choice(N, int(r.integers(1, 25)), replace=False)).tolist() for _ in range(n_blocks)]
    nodes[0] = sorted({*nodes[0], N - 1})
    nodes[2] = []
    seeds = [r.choice(v, int(r.integers(1, 5))).tolist() if v else [] for v in nodes]
    seeds[0], seeds[1] = [N - 1], []
    return induced_subgraphs(csr, ragged(nodes)), seeds


def lone(blocks: Blocks, b: int) -> Blocks:
    """Block b by itself."""
    lo, hi = blocks.offsets[b : b + 2].tolist()
    first, last = blocks.csr.indptr[[lo, hi]].tolist()
    csr = CSR(blocks.csr.indptr[lo : hi + 1] - first, blocks.csr.indices[first:last] - lo)
    return Blocks(csr, torch.tensor([0, hi - lo]), blocks.global_ids[lo:hi])


def dense_block(blocks: Blocks, b: int) -> np.ndarray:
    return dense(lone(blocks, b).csr)


def restarts(blocks: Blocks, b: int, seeds: Ragged) -> np.ndarray:
    ids = lone(blocks, b).global_ids.tolist()
    own = slice(int(seeds.offsets[b]), int(seeds.offsets[b + 1]))
    local = ragged([[ids.index(v) for v in seeds.values[own].tolist()]])
    return teleports(len(ids), local, None)[0]


def solved(a: np.ndarray, pi: np.ndarray, damping: float, *wrong: Matrix) -> np.ndarray:
    return np.asarray(solve_dense(a, pi[None], damping, *wrong)[0])


def check_exact(solve: Solve, graphs: dict[str, CSR] = GRAPHS) -> None:
    """Every block within tol (L1) of the dense solve; a block without seeds is zero."""
    for name, csr in graphs.items():
        blocks, nodes = some_blocks(csr, 7)
        seeds = ragged(nodes)
        for d, tol in ((0.0, 1e-6), (0.5, 1e-2), (0.85, 1e-6), (0.99, 1e-4)):
            found = solve(blocks, seeds, damping=d, tol=tol, max_iter=5000)
            assert found.values.dtype == torch.float32 and torch.equal(found.offsets, blocks.offsets)
            for b in range(7):
                got = found.values[blocks.offsets[b] : blocks.offsets[b + 1]].double().numpy()
                if not nodes[b]:
                    assert not got.any(), f"{name}: a block without seeds is not zero"
                    continue
                want = solved(dense_block(blocks, b), restarts(blocks, b, seeds), d)
                assert np.abs(got - want).sum() <= tol + 6e-8, f"{name}, damping {d}, block {b}"
                assert abs(got.sum() - 1) <= 1e-5


def test_is_the_dense_solve() -> None:
    check_exact(blocks_pagerank)
    nothing = blocks_pagerank(induced_subgraphs(GRAPHS["star"], ragged([])), ragged([]))
    assert nothing.values.shape == (0,) and nothing.offsets.tolist() == [0]


def check_bound(solve: Solve) -> None:
    blocks = induced_subgraphs(csr_of(slow_pair()), ragged([range(12)]))
    a, seeds = dense_block(blocks, 0), ragged([list(range(6))])
    for d in (0.5, 0.85, 0.95):
        want = solved(a, restarts(blocks, 0, seeds), d)
        for tol in (1e-2, 1e-3, 1e-4, 1e-5):
            got = solve(blocks, seeds, damping=d, tol=tol, max_iter=2000).values.double().numpy()
            assert np.abs(got - want).sum() <= tol, f"damping {d}, tol {tol}"


def test_the_bound_holds_where_it_is_tight() -> None:
    check_bound(blocks_pagerank)


def stops_by_the_step(blocks: Blocks, seeds: Ragged, *_: Any, damping: float = 0.85, tol: float = 1e-6, **__: Any):
    """Power iteration until a step is shorter than tol: the usual test, and no bound."""
    values = []
    for b in range(blocks.offsets.shape[0] - 1):
        a, pi = dense_block(blocks, b), restarts(blocks, b, seeds)
        p, step = pi, 1.0
        while step > tol:
            following = (1 - damping) * pi + damping * (row_normalised(a).T @ p + p[a.sum(1) == 0].sum() * pi)
            p, step = following, float(np.abs(following - p).sum())
        values.append(torch.tensor(p))
    return Ragged(torch.cat(values).float(), blocks.offsets)


def test_the_bound_check_catches() -> None:
    with pytest.raises(AssertionError, match="tol"):
        check_bound(stops_by_the_step)


def wrong(transition: Matrix = row_normalised, dangling_to: Matrix = lambda pi: pi) -> Solve:
    """The dense solve with one part exchanged."""

    def solve(blocks: Blocks, seeds: Ragged, *, damping: float = 0.85, **_: Any) -> Ragged:
        parts = []
        for b in range(blocks.offsets.shape[0] - 1):
            a = dense_block(blocks, b)
            pi = restarts(blocks, b, seeds)
            parts.append(torch.tensor(solved(a, pi, damping, transition, dangling_to) if pi.any() else pi))
        return Ragged(torch.cat(parts).float(), blocks.offsets)

    return solve


def whole_graph_degrees(blocks: Blocks, seeds: Ragged, **options: Any) -> Ragged:
    """Loses the mass that a row of the whole graph sends out of the block: as if a block had one more node."""
    return wrong(lambda a: a / (a.sum(1, keepdims=True) + 1))(blocks, seeds, **options)


def empty_is_uniform(blocks: Blocks, seeds: Ragged, **options: Any) -> Ragged:
    found = wrong()(blocks, seeds, **options)
    sizes = blocks.offsets.diff()
    flat = torch.repeat_interleave(1 / sizes.clamp(min=1), sizes)
    without = torch.repeat_interleave(seeds.offsets.diff() == 0, sizes)
    return Ragged(torch.where(without, flat, found.values), found.offsets)


WRONG: dict[str, Solve] = {
    "column-normalised": wrong(lambda a: row_normalised(a.T).T),
    "dangling mass spread": wrong(dangling_to=lambda pi: np.full(len(pi), 1 / len(pi))),
    "dangling mass lost": wrong(dangling_to=np.zeros_like),
    "degrees of the whole graph": whole_graph_degrees,
    "no seeds: uniform": empty_is_uniform,
}


test_checks_catch = caught(WRONG, check_exact)


def check_alone(solve: Solve, csr: CSR, n_blocks: int = 40) -> None:
    blocks, seeds = some_blocks(csr, n_blocks, seed=3)
    together = solve(blocks, ragged(seeds))
    for b in range(n_blocks):
        alone = solve(lone(blocks, b), ragged([seeds[b]]))
        assert torch.equal(alone.values, together.values[blocks.offsets[b] : blocks.offsets[b + 1]]), f"block {b}"


def test_alone_as_in_a_batch() -> None:
    check_alone(blocks_pagerank, GRAPHS["undirected"])


def stops_together(blocks: Blocks, seeds: Ragged) -> Ragged:
    """All blocks take the steps of the slowest: right, and other bits in other batches."""
    n_seeded = int((seeds.offsets.diff() > 0).sum())
    return blocks_pagerank(blocks, seeds, tol=1e-6 if n_seeded < 2 else 1e-9)


def test_the_batch_check_catches() -> None:
    with pytest.raises(AssertionError):
        check_alone(stops_together, GRAPHS["undirected"])


BLOCKS, SEEDS = some_blocks(GRAPHS["undirected"], 4)
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
