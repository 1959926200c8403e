"""Inputs at the edge of what the graph ops take, and calls that ask for more memory, threads, results or digits than
there are: a clear error before any work, or the right answer."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from ragged_lists import ragged

from gpu_rag.errors import BadInput, GpuRagError
from gpu_rag.graph import memory as room
from gpu_rag.graph.bubble import bubble_expansion
from gpu_rag.graph.cluster import radius_clusters
from gpu_rag.graph.components import connected_components
from gpu_rag.graph.csr import check_range, csr_from_edges
from gpu_rag.graph.ego import ego_balls, induced_subgraphs, pull_of
from gpu_rag.graph.frontier import FrontierQuery, described, frontier_topk, hop_edges, score_lists
from gpu_rag.graph.fuse import rrf
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.nearest import nearest, topk_rows
from gpu_rag.graph.pagerank import personalized_pagerank
from gpu_rag.graph.paths import expand_paths, path_graph, start_paths
from gpu_rag.graph.paths.scores import score_paths
from gpu_rag.graph.reach import reachable, typed_graph
from gpu_rag.types import CSR, Ragged, TopK

HUGE = 2**61
BOTH = pytest.mark.parametrize("implementation", ["numba", "torch"])
PATH = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 4)  # 0 - 1 - 2, and 3 alone


def unit(n: int, dims: int = 8) -> torch.Tensor:
    rows = torch.randn(n, dims, generator=torch.Generator().manual_seed(n))
    return torch.nn.functional.normalize(rows, dim=1)


HOPS = torch.tensor([0, 1, 2]), torch.tensor([1, 0]).int(), torch.tensor([0, 1]).int(), unit(2), ragged([[0], [1]])


@pytest.mark.parametrize("weight", [torch.tensor([3e38, 3e38]), torch.tensor([1e300, 1.0], dtype=torch.float64)])
def test_sums_of_weights_beyond_f32_are_refused(weight: torch.Tensor) -> None:
    with pytest.raises(BadInput, match="too large"):
        csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 0]), 2, weight)


@pytest.mark.parametrize("column", [-5, 2, 10**9])
def test_components_refuse_columns_that_are_no_nodes(column: int) -> None:
    broken = CSR(torch.tensor([0, 1, 2]), torch.tensor([1, column], dtype=torch.int32))
    with pytest.raises(BadInput, match="is no node"):
        connected_components(broken)


def test_graphs_that_share_columns_are_turned_each_for_itself() -> None:
    columns = torch.tensor([0, 1], dtype=torch.int32)
    first, second = CSR(torch.tensor([0, 2, 2]), columns), CSR(torch.tensor([0, 0, 2]), columns)
    assert pull_of(first).indices.tolist() == [0, 0]
    assert pull_of(second).indices.tolist() == [1, 1]
    assert pull_of(second) is pull_of(second)


@pytest.mark.parametrize("n", [3, 2**31 - 1, 2**31, 2**32, 2**40, 2**63, 2**70])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_nodes_below_any_number_are_nodes(n: int, dtype: torch.dtype) -> None:
    """Compared with a number beyond its dtype, torch would take that number around."""
    check_range(torch.tensor([0, 1, 2], dtype=dtype), n, "it")
    with pytest.raises(BadInput, match="it is no node; given -1 at position 1"):
        check_range(torch.tensor([0, -1], dtype=dtype), n, "it")
    most = torch.iinfo(dtype).max
    if n <= most:
        with pytest.raises(BadInput, match=f"given {most} at position 0"):
            check_range(torch.tensor([most], dtype=dtype), n, "it")


@BOTH
@pytest.mark.parametrize("batch", [1, 6])  # searched one by one, and as words
def test_a_radius_beyond_the_graph_ends_with_it(implementation: str, batch: int) -> None:
    seeds = ragged([[0]] * batch)
    found = ego_balls(PATH, seeds, 10**30, implementation=implementation)
    assert found.values.tolist() == [0, 1, 2] * batch


@pytest.mark.parametrize("implementation", ["numba", "torch"])
def test_restart_weights_without_a_finite_sum_are_refused(implementation: str) -> None:
    large = torch.full((1, 4), 1e308, dtype=torch.float64)
    with pytest.raises(BadInput, match="values of the prior of a row are too large"):
        personalized_pagerank(PATH, prior=large, implementation=implementation)
    with pytest.raises(BadInput, match="seed weights of a row are too large"):
        weights = Ragged(large[0, :2], torch.tensor([0, 2]))
        personalized_pagerank(PATH, ragged([[0, 1]]), weights, implementation=implementation)


@BOTH
@pytest.mark.parametrize("min_samples", [50, 10**12, 2**63])
def test_more_samples_than_rows_are_noise(implementation: str, min_samples: int) -> None:
    assert radius_clusters(unit(30), 2.0, 30, implementation=implementation).eq(0).all()
    assert radius_clusters(unit(30), 2.0, min_samples, implementation=implementation).eq(-1).all()


def test_rankings_of_other_ids_are_refused() -> None:
    scores = torch.zeros(1, 2)
    for ids, what in ((torch.tensor([[2**33 + 1, 5]]), "too large"), (torch.tensor([[1.7, 5.0]]), "not integers")):
        with pytest.raises(BadInput, match=what):
            rrf([TopK(ids, scores)], 2, constants=[60])


SMALL = [[1, 2], [2], [0], [1], [], [0, 1, 2]]


def test_keywords_that_no_edge_has_only_count() -> None:
    """Any number may be a keyword of a question; keys row * width + number of a huge one would wrap around."""
    vectors, lists = unit(9), ragged([list(range(6))] * 9)
    things = described(unit(6), ragged(SMALL), 3)
    rows = torch.arange(6, dtype=torch.int32)
    edges = hop_edges(torch.tensor([0, 3, 6]), rows % 2, rows, things.vectors, things.keywords, 3)
    found = []
    for least in (3, HUGE):
        asked = FrontierQuery(vectors, ragged([[1, 2, least + b] for b in range(9)]))
        for by in ("numba", "torch"):
            best = frontier_topk(asked, edges, ragged([[0, 1]] * 9), 2, implementation=by)
            scores = score_lists(asked, things, lists, implementation=by)
            found.append(torch.cat([scores, best.ids.flatten().float(), best.scores.flatten()]))
    assert all(torch.equal(found[0], other) for other in found[1:])


@BOTH
@pytest.mark.parametrize("far", [-1, HUGE])
def test_topics_that_are_no_nodes_are_on_no_path(implementation: str, far: int) -> None:
    graph, starts = path_graph(PATH), ragged([[1]] * 9)
    paths = start_paths(graph, starts)
    topics = ragged([[1, far, 3] for _ in range(9)])
    _, scores = score_paths(paths, unit(9), unit(2), topics, implementation=implementation)
    assert scores.tolist() == [0.3 * (1 / 3)] * 9


@BOTH
def test_paths_that_leave_the_graph_are_refused(implementation: str) -> None:
    graph, topics = path_graph(PATH), ragged([[0, 2]])
    paths = start_paths(graph, topics)
    beyond = replace(paths, nodes=paths.nodes + 3)
    with pytest.raises(BadInput, match="a path leaves the graph; given node 5; expected < 4"):
        expand_paths(graph, beyond, topics, implementation=implementation)


ENDS = torch.tensor([0])
ASKED = FrontierQuery(unit(2), ragged([[0], []]))
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
    "balls": lambda: ego_balls(PATH, ragged([[0]]), 1, implementation="numba"),
    "clusters": lambda: radius_clusters(unit(3), 0.5),
    "neighbours": lambda: nearest(unit(3), unit(3), 2),
    "edges of a frontier": lambda: frontier_topk(ASKED, EDGES, ragged([[0], [1]]), 2),
    "keywords of edges": lambda: hop_edges(*HOPS, 2),
    "fused rankings": lambda: rrf([TopK(torch.tensor([[0, 1], [1, 0]]), torch.zeros(2, 2))], 2, constants=[60]),
    "components": lambda: connected_components(PATH),
    "the best of rows": lambda: topk_rows(torch.zeros(2, 3), 5),
    "subgraphs": lambda: induced_subgraphs(PATH, ragged([[0, 1]]), implementation="numba"),
    "subgraphs by torch": lambda: induced_subgraphs(PATH, ragged([[0, 1]]), implementation="torch"),
    "PageRank of blocks": lambda: blocks_pagerank(BLOCKS, ragged([[0], []])),
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


def test_rooms_are_those_of_the_largest_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state for every question would be too much, one at a time is not."""
    monkeypatch.setattr(room, "LOOK_FROM", 0)
    needed = []
    monkeypatch.setattr(room, "free_bytes", lambda device: needed.append(0) or 3000)
    many = induced_subgraphs(PATH, ragged([[0, 1, 2]] * 30), implementation="torch")
    anchors = ragged([[0, 2]] * 30)
    bubble_expansion(many, torch.ones(90).int(), anchors, ragged([[0, 1]] * 30), implementation="numba")
    assert needed


