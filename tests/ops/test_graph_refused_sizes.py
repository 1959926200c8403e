"""Calls that ask for more than there is: memory, threads, results, or digits of f64."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from ragged_lists import ragged

from gpu_rag.errors import BadInput, GpuRagError
from gpu_rag.graph import memory as room
from gpu_rag.graph.bubble import bubble_expansion
from gpu_rag.graph.cluster import radius_clusters
from gpu_rag.graph.components import connected_components
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import ego_balls, induced_subgraphs
from gpu_rag.graph.frontier import FrontierQuery, frontier_topk, hop_edges, top_edges
from gpu_rag.graph.fuse import rrf
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.nearest import nearest, topk_rows
from gpu_rag.graph.nearest.index import nearest_index
from gpu_rag.graph.pagerank import pagerank_topk, personalized_pagerank
from gpu_rag.graph.paths import expand_paths, path_graph, start_paths
from gpu_rag.graph.paths.scores import score_paths
from gpu_rag.graph.reach import reachable, typed_graph
from gpu_rag.types import Ragged, TopK

BOTH = pytest.mark.parametrize("implementation", ["numba", "torch"])
PATH = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 4)  # 0 - 1 - 2, and 3 alone


def unit(n: int, dims: int = 8) -> torch.Tensor:
    rows = torch.randn(n, dims, generator=torch.Generator().manual_seed(n))
    return torch.nn.functional.normalize(rows, dim=1)


# --- memory ------------------------------------------------------------------------------------------

ENDS = torch.tensor([0])
ASKED = FrontierQuery(unit(2), ragged([[0], []]))
HOPS = torch.tensor([0, 1, 2]), torch.tensor([1, 0]).int(), torch.tensor([0, 1]).int(), unit(2), ragged([[0], [1]])
EDGES = hop_edges(*HOPS, 2)
BLOCKS = induced_subgraphs(PATH, ragged([[0, 1], []]))
BUBBLES = BLOCKS, torch.ones(2, dtype=torch.int32), ragged([[0, 1], []]), ragged([[0, 3], []])
LEAVES = torch.arange(1, 301)
GRAPH = path_graph(PATH)
STAR = typed_graph(torch.zeros_like(LEAVES), torch.zeros_like(LEAVES), LEAVES, 301, 1)


def ragged_pair(relation: int, direction: int) -> tuple[Ragged, Ragged]:
    return ragged([[relation]]), ragged([[direction]])


TOO_LARGE: dict[str, Callable[[], object]] = {
    "a graph": lambda: csr_from_edges(ENDS, ENDS, 50),
    "a typed graph": lambda: typed_graph(ENDS, ENDS, ENDS, 50, 1),
    "PageRank": lambda: personalized_pagerank(PATH, ragged([[0]])),
    "PageRank by torch": lambda: personalized_pagerank(PATH, ragged([[0]]), implementation="torch"),
    "the best of PageRank": lambda: pagerank_topk(PATH, ragged([[0]]), k=2),
    "balls": lambda: ego_balls(PATH, ragged([[0]]), 1, implementation="numba"),
    "clusters": lambda: radius_clusters(unit(3), 0.5),
    "neighbours": lambda: nearest(unit(3), unit(3), 2),
    "edges of a frontier": lambda: frontier_topk(ASKED, EDGES, ragged([[0], [1]]), 2),
    "edges": lambda: top_edges(ASKED, EDGES, 2),
    "keywords of edges": lambda: hop_edges(*HOPS, 2),
    "fused rankings": lambda: rrf([TopK(torch.tensor([[0, 1], [1, 0]]), torch.zeros(2, 2))], 2, constants=[60]),
    "components": lambda: connected_components(PATH),
    "the best of rows": lambda: topk_rows(torch.zeros(2, 3), 5),
    "an index": lambda: nearest_index(unit(3), implementation="torch").search(unit(2), 2),
    "subgraphs": lambda: induced_subgraphs(PATH, ragged([[0, 1]]), implementation="numba"),
    "subgraphs by torch": lambda: induced_subgraphs(PATH, ragged([[0, 1]]), implementation="torch"),
    "PageRank of blocks": lambda: blocks_pagerank(BLOCKS, ragged([[0], []]), implementation="numba"),
    "PageRank of blocks by torch": lambda: blocks_pagerank(BLOCKS, ragged([[0], []]), implementation="torch"),
    "bubbles": lambda: bubble_expansion(*BUBBLES, implementation="numba"),
    "bubbles by torch": lambda: bubble_expansion(*BUBBLES, implementation="torch"),
    "walks of many edges": lambda: reachable(STAR, ragged([[0]]), *ragged_pair(0, 1), implementation="numba"),
    "walks of edges of any relation": lambda: reachable(STAR, ragged([[0]]), *ragged_pair(-1, 3)),
    "walks by torch": lambda: reachable(STAR, ragged([[5]]), *ragged_pair(0, 2), implementation="torch"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_cannot_fit_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    TOO_LARGE[name]()
    monkeypatch.setattr(room, "LOOK_FROM", 0)
    TOO_LARGE[name]()  # there is room
    monkeypatch.setattr(room, "free_bytes", lambda device: 10)
    with pytest.raises(BadInput, match=r"not enough memory; given at least .* GiB for .*; expected at most 0\.0 GiB"):
        TOO_LARGE[name]()


@BOTH
def test_walks_that_mark_no_nodes_need_no_room(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One edge from a leaf, none against the direction, an empty chain: fewer than `step_of_few` takes."""
    monkeypatch.setattr(room, "LOOK_FROM", 0)
    monkeypatch.setattr(room, "free_bytes", lambda device: 40)
    starts, chains, ways = ragged([[7], [0], [0]]), ragged([[0], [0], []]), ragged([[3], [2], []])
    if implementation == "torch":
        with pytest.raises(BadInput, match="for the starts"):
            reachable(STAR, starts, chains, ways, implementation=implementation)
    else:
        assert reachable(STAR, starts, chains, ways, implementation=implementation).values.tolist() == [0, 0]


