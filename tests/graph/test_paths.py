"""Path search against networkx: all simple paths, filtered by the rules as they are written in the module."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from path_rules import all_paths, holds, nodes_kept
from ragged_lists import listed, ragged
from refusals import refusals

from gpu_rag.graph import paths
from gpu_rag.graph import ragged as ragged_module
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import induced_subgraphs
from gpu_rag.graph.paths import (
    Ends,
    PathGraph,
    PathSet,
    Window,
    chain_paths,
    expand_paths,
    nodes_on_paths,
    path_graph,
    path_parts,
    search_paths,
    start_paths,
)
from gpu_rag.types import CSR, Ragged

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
Edges = list[tuple[int, int]]
IMPLEMENTATIONS = ("numba", "torch")


@dataclass(frozen=True)
class Ask:
    """One question: its topics in order, which ends are open, and the window (least, longest]."""

    topics: list[int]
    opens: bool
    closes: bool
    least: int
    longest: int


Found = list[list[list[int]]]
Search = Callable[[PathGraph, list[Ask], int], Found]


def graph_of(edges: Edges, n: int) -> PathGraph:
    ends = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return path_graph(csr_from_edges(ends[0], ends[1], n, drop_self_loops=False))


def inputs(asks: list[Ask]) -> tuple[Ragged, Ends, Window]:
    flags = Ends(torch.tensor([a.opens for a in asks]).bool(), torch.tensor([a.closes for a in asks]).bool())
    window = Window(torch.tensor([a.least for a in asks]).long(), torch.tensor([a.longest for a in asks]).long())
    return ragged([a.topics for a in asks]), flags, window


def paths_of(found: PathSet, batch: int) -> Found:
    rows = [[node for node in row if node >= 0] for row in found.nodes.tolist()]
    return [[row for row, b in zip(rows, found.question.tolist()) if b == q] for q in range(batch)]


def search(graph: PathGraph, asks: list[Ask], depth: int, implementation: str = "auto", threads: int = 1) -> Found:
    topics, ends, window = inputs(asks)
    found = search_paths(graph, topics, depth, ends, window, implementation=implementation, threads=threads)
    assert found.nodes.dtype == found.edges.dtype == torch.int32 and torch.equal(found.group, found.question)
    check_edges(graph, found)
    return paths_of(found, len(asks))


def check_edges(graph: PathGraph, found: PathSet) -> None:
    """Edge numbers name the pairs of nodes, in the order of (smaller, larger)."""
    rows = torch.repeat_interleave(torch.arange(graph.n), graph.csr.indptr.diff()).tolist()
    pairs = sorted({(min(p), max(p)) for p in zip(rows, graph.csr.indices.tolist()) if p[0] != p[1]})
    for nodes, edges in zip(found.nodes.tolist(), found.edges.tolist()):
        wanted = [pairs.index((min(p), max(p))) if min(p) >= 0 else -1 for p in itertools.pairwise(nodes)]
        assert edges == wanted


def check(searched: Search, edges: Edges, n: int, asks: list[Ask], depth: int) -> None:
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(n))
    every = all_paths(graph, max([a.longest for a in asks], default=0))
    wanted = [
        [path for path in every if a.topics and holds(path, a.topics, a.opens, a.closes, (a.least, a.longest), depth)]
        for a in asks
    ]
    assert searched(graph_of(edges, n), asks, depth) == wanted


@st.composite
def cases(draw: st.DrawFn) -> tuple[Edges, int, list[Ask], int]:
    n = draw(st.integers(1, 7))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=14))
    ask = st.builds(
        Ask,
        st.lists(node, max_size=4, unique=True),
        st.booleans(),
        st.booleans(),
        st.integers(-1, 3),
        st.integers(0, 6),
    )
    return edges, n, draw(st.lists(ask, max_size=4)), draw(st.integers(1, 3))


@QUICK
@given(cases())
def test_all_paths(case: tuple[Edges, int, list[Ask], int]) -> None:
    for implementation in IMPLEMENTATIONS:
        check(lambda *a, i=implementation: search(*a, implementation=i), *case)


def large(seed: int, n: int = 24) -> tuple[Edges, int, list[Ask], int]:
    r = np.random.default_rng(seed)
    edges = list(zip((n * r.random(40) ** 2).astype(int).tolist(), r.integers(0, n, 40).tolist()))
    asks = [
        Ask(r.permutation(n)[: r.integers(1, 4)].tolist(), bool(r.integers(2)), bool(r.integers(2)), 0, 5)
        for _ in range(30)
    ]
    return edges, n, asks, 2


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_many_questions_in_small_pieces(implementation: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_PATHS", 7)
    monkeypatch.setattr(ragged_module, "EXPAND_AT_ONCE", 40)
    case = large(0)
    check(lambda *a: search(*a, implementation=implementation, threads=threads), *case)
    assert sum(map(len, search(graph_of(case[0], case[1]), case[2], case[3]))) > 300, "the case says something"


HOUSE: Edges = [(0, 1), (1, 2), (2, 3), (3, 0), (2, 4), (3, 4)]
"""A square 0 1 2 3 with a roof 4 over 2 and 3; node 5 is alone."""


def walks(graph: PathGraph, asks: list[Ask], depth: int) -> Found:
    """Follows edges in one direction only."""
    rows = torch.repeat_interleave(torch.arange(graph.n), graph.csr.indptr.diff())
    kept = rows < graph.csr.indices
    indptr = torch.searchsorted(rows[kept], torch.arange(graph.n + 1))
    return search(PathGraph(CSR(indptr, graph.csr.indices[kept]), graph.edge[kept]), asks, depth)


def through_topics(graph: PathGraph, asks: list[Ask], depth: int) -> Found:
    """Segments found alone, one after the other, without looking at one another."""
    found: Found = []
    for a in asks:
        rows = [[t] for t in a.topics[:1]]
        for pair in itertools.pairwise(a.topics):
            (more,) = search(graph, [Ask(list(pair), False, False, 0, 2 * depth)], depth)
            rows = [r + m[1:] for r in rows for m in more]
        found.append(sorted(r for r in rows if a.least < len(r) - 1 <= a.longest))
    return found


def from_one_side(graph: PathGraph, asks: list[Ask], depth: int) -> Found:
    """Only segments of at most D hops."""
    halves = [Ask(a.topics, a.opens, a.closes, a.least, min(a.longest, depth)) for a in asks]
    return search(graph, halves, depth)


def window_with_its_lower_end(graph: PathGraph, asks: list[Ask], depth: int) -> Found:
    return search(graph, [Ask(a.topics, a.opens, a.closes, a.least - 1, a.longest) for a in asks], depth)


def any_order(graph: PathGraph, asks: list[Ask], depth: int) -> Found:
    turned = [search(graph, [Ask(a.topics[::-1], a.closes, a.opens, a.least, a.longest)], depth)[0] for a in asks]
    return [sorted([*here, *there]) for here, there in zip(search(graph, asks, depth), turned)]


def ends_stay_closed(graph: PathGraph, asks: list[Ask], depth: int) -> Found:
    return search(graph, [Ask(a.topics, False, False, a.least, a.longest) for a in asks], depth)


WRONG = [walks, through_topics, from_one_side, window_with_its_lower_end, any_order, ends_stay_closed]


@pytest.mark.parametrize("wrong", WRONG)
def test_checks_catch(wrong: Search) -> None:
    asks = [
        Ask([4, 0], False, False, 1, 4), Ask([0, 3, 4], False, False, 2, 9), Ask([1, 0], False, True, 1, 3),
        Ask([0, 2, 1], False, False, 0, 9),
    ]  # fmt: skip
    check(search, HOUSE, 6, asks, 2)
    with pytest.raises(AssertionError):
        check(wrong, HOUSE, 6, asks, 2)


GRAPH, TOPICS = graph_of(HOUSE, 6), ragged([[0, 4]])
START = start_paths(GRAPH, TOPICS)
CLOSED, WINDOW = inputs([Ask([0, 4], False, False, 0, 4)])[1:]
PARTS = path_parts(GRAPH, TOPICS, [START, expand_paths(GRAPH, START, TOPICS)], CLOSED)
ZERO = torch.zeros(1, dtype=torch.int64)
ARROW = csr_from_edges(torch.tensor([0]), torch.tensor([1]), 2, undirected=False)


test_bad_input_says_what = refusals(
    [
        ("not symmetric", lambda: path_graph(ARROW)),
        ("one of the topics is no node", lambda: start_paths(GRAPH, ragged([[6]]))),
        ("stands twice in its order; given node 4 in question 1", lambda: start_paths(GRAPH, ragged([[4], [4, 0, 4]]))),
        ("no question", lambda: expand_paths(GRAPH, start_paths(GRAPH, ragged([[0], [1]])), TOPICS)),
        ("too many paths; given 4 at the end", lambda: expand_paths(GRAPH, START, TOPICS, max_paths=3)),
        ("hops are not in order", lambda: path_parts(GRAPH, TOPICS, [START, START], CLOSED)),
        ("at most 22 hops", lambda: chain_paths(None, PARTS, TOPICS, 0, CLOSED, Window(ZERO, ZERO + 23))),
    ]
)  # fmt: skip


Case = tuple[Edges, int, list[list[int]], list[bool], list[bool], int]
Reduce = Callable[[PathGraph, Ragged, int, Ends], Ragged]


def check_nodes(reduce: Reduce, case: Case) -> None:
    edges, n, orders, opens, closes, depth = case
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(n))
    found = reduce(
        graph_of(edges, n), ragged(orders), depth, Ends(torch.tensor(opens).bool(), torch.tensor(closes).bool())
    )
    assert found.values.dtype == torch.int32
    assert listed(found) == [nodes_kept(graph, *each, depth) for each in zip(orders, opens, closes)]


@st.composite
def cases_nodes(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=12))
    orders = draw(st.lists(st.lists(node, max_size=3, unique=True), max_size=3))
    flags = st.lists(st.booleans(), min_size=len(orders), max_size=len(orders))
    return edges, n, orders, draw(flags), draw(flags), draw(st.integers(1, 2))


@QUICK
@given(cases_nodes())
def test_is_the_rule_and_loses_no_path(case: Case) -> None:
    for implementation in ("numba", "torch"):
        check_nodes(lambda *a, i=implementation: nodes_on_paths(*a, implementation=i), case)
    edges, n, orders, opens, closes, depth = case
    graph, topics = graph_of(edges, n), ragged(orders)
    ends = Ends(torch.tensor(opens).bool(), torch.tensor(closes).bool())
    window = Window(torch.full((len(orders),), -1), torch.full((len(orders),), 8))
    whole = search_paths(graph, topics, depth, ends, window)
    nodes = nodes_on_paths(graph, topics, depth, ends)
    blocks = induced_subgraphs(graph.csr, nodes)
    local = Ragged(
        torch.tensor(
            [
                int(nodes.offsets[b]) + row.index(topic)
                for b, (row, order) in enumerate(zip(listed(nodes), orders))
                for topic in order
            ],
            dtype=torch.int64,
        ),
        topics.offsets,
    )
    reduced = search_paths(path_graph(blocks.csr), local, depth, ends, window)
    names = torch.cat([blocks.global_ids, torch.tensor([-1], dtype=torch.int32)])  # -1 stays -1
    assert torch.equal(names[reduced.nodes.long()], whole.nodes) and torch.equal(reduced.question, whole.question)


EXAMPLE: Case = (
    [(0, 1), (1, 2), (2, 3), (1, 4), (4, 5)],
    7,
    [[0, 2], [0, 2], [6]],
    [False] * 3,
    [False, True, False],
    1,
)


def balls_of_all(graph: PathGraph, topics: Ragged, depth: int, ends: Ends) -> Ragged:
    everywhere = torch.ones_like(ends.first)
    return nodes_on_paths(graph, topics, depth, Ends(everywhere, everywhere))


def one_hop_more(graph: PathGraph, topics: Ragged, depth: int, ends: Ends) -> Ragged:
    return nodes_on_paths(graph, topics, depth + 1, ends)


def turned(graph: PathGraph, topics: Ragged, depth: int, ends: Ends) -> Ragged:
    return nodes_on_paths(graph, topics, depth, Ends(ends.last, ends.first))


@pytest.mark.parametrize("wrong", [balls_of_all, one_hop_more, turned])
def test_checks_of_nodes_catch(wrong: Reduce) -> None:
    check_nodes(nodes_on_paths, EXAMPLE)
    with pytest.raises(AssertionError):
        check_nodes(wrong, EXAMPLE)
