"""Balls and induced subgraphs against networkx, limits against sorting by (hop, node)."""

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import listed, ragged
from refusals import caught, refusals

from gpu_rag.errors import BadInput
from gpu_rag.graph import ego
from gpu_rag.graph import ragged as ragged_module
from gpu_rag.graph.csr import check_csr, csr_from_edges, is_symmetric
from gpu_rag.graph.ego import balls_by_words, checked, ego_balls, induced_subgraphs
from gpu_rag.types import CSR, Blocks, Ragged

Balls = Callable[..., Ragged]
Induce = Callable[..., Blocks]
QUICK = settings(max_examples=40, deadline=None, derandomize=True)
IMPLEMENTATIONS = ["numba", "torch"]


def graph_of(n: int, pairs: list[tuple[int, int]], *, undirected: bool = True, weighted: bool = False) -> CSR:
    ends = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    weight = torch.arange(1, len(pairs) + 1).float() if weighted else None
    return csr_from_edges(ends[:, 0], ends[:, 1], n, weight, undirected=undirected)


def to_networkx(csr: CSR) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(csr.n))
    tails = np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy())).tolist()
    weight = [1.0] * csr.m if csr.weight is None else csr.weight.tolist()
    graph.add_weighted_edges_from(zip(tails, csr.indices.tolist(), weight))
    return graph


def expected_ball(graph: nx.DiGraph, seeds: list[int], radius: int, limit: int | None, allowed: set[int]) -> list[int]:
    """Hops by networkx from a source before all seeds, without the edges into nodes that are not allowed."""
    walked = nx.DiGraph((a, b) for a, b in graph.edges if b in allowed and b not in seeds)
    walked.add_edges_from(("source", s) for s in seeds)
    hops = nx.single_source_shortest_path_length(walked, "source", radius + 1) if seeds else {}
    ball = sorted((hop, v) for v, hop in hops.items() if v != "source")
    return sorted(v for _, v in ball[:limit])


def check_balls(
    balls: Balls, csr: CSR, seeds: list[list[int]], radius: int, limit: int | None = None, **ranges: Any
) -> None:
    found = balls(csr, ragged(seeds), radius, limit=limit, **ranges)
    assert found.values.dtype == torch.int32 and found.offsets.dtype == torch.int64
    inside = set(range(csr.n)) if ranges.get("include") is None else set()
    inside |= {v for lo, hi in ranges.get("include") or () for v in range(lo, hi)}
    graph = to_networkx(csr)
    assert listed(found) == [expected_ball(graph, row, radius, limit, inside) for row in seeds]


@st.composite
def cases(draw: st.DrawFn) -> tuple[CSR, list[list[int]]]:
    n = draw(st.integers(1, 14))
    nodes = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(nodes, nodes), max_size=22))
    seeds = draw(st.lists(st.lists(nodes, max_size=3), max_size=5))
    return graph_of(n, pairs, undirected=draw(st.booleans()), weighted=draw(st.booleans())), seeds


@QUICK
@given(cases(), st.integers(0, 4), st.none() | st.integers(0, 6), st.data())
def test_balls(case: tuple[CSR, list[list[int]]], radius: int, limit: int | None, data: st.DataObject) -> None:
    csr, seeds = case
    ranges = st.lists(
        st.tuples(st.integers(0, csr.n), st.integers(0, csr.n)).map(lambda r: (min(r), max(r))), max_size=2
    )
    include = data.draw(st.none() | ranges)
    for name in IMPLEMENTATIONS:

        def balls(*a: Any, name: str = name, **k: Any) -> Ragged:
            return ego_balls(*a, implementation=name, **k)

        check_balls(balls, csr, seeds, radius, limit, include=include)


def large(seed: int, n: int = 600, m: int = 900) -> tuple[CSR, list[list[int]]]:
    """More questions than two words hold, with hubs, isolated nodes and empty seed sets."""
    r = np.random.default_rng(seed)
    ends = np.stack([(n * r.random(m) ** 3).astype(int), r.integers(0, n, m)], 1)
    return graph_of(n, [(int(a), int(b)) for a, b in ends]), [
        r.integers(0, n, k).tolist() for k in r.integers(0, 4, 150)
    ]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("limit", [None, 25])
def test_many_questions(limit: int | None, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged_module, "EXPAND_AT_ONCE", 50)
    csr, seeds = large(0)
    found = ego_balls(csr, ragged(seeds), 2, limit=limit, threads=threads)
    other = ego_balls(checked(csr), ragged(seeds, torch.int32), 2, limit=limit, implementation="torch")
    assert torch.equal(found.values, other.values) and torch.equal(found.offsets, other.offsets)
    check_balls(lambda *_, **__: found, csr, seeds, 2, limit)
    for b in (0, 63, 64, 149):
        assert listed(ego_balls(csr, ragged([seeds[b]]), 2, limit=limit)) == [listed(found)[b]], "alone as in a batch"


