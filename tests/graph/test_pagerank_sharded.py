"""PageRank over ranks: gloo processes on the CPU against a dense solve, one rank bit for bit, and wrong calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dense_pagerank import dense, row_normalised, solve_dense, teleports
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import results_of, run_as_rank
from refusals import refusal, refusals

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.csr import csr_from_edges, row_of_entry
from gpu_rag.graph.nearest import topk_rows
from gpu_rag.graph.pagerank import personalized_pagerank
from gpu_rag.graph.pagerank.inputs import prepare, unnormalised
from gpu_rag.graph.pagerank.sharded import (
    gather_rows,
    pagerank_residual_sharded,
    pagerank_topk_sharded,
    personalized_pagerank_sharded,
    shard_edges,
    shard_graph,
)
from gpu_rag.graph.pagerank.sharded import graph as sharding
from gpu_rag.types import CSR, Ragged

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
TOLS = (1e-3, 1e-6, 1e-9)
WORLDS = [2, pytest.param(3, marks=pytest.mark.slow)]
RANGE = (200, 1201)
K = 9


def random_graph(n: int, m: int, seed: int, *, undirected: bool, weighted: bool) -> CSR:
    """A few hubs; the last tenth of the nodes has no edges out."""
    g = torch.Generator().manual_seed(seed)
    linked = n - n // 10
    src, dst = ((torch.rand(m, generator=g) ** 3 * linked).long() for _ in range(2))
    weight = torch.rand(m, generator=g) + 0.1 if weighted else None
    if not undirected:
        dst = torch.where(torch.arange(m) % 9 == 0, n - 1 - dst % (n // 10), dst)
    return csr_from_edges(src, dst, n, weight, undirected=undirected)


def ring(n: int) -> CSR:
    nodes = torch.arange(n)
    return csr_from_edges(nodes, (nodes + 1) % n, n)


@functools.cache
def graphs() -> dict[str, tuple[CSR, Ragged, Ragged | None]]:
    g = torch.Generator().manual_seed(5)
    offsets = torch.tensor([0, 1, 1, 4, 9, 10, 20])
    some = Ragged(torch.randint(0, 1500, (20,), generator=g), offsets)
    weights = Ragged(torch.rand(20, generator=g) + 0.01, offsets)
    pair = Ragged(torch.tensor([512, 100]), torch.tensor([0, 1, 2]))
    path = csr_from_edges(torch.tensor([0, 2]), torch.tensor([1, 1]), 4)
    return {
        "undirected": (random_graph(1500, 6000, 1, undirected=True, weighted=True), some, weights),
        "directed": (random_graph(1500, 6000, 2, undirected=False, weighted=False), some, None),
        "ring": (ring(1024), pair, None),
        "path": (path, Ragged(torch.tensor([0, 3, 0]), torch.tensor([0, 1, 3])), None),
    }


def compute() -> dict[str, np.ndarray]:
    """All results of this rank."""
    found: dict[str, np.ndarray] = {}
    for name, (csr, seeds, weights) in graphs().items():
        shard = shard_graph(csr)
        for tol in TOLS:
            rows = personalized_pagerank_sharded(shard, seeds, weights, tol=tol, block=4)
            found[f"{name} {tol}"] = rows.numpy()
            found[f"{name} {tol} residual"] = pagerank_residual_sharded(shard, rows, seeds, weights)
        again = personalized_pagerank_sharded(shard, seeds, weights, tol=TOLS[1], block=4)
        found[f"{name} again"] = again.numpy()
        found[f"{name} whole"] = gather_rows(shard, again).numpy()
        spread = shard_edges(*some_edges(csr, shard.rank, shard.world), undirected=shard.symmetric)
        found[f"{name} spread"] = gather_rows(
            spread, personalized_pagerank_sharded(spread, seeds, weights, tol=TOLS[1], block=4)
        ).numpy()
        assert (spread.entries, spread.in_range) == (csr.m, True) and torch.equal(spread.dangling, shard.dangling)
        first, last = int(seeds.offsets[-2]), int(seeds.offsets[-1])
        alone = Ragged(seeds.values[first:last], torch.tensor([0, last - first]))
        share = None if weights is None else Ragged(weights.values[first:last], alone.offsets)
        found[f"{name} alone"] = personalized_pagerank_sharded(shard, alone, share, block=4).numpy()
        ids = RANGE if csr.n > RANGE[1] else None
        best = pagerank_topk_sharded(shard, seeds, weights, k=K, ids=ids, block=4)
        found[f"{name} ids"], found[f"{name} scores"] = best.ids.numpy(), best.scores.numpy()
        found[f"{name} bounds"] = np.array(shard.bounds)
    return found


def some_edges(csr: CSR, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor | None]:
    """(src, dst, n, weight): every world-th edge, and rank 0 gives all of them again, with no weight."""
    src, dst = torch.repeat_interleave(torch.arange(csr.n), csr.indptr.diff()), csr.indices.long()
    kept = (src < dst) if prepare(csr).symmetric else torch.ones_like(src, dtype=torch.bool)
    src, dst, weight = src[kept], dst[kept], None if csr.weight is None else csr.weight[kept]
    mine = (torch.arange(len(src)) * 7 % world == rank).nonzero()[:, 0].flip(0)
    given = torch.cat([mine, torch.arange(len(src) if rank == 0 else 0)])
    if weight is not None:
        weight = torch.cat([weight[mine], torch.zeros(len(given) - len(mine))])
    return src[given], dst[given], csr.n, weight


def wrong_calls(rank: int) -> list[str]:
    """What ranks are told that do not call alike."""
    csr, seeds, _ = graphs()["ring"]
    shard = shard_graph(csr)
    calls: list[Callable[[], object]] = [
        lambda: personalized_pagerank_sharded(shard, Ragged(seeds.values + rank, seeds.offsets)),
        lambda: personalized_pagerank_sharded(shard, seeds, tol=1e-6 * (rank + 1)),
        lambda: shard_graph(ring(1024 + rank)),
        lambda: shard_graph(replace(csr, weight=2.0 + (row_of_entry(csr) + csr.indices + rank) % 3)),
        lambda: personalized_pagerank_sharded(shard, seeds, max_iter=2, tol=1e-9),
        lambda: shard_edges(seeds.values, seeds.values, 1024 + rank),
    ]
    return [refusal(call, GpuRagError) for call in calls]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Any]]:
    """What every rank of a group of so many found."""

    @functools.cache
    def run(world: int) -> list[Any]:
        return results_of(__file__, world, tmp_path_factory.mktemp("ranks"))

    return run


@functools.cache
def one_rank() -> dict[str, np.ndarray]:
    return compute()


@functools.cache
def exact(name: str) -> np.ndarray:
    """f64[B, N] by a dense solve."""
    csr, seeds, weights = graphs()[name]
    return solve_dense(dense(csr), teleports(csr.n, seeds, weights), 0.85)


NAMES = ["undirected", "directed", "ring", "path"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tol", TOLS)
def test_within_tol_of_a_dense_solve(name: str, tol: float) -> None:
    found = one_rank()[f"{name} {tol}"]
    error = np.abs(found - exact(name)).sum(1)
    assert error.max() <= tol + 1e-7, "f32 rounding beside"
    bound = one_rank()[f"{name} {tol} residual"]
    assert np.all(error <= bound + 1e-12) and bound.max() <= 2 * 0.85 / 0.15 * (tol + 1e-7)


@pytest.mark.parametrize("implementation", ["scipy", "torch", "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_one_process_is_as_near(implementation: str, name: str) -> None:
    """The same graphs, some seeds of which are isolated, with states in f32 and in f64."""
    csr, seeds, weights = graphs()[name]
    for tol in TOLS:
        found = personalized_pagerank(csr, seeds, weights, tol=tol, implementation=implementation).numpy()
        assert np.abs(found - exact(name)).sum(1).max() <= tol + 1e-7


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_the_number_of_ranks(ranks: Callable[[int], list[Any]], world: int, name: str) -> None:
    one, all_ranks = one_rank(), ranks(world)
    for key in [*(f"{name} {tol}" for tol in TOLS), f"{name} again", f"{name} alone"]:
        assert np.array_equal(np.concatenate([held[key] for held in all_ranks], 1), one[key]), key
    for held in all_ranks:
        assert np.array_equal(held[f"{name} again"], held[f"{name} {TOLS[1]}"]), "from run to run"
        assert np.array_equal(held[f"{name} spread"], one[f"{name} whole"]), "of edges that lay on any rank"
        assert np.array_equal(held[f"{name} alone"][0], held[f"{name} again"][-1]), "alone as in the batch"
        for part in ("ids", "scores", "whole"):
            assert np.array_equal(held[f"{name} {part}"], one[f"{name} {part}"]), "the same on every rank"
        assert np.array_equal(held[f"{name} {TOLS[1]} residual"], one[f"{name} {TOLS[1]} residual"])


@pytest.mark.parametrize("name", NAMES)
def test_edges_make_the_shard_of_their_graph(name: str) -> None:
    csr = graphs()[name][0]
    one, other = shard_graph(csr), shard_edges(*some_edges(csr, 0, 1), undirected=prepare(csr).symmetric)
    for a, b in (
        (one.pull.indptr, other.pull.indptr),
        (one.pull.indices, other.pull.indices),
        (one.scale, other.scale),
    ):
        assert torch.equal(a, b)
    assert (one.pull.weight is None) == (other.pull.weight is None)
    assert one.pull.weight is None or torch.equal(one.pull.weight, other.pull.weight)
    assert one.bounds == other.bounds and one.symmetric == other.symmetric and torch.equal(one.dangling, other.dangling)


@pytest.mark.parametrize("name", NAMES)
def test_topk_is_that_of_whole_rows(name: str) -> None:
    csr, seeds, _ = graphs()[name]
    rows = torch.from_numpy(one_rank()[f"{name} {TOLS[1]}"]).clone()
    rows[seeds.offsets.diff() == 0] = -torch.inf
    lo, hi = RANGE if csr.n > RANGE[1] else (0, csr.n)
    best = topk_rows(rows[:, lo:hi], K, lo=lo)
    assert np.array_equal(one_rank()[f"{name} ids"], best.ids.numpy())
    assert np.array_equal(one_rank()[f"{name} scores"], best.scores.numpy())


def test_ties_across_ranks_go_to_the_lower_id(ranks: Callable[[int], list[Any]]) -> None:
    """Neighbours left and right of seed 512 of the ring are equal; with two ranks they lie on different ones."""
    held = ranks(2)[1]
    assert held["ring bounds"].tolist() == [0, 512, 1024]
    assert held["ring ids"][0].tolist() == [512, 511, 513, 510, 514, 509, 515, 508, 516]
    scores = held["ring scores"][0]
    assert scores[1] == scores[2] and scores[3] == scores[4]


def test_a_rank_may_have_no_rows(ranks: Callable[[int], list[Any]]) -> None:
    assert sorted(held["path 1e-06"].shape[1] for held in ranks(2)) == [0, 4]


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_that_do_not_call_alike_are_all_told(ranks: Callable[[int], list[Any]], world: int) -> None:
    for held in ranks(world):
        seeds, tol, graph, weights, steps, edges = held["told"].tolist()
        assert "different seeds or options" in seeds and "different seeds or options" in tol
        assert "different graphs" in graph and "rank 1 unlike rank 0" in graph and "different graphs" in weights
        assert "did not converge" in steps and "ranks do not agree on their graph" in edges


# --- parts, on one rank ----------------------------------------------------------------------------


@QUICK
@given(st.integers(1, 9), st.integers(0, 4000), st.integers(0, 3))
def test_bounds_are_whole_chunks_of_equal_cost(world: int, m: int, seed: int) -> None:
    csr = random_graph(3000, m, seed, undirected=True, weighted=False)
    bounds = sharding.bounds_of(csr.indptr, world)
    chunk = sharding.chunk_of(csr.n)
    assert bounds[0] == 0 and bounds[-1] == csr.n and len(bounds) == world + 1 and list(bounds) == sorted(bounds)
    assert all(b % chunk == 0 for b in bounds[:-1])
    mean = max(1.0, csr.m / csr.n)
    cost = [int(csr.indptr[b] - csr.indptr[a]) + (b - a) * mean for a, b in zip(bounds[:-1], bounds[1:])]
    degrees = csr.indptr.diff()
    largest = max(float(part.sum()) + len(part) * mean for part in degrees.split(chunk))
    assert max(cost) <= (csr.m + csr.n * mean) / world + largest


def test_chunks_grow_with_the_graph() -> None:
    assert [sharding.chunk_of(n) for n in (1, 256 * 1024, 256 * 1024 + 1, 10**9)] == [256, 256, 512, 2**20]


@QUICK
@given(st.integers(1, 700), st.integers(0, 99))
def test_total_is_the_sum(n: int, seed: int) -> None:
    shard = shard_graph(ring(n) if n > 2 else csr_from_edges(torch.tensor([0]), torch.tensor([0]), n))
    values = torch.from_numpy(np.random.default_rng(seed).random((n, 3)))
    assert shard.total(values) == pytest.approx(values.sum(0).numpy(), rel=1e-14)


def test_places_and_nodes_are_inverse() -> None:
    csr, _, _ = graphs()["directed"]
    shard = shard_graph(csr)
    assert torch.equal(shard.nodes_of(shard.pull.indices), prepare(csr).pull.indices.long())
    tails, heads = sharding.own_edges(shard)
    pairs = torch.stack([tails, heads])[:, torch.argsort(tails * csr.n + heads)]
    rows = torch.repeat_interleave(torch.arange(csr.n), csr.indptr.diff())
    assert torch.equal(pairs, torch.stack([rows, csr.indices.long()])), "edges as in the adjacency"


def dense_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    a = r.random((8, 8)) * (r.random((8, 8)) < 0.3)
    a[r.random(8) < 0.3] = 0
    pi = r.random((8, 3)) + 0.01
    return a, pi / pi.sum(0)


def scaled_by(total: Callable[[torch.Tensor, torch.Tensor], float], seed: int, damping: float) -> float:
    """How far the q made of the exact PageRank is from its equation."""
    a, pi = dense_case(seed)
    p = torch.from_numpy(solve_dense(a, pi.T, damping).T) * 3.0  # of any length
    lost = (p * torch.from_numpy(a.sum(1) == 0)[:, None]).sum(0)
    q = (unnormalised(p, p.sum(0), lost, damping) * total(p, lost)).numpy()
    step = (1 - damping) * pi + damping * row_normalised(a).T @ q
    return float(np.abs(step - q).max())


@QUICK
@given(st.integers(0, 200), st.sampled_from([0.0, 0.5, 0.85, 0.99]))
def test_an_exact_estimate_is_a_fixpoint(seed: int, damping: float) -> None:
    assert scaled_by(lambda p, lost: 1.0, seed, damping) < 1e-12


def test_an_estimate_that_is_not_scaled_is_none() -> None:
    """A wrong version: q = p, whatever is lost."""
    assert max(scaled_by(lambda p, lost: float((p.sum() / 3 + lost.sum()) / p.sum()), s, 0.85) for s in range(9)) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_start_changes_the_way_not_the_end(name: str) -> None:
    csr, seeds, weights = graphs()[name]
    shard = shard_graph(csr)
    near = torch.from_numpy(one_rank()[f"{name} {TOLS[0]}"]).clone()
    near[seeds.offsets.diff() == 0] = 1.0  # not looked at
    found = personalized_pagerank_sharded(shard, seeds, weights, start=near)
    assert np.abs(found.numpy() - exact(name)).sum(1).max() <= 1e-6 + 1e-7
    few = [personalized_pagerank_sharded(shard, seeds, weights, start=found + 1e-30, max_iter=4, solver="power")]
    with pytest.raises(GpuRagError, match="did not converge"):
        personalized_pagerank_sharded(shard, seeds, weights, max_iter=4, solver="power")
    assert np.abs(few[0].numpy() - exact(name)).sum(1).max() <= 1e-6 + 1e-7


def test_the_residual_sees_a_wrong_rank() -> None:
    csr, seeds, weights = graphs()["undirected"]
    shard = shard_graph(csr)
    rows = torch.from_numpy(one_rank()["undirected 1e-06"]).clone()
    rows[3, 7] += 1e-3
    bound = pagerank_residual_sharded(shard, rows, seeds, weights)
    assert bound[3] > 1e-3 and bound[2] < 1e-5
    unweighted = pagerank_residual_sharded(shard, rows, seeds)
    assert unweighted[2] > 1e-2, "another question"


SEED = Ragged(torch.tensor([1]), torch.tensor([0, 1]))


RING, DIRECTED = (shard_graph(graphs()[name][0]) for name in ("ring", "directed"))
test_bad_input_says_what = refusals(
    [
        ("sor works row by row", lambda: personalized_pagerank_sharded(RING, SEED, solver="sor")),
        ("needs a symmetric graph", lambda: personalized_pagerank_sharded(DIRECTED, SEED, solver="chebyshev")),
        ("no such PageRank of shards", lambda: personalized_pagerank_sharded(RING, SEED, implementation="numba")),
        ("start does not fit", lambda: personalized_pagerank_sharded(RING, SEED, start=torch.ones(2, 1024))),
        (
            "one of the seeds is no node",
            lambda: personalized_pagerank_sharded(RING, Ragged(SEED.values + 1024, SEED.offsets)),
        ),
        ("tol is out of range", lambda: personalized_pagerank_sharded(RING, SEED, tol=0.0)),
        ("negative number of results", lambda: pagerank_topk_sharded(RING, SEED, k=-1)),
        ("range of nodes", lambda: pagerank_topk_sharded(RING, SEED, k=1, ids=(0, 1025))),
        ("rows do not fit", lambda: gather_rows(RING, torch.ones(1024, 1))),
        ("do not fit the shard", lambda: pagerank_residual_sharded(RING, torch.ones(1, 3), SEED)),
        ("indptr of a CSR has wrong ends", lambda: shard_graph(CSR(torch.tensor([0, 9]), SEED.values.int()))),
    ],
)


if __name__ == "__main__":
    run_as_rank(lambda rank: {"told": np.array(wrong_calls(rank)), **compute()})