def test_more_than_any_machine_has_is_refused() -> None:
    with pytest.raises(BadInput, match="not enough memory"):
        room.check_memory(2**60, torch.device("cpu"), "a graph", "split it")
    assert 2**20 < room.free_bytes(torch.device("cpu")) < 2**60


THREADED: dict[str, Callable[..., object]] = {
    "personalized_pagerank": lambda **some: personalized_pagerank(PATH, ragged([[0]]), **some),
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
    for call in (lambda batch: topk_rows(torch.zeros(batch, 3), k), lambda batch: nearest(unit(4)[:batch], unit(4), k)):
        for batch in (0, 2):
            with pytest.raises(BadInput, match=f"k={k}"):
                call(batch)
    with pytest.raises(BadInput, match="not enough memory"):
        topk_rows(torch.zeros(2**12, 1), 2**31 - 1)


@pytest.mark.parametrize("op", ["pagerank", "blocks"])
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
            blocks_pagerank(blocks, seeds, damping=0.9999, tol=tol, max_iter=max_iter)

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
        personalized_pagerank(loops, ragged([[0]]), damping=0.99, implementation="numba")
    found = [
        personalized_pagerank(loops, ragged([[0]]), damping=0.99, max_iter=most, implementation=name)
        for most, name in ((2000, "numba"), (200, "torch"))
    ]
    assert (found[0] - found[1]).abs().sum() < 3e-6