PATH = graph_of(5, [(0, 1), (1, 2), (2, 3), (3, 4)])


def one_hop_short(csr: CSR, seeds: Ragged, radius: int, **options: Any) -> Ragged:
    return ego_balls(csr, seeds, radius - 1, **options)


def limit_by_id(csr: CSR, seeds: Ragged, radius: int, *, limit: int | None, **options: Any) -> Ragged:
    return ragged([row[:limit] for row in listed(ego_balls(csr, seeds, radius, **options))], torch.int32)


def walks_through(csr: CSR, seeds: Ragged, radius: int, *, limit: int | None, include: Any) -> Ragged:
    """Leaves out what is not included only from the answer."""
    inside = {v for lo, hi in include for v in range(lo, hi)}
    rows = listed(ego_balls(csr, seeds, radius, limit=limit))
    kept = [[v for v in row if v in inside or v in own] for row, own in zip(rows, listed(seeds))]
    return ragged(kept, torch.int32)


def against_the_edges(csr: CSR, seeds: Ragged, radius: int, **options: Any) -> Ragged:
    both = csr_from_edges(*torch.tensor([(0, 1), (1, 2), (2, 3)]).T, 5)
    return ego_balls(both, seeds, radius, **options)


ARROWS = graph_of(5, [(0, 1), (1, 2), (2, 3)], undirected=False)
STAR = graph_of(6, [(5, 4), (4, 0), (4, 1), (5, 3)])
WRONG: list[tuple[Balls, CSR, list[list[int]], int, dict[str, Any]]] = [
    (one_hop_short, PATH, [[0]], 2, {}),
    (limit_by_id, STAR, [[5]], 2, {"limit": 3}),
    (walks_through, PATH, [[0]], 3, {"include": [(0, 1), (2, 5)]}),
    (against_the_edges, ARROWS, [[2]], 2, {}),
]


@pytest.mark.parametrize(("wrong", "csr", "seeds", "radius", "options"), WRONG)
def test_ball_checks_catch(
    wrong: Balls, csr: CSR, seeds: list[list[int]], radius: int, options: dict[str, Any]
) -> None:
    check_balls(ego_balls, csr, seeds, radius, **options)
    with pytest.raises(AssertionError):
        check_balls(wrong, csr, seeds, radius, **options)


def check_blocks(induce: Induce, csr: CSR, nodes: list[list[int]]) -> None:
    blocks = induce(csr, ragged(nodes))
    check_csr(blocks.csr)
    assert blocks.global_ids.dtype == torch.int32 and blocks.csr.n == len(blocks.global_ids)
    assert listed(Ragged(blocks.global_ids, blocks.offsets)) == nodes
    assert (blocks.csr.weight is None) == (csr.weight is None)
    graph, found = to_networkx(csr), to_networkx(blocks.csr)
    starts = blocks.offsets.tolist()
    expected = {
        (starts[b] + row.index(u), starts[b] + row.index(v)): graph.edges[u, v]["weight"]
        for b, row in enumerate(nodes)
        for u, v in graph.subgraph(row).edges
    }
    assert {(u, v): d["weight"] for u, v, d in found.edges(data=True)} == expected


@QUICK
@given(cases(), st.data())
def test_blocks(case: tuple[CSR, list[list[int]]], data: st.DataObject) -> None:
    csr, _ = case
    subsets = st.sets(st.integers(0, csr.n - 1), max_size=8).map(sorted)
    nodes = data.draw(st.lists(subsets, max_size=4))
    for name in IMPLEMENTATIONS:
        check_blocks(lambda *a, name=name, **k: induced_subgraphs(*a, implementation=name, **k), csr, nodes)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_blocks_of_balls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged_module, "EXPAND_AT_ONCE", 50)
    monkeypatch.setattr(ego, "READ_AT_ONCE", 300)
    csr, seeds = large(1, 120, 200)
    balls = ego_balls(csr, ragged(seeds[:40]), 2, limit=30)
    check_blocks(lambda c, _, **k: induced_subgraphs(c, balls, implementation=name, **k), csr, listed(balls))
    assert is_symmetric(induced_subgraphs(csr, balls, implementation=name).csr)


def across_blocks(csr: CSR, nodes: Ragged) -> Blocks:
    """Joins a node with its neighbours in every block."""
    blocks = induced_subgraphs(csr, nodes)
    ids = blocks.global_ids.tolist()
    graph = to_networkx(csr)
    pairs = [(i, j) for i, u in enumerate(ids) for j, v in enumerate(ids) if graph.has_edge(u, v)]
    return Blocks(graph_of(len(ids), pairs, undirected=False), blocks.offsets, blocks.global_ids)


