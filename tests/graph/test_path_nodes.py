"""The reduction before path search: distances of networkx, and no path is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import induced_subgraphs
from gpu_rag.graph.paths import Ends, PathGraph, Window, nodes_on_paths, path_graph, search_paths
from gpu_rag.types import Ragged

QUICK = settings(max_examples=25, deadline=None, derandomize=True)
Edges = list[tuple[int, int]]
Case = tuple[Edges, int, list[list[int]], list[bool], list[bool], int]
Reduce = Callable[[PathGraph, Ragged, int, Ends], Ragged]


def listed(lists: Ragged) -> list[list[int]]:
    return [lists.values[a:b].tolist() for a, b in zip(lists.offsets[:-1], lists.offsets[1:])]


def graph_of(edges: Edges, n: int) -> PathGraph:
    ends = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return path_graph(csr_from_edges(ends[0], ends[1], n))


def kept(distance: dict[int, dict[int, int]], order: list[int], opens: bool, closes: bool, depth: int) -> list[int]:
    """The rule, node by node."""
    closes = closes or (len(order) == 1 and not opens)
    sides = order[:1] * opens + order[-1:] * closes
    far = 10**6

    def holds(v: int) -> bool:
        pairs = itertools.pairwise(order)
        between = any(distance[a].get(v, far) + distance[b].get(v, far) <= 2 * depth for a, b in pairs)
        return v in order or between or any(distance[a].get(v, far) <= depth for a in sides)

    return [v for v in sorted(distance) if holds(v)]


def check(reduce: Reduce, case: Case) -> None:
    edges, n, orders, opens, closes, depth = case
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(n))
    distance = dict(nx.all_pairs_shortest_path_length(graph))
    found = reduce(
        graph_of(edges, n), ragged(orders), depth, Ends(torch.tensor(opens).bool(), torch.tensor(closes).bool())
    )
    assert found.values.dtype == torch.int32
    assert listed(found) == [kept(distance, *each, depth) for each in zip(orders, opens, closes)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=12))
    orders = draw(st.lists(st.lists(node, max_size=3, unique=True), max_size=3))
    flags = st.lists(st.booleans(), min_size=len(orders), max_size=len(orders))
    return edges, n, orders, draw(flags), draw(flags), draw(st.integers(1, 2))


@QUICK
@given(cases())
def test_is_the_rule_and_loses_no_path(case: Case) -> None:
    for implementation in ("numba", "torch"):
        check(lambda *a, i=implementation: nodes_on_paths(*a, implementation=i), case)
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


def test_by_hand() -> None:
    edges, n, orders, opens, closes, depth = EXAMPLE
    ends = Ends(torch.tensor(opens), torch.tensor(closes))
    assert listed(nodes_on_paths(graph_of(edges, n), ragged(orders), depth, ends)) == [[0, 1, 2], [0, 1, 2, 3], [6]]


def balls_of_all(graph: PathGraph, topics: Ragged, depth: int, ends: Ends) -> Ragged:
    everywhere = torch.ones_like(ends.first)
    return nodes_on_paths(graph, topics, depth, Ends(everywhere, everywhere))


def one_hop_more(graph: PathGraph, topics: Ragged, depth: int, ends: Ends) -> Ragged:
    return nodes_on_paths(graph, topics, depth + 1, ends)


def turned(graph: PathGraph, topics: Ragged, depth: int, ends: Ends) -> Ragged:
    return nodes_on_paths(graph, topics, depth, Ends(ends.last, ends.first))


@pytest.mark.parametrize("wrong", [balls_of_all, one_hop_more, turned])
def test_checks_catch(wrong: Reduce) -> None:
    check(nodes_on_paths, EXAMPLE)
    with pytest.raises(AssertionError):
        check(wrong, EXAMPLE)


def test_bad_input_says_what() -> None:
    graph, off = graph_of([(0, 1)], 2), torch.zeros(1, dtype=torch.bool)
    for match, call in (
        ("depth is out of range", lambda: nodes_on_paths(graph, ragged([[0]]), 0, Ends(off, off))),
        ("stands twice", lambda: nodes_on_paths(graph, ragged([[0, 0]]), 1, Ends(off, off))),
        ("ends.last does not fit", lambda: nodes_on_paths(graph, ragged([[0]]), 1, Ends(off, off[:0]))),
    ):
        with pytest.raises(BadInput, match=match):
            call()