@BOTH
def test_rooms_are_those_of_the_largest_question(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state for every question would be too much, one at a time is not."""
    monkeypatch.setattr(room, "LOOK_FROM", 0)
    needed = []
    monkeypatch.setattr(room, "free_bytes", lambda device: needed.append(0) or 3000)
    many = induced_subgraphs(PATH, ragged([[0, 1, 2]] * 30), implementation="torch")
    anchors = ragged([[0, 2]] * 30)
    calls = (
        lambda: bubble_expansion(many, torch.ones(90).int(), anchors, ragged([[0, 1]] * 30), **by),
        lambda: blocks_pagerank(many, anchors, **by),
    )
    by = {"implementation": implementation}
    for call in calls if implementation == "numba" else calls[1:]:
        needed.clear()
        with pytest.raises(BadInput, match="not enough memory") if implementation == "torch" else nullcontext():
            call()
        assert needed


def test_more_than_any_machine_has_is_refused() -> None:
    with pytest.raises(BadInput, match="not enough memory"):
        room.check_memory(2**60, torch.device("cpu"), "a graph", "split it")
    assert 2**20 < room.free_bytes(torch.device("cpu")) < 2**60


# --- threads, results ------------------------------------------------------------------------------

THREADED: dict[str, Callable[..., object]] = {
    "nearest_index": lambda **some: nearest_index(unit(3), **some),
    "personalized_pagerank": lambda **some: personalized_pagerank(PATH, ragged([[0]]), **some),
    "pagerank_topk": lambda **some: pagerank_topk(PATH, ragged([[0]]), k=1, **some),
    "blocks_pagerank": lambda **some: blocks_pagerank(BLOCKS, ragged([[0], []]), **some),
    "bubble_expansion": lambda **some: bubble_expansion(*BUBBLES, **some),
    "ego_balls": lambda **some: ego_balls(PATH, ragged([[0]]), 1, **some),
    "reachable": lambda **some: reachable(STAR, ragged([[0]]), *ragged_pair(0, 1), **some),
    "frontier_topk": lambda **some: frontier_topk(ASKED, EDGES, ragged([[0], [1]]), 2, **some),
    "expand_paths": lambda **some: expand_paths(GRAPH, start_paths(GRAPH, ragged([[0]])), ragged([[0]]), **some),
    "score_paths": lambda **some: score_paths(
        start_paths(GRAPH, ragged([[0]])), unit(1), unit(2), ragged([[0]]), **some
    ),
}


@pytest.mark.parametrize("name", THREADED)
def test_threads_that_no_machine_has_are_refused(name: str) -> None:
    for threads in (0, -1, 1025, 2**31, 2**70):
        with pytest.raises(BadInput, match=f"threads is out of range; given {threads}; expected >= 1, at most 1,024"):
            THREADED[name](threads=threads)
    THREADED[name](threads=1024)


@pytest.mark.parametrize("k", [-1, 2**31, 2**62, 2**70])
def test_more_results_than_there_are_ids_are_refused(k: int) -> None:
    for call in (
        lambda batch: topk_rows(torch.zeros(batch, 3), k),
        lambda batch: nearest(unit(4)[:batch], unit(4), k),
        lambda batch: nearest_index(unit(4), implementation="torch").search(unit(4)[:batch], k),
        lambda batch: pagerank_topk(PATH, ragged([[0]] * batch), k=k),
    ):
        for batch in (0, 2):
            with pytest.raises(BadInput, match=f"k={k}"):
                call(batch)
    with pytest.raises(BadInput, match="not enough memory"):
        topk_rows(torch.zeros(2**12, 1), 2**31 - 1)


# --- tolerances that rounding keeps away --------------------------------------------------------------


@pytest.mark.parametrize("op", ["pagerank", "blocks numba", "blocks torch"])
def test_a_tolerance_below_rounding_is_said_to_be_so(op: str) -> None:
    """No number of steps helps; the tol that the error names is met."""
    r = np.random.default_rng(0)
    graph = csr_from_edges(*(torch.tensor(r.integers(0, 50, 200)) for _ in range(2)), 50)
    seeds = ragged([[0, 3]])
    blocks = induced_subgraphs(graph, ragged([list(range(50))]))

    def solved(tol: float, max_iter: int) -> None:
        if op == "pagerank":
            personalized_pagerank(graph, seeds, damping=0.9999, tol=tol, max_iter=max_iter)
        else:
            by = op.split()[1]
            blocks_pagerank(blocks, seeds, damping=0.9999, tol=tol, max_iter=max_iter, implementation=by)

    with pytest.raises(GpuRagError, match="raise max_iter, or lower damping"):
        solved(1e-12, 5)
    with pytest.raises(GpuRagError, match="the size of rounding in f64, which more steps may not lower") as told:
        solved(1e-12, 4000)
    reached = float(re.findall("raise tol to ([^,]*), or lower damping", str(told.value))[0])
    assert 1e-12 < reached < 1e-9
    solved(reached, 4000)


def test_kept_loops_slow_sor_down() -> None:
    place = torch.arange(6)
    ends = torch.cat([place, place[:-1]]), torch.cat([place, place[1:]])
    loops = csr_from_edges(*ends, 6, torch.cat([torch.full((6,), 10.0), torch.ones(5)]), drop_self_loops=False)
    with pytest.raises(GpuRagError, match="within 200; raise max_iter"):
        personalized_pagerank(loops, ragged([[0]]), damping=0.99, solver="sor")
    found = [
        personalized_pagerank(loops, ragged([[0]]), damping=0.99, max_iter=most, solver=solver)
        for most, solver in ((2000, "sor"), (200, "chebyshev"))
    ]
    assert (found[0] - found[1]).abs().sum() < 3e-6