def global_columns(csr: CSR, nodes: Ragged) -> Blocks:
    blocks = induced_subgraphs(csr, nodes)
    indices = blocks.global_ids[blocks.csr.indices.long()]
    return Blocks(CSR(blocks.csr.indptr, indices, blocks.csr.weight), blocks.offsets, blocks.global_ids)


@pytest.mark.parametrize("wrong", [across_blocks, global_columns])
def test_block_checks_catch(wrong: Induce) -> None:
    nodes = [[0, 1, 3], [1, 2, 3]]
    check_blocks(induced_subgraphs, PATH, nodes)
    with pytest.raises((AssertionError, BadInput)):
        check_blocks(wrong, PATH, nodes)


BROKEN = CSR(torch.tensor([0, 1]), torch.tensor([5], dtype=torch.int32))


test_bad_input_says_what = refusals(
    [
        ("a column index", lambda: ego_balls(BROKEN, ragged([[0]]), 1)),
        ("one of the seeds is no node; given 5", lambda: ego_balls(PATH, ragged([[5]]), 1)),
        ("range of nodes", lambda: ego_balls(PATH, ragged([[0]]), 1, include=[(0, 6)])),
        ("nodes are not in order; given 3 before 1 in row 1", lambda: induced_subgraphs(PATH, ragged([[4], [3, 1]]))),
    ]
)


WordBalls = Callable[[CSR, Ragged, int, torch.Tensor | None], Ragged]


def same(one: Ragged, other: Ragged) -> None:
    assert one.values.dtype == other.values.dtype == torch.int32
    assert torch.equal(one.values, other.values) and torch.equal(one.offsets, other.offsets)


def check(balls: WordBalls, csr: CSR, seeds: Ragged, radius: int, lo: int) -> None:
    allowed = torch.arange(csr.n) >= lo
    same(balls(csr, seeds, radius, None), ego_balls(csr, seeds, radius))
    same(balls(csr, seeds, radius, allowed), ego_balls(csr, seeds, radius, include=[(lo, csr.n)]))


@st.composite
def word_cases(draw: st.DrawFn) -> tuple[CSR, Ragged, int, int]:
    n = draw(st.integers(1, 9))
    node = st.integers(0, n - 1)
    edges = torch.tensor(draw(st.lists(st.tuples(node, node), max_size=20)), dtype=torch.int64).reshape(-1, 2).T
    csr = csr_from_edges(edges[0], edges[1], n, undirected=draw(st.booleans()), drop_self_loops=False)
    seeds = draw(st.lists(st.lists(node, max_size=3), max_size=5))
    return csr, ragged(seeds), draw(st.integers(0, 4)), draw(st.integers(0, n))


@QUICK
@given(word_cases())
def test_the_same_balls(case: tuple[CSR, Ragged, int, int]) -> None:
    check(balls_by_words, *case)


def many_words() -> tuple[CSR, Ragged, int, int]:
    r = np.random.default_rng(0)
    ends = torch.from_numpy(r.integers(0, 200, (2, 400)))
    seeds = ragged([r.integers(0, 200, k).tolist() for k in r.integers(0, 4, 330)])
    return csr_from_edges(ends[0], ends[1], 200, undirected=False), seeds, 3, 40


def test_many_questions_fill_words_and_tiles() -> None:
    assert many_words()[1].batch > ego.TILE
    check(balls_by_words, *many_words())


def against_the_entries(csr: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
    return balls_by_words(ego.pull_of(csr), seeds, radius, allowed)


def one_hop_less(csr: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
    return balls_by_words(csr, seeds, radius - 1, allowed)


def through_everything(csr: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
    return balls_by_words(csr, seeds, radius, None)


test_checks_catch = caught([against_the_entries, one_hop_less, through_everything], check, *many_words())


def test_a_gpu_with_triton_is_asked_for_words(monkeypatch: pytest.MonkeyPatch) -> None:
    csr, seeds, radius, _ = many_words()
    asked: list[int] = []

    def spy(graph: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
        asked.append(radius)
        return balls_by_words(graph, seeds, radius, allowed)

    monkeypatch.setattr(ego, "balls_by_words", spy)
    ego_balls(csr, seeds, radius, implementation="torch")
    assert asked == []
    by = {"loops": "triton", "ops": "torch"}
    monkeypatch.setattr(ego, "pick_implementation", lambda *given, family="ops": by[family])
    same(ego_balls(csr, seeds, radius, implementation="torch"), balls_by_words(csr, seeds, radius, None))
    assert asked == [radius]
    ego_balls(csr, seeds, radius, limit=3, implementation="torch")
    assert asked == [radius], "a limit needs the hops in order"
