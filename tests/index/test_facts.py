"""Facts around a name and chains between two names, against brute force over networkx."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput
from gpu_rag.index import facts
from gpu_rag.index.facts import Fact, Facts, _facts
from gpu_rag.types import Ragged

EDGES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=25)


def made(edges: Sequence[tuple[int, int]], n: int = 9) -> Facts:
    head, tail = np.array(edges).T

    def fact(row: int) -> Fact:
        return Fact(str(head[row]), f"r{row}", str(tail[row]), f"p{row}")

    def lookup(name: str) -> list[int]:
        return [int(name)] if name.isdecimal() and int(name) < n else []

    names = pa.chunked_array([pa.array(map(str, range(n)), pa.string())])
    stated = Ragged(torch.arange(len(head)), torch.arange(len(head) + 1))
    return _facts(head, tail, n, lookup, fact, names, [[]] * n, stated)


@settings(max_examples=60, deadline=None)
@given(EDGES, st.integers(0, 8), st.integers(0, 8), st.integers(1, 4))
def test_chains_are_all_simple_paths_shortest_first(
    edges: list[tuple[int, int]], start: int, end: int, hops: int
) -> None:
    chains = made(edges).chains(str(start), str(end), 10_000, hops)
    graph = nx.Graph([edge for edge in edges if edge[0] != edge[1]])
    graph.add_nodes_from(range(9))
    expected = {tuple(path) for path in nx.all_simple_paths(graph, start, end, cutoff=hops)} if start != end else set()
    nodes = set()
    for chain in chains:
        walk = [str(start)]
        for fact in chain:
            assert walk[-1] in (fact.subject, fact.object)
            walk.append(fact.object if fact.subject == walk[-1] else fact.subject)
        nodes.add(tuple(map(int, walk)))
    assert nodes == expected and len(chains) == len(expected)
    assert [len(chain) for chain in chains] == sorted(len(chain) for chain in chains)


@settings(max_examples=60, deadline=None)
@given(EDGES, st.integers(0, 8), st.integers(1, 30))
def test_facts_around_a_name_best_connected_first(edges: list[tuple[int, int]], node: int, k: int) -> None:
    around = made(edges).around(str(node), k)
    degree = {n: sum((a == n) + (b == n) for a, b in edges) for n in range(9)}
    rows = [row for row, edge in enumerate(edges) if node in edge]
    rows.sort(key=lambda row: (-degree[edges[row][1] if edges[row][0] == node else edges[row][0]], row))
    assert [fact.label for fact in around] == [f"r{row}" for row in rows[:k]]


def test_a_hub_does_not_hide_a_rarer_chain() -> None:
    """Two chains of two facts: the one through a node with fewer facts comes first."""
    hub = [(0, 2), (2, 1), *((2, n) for n in range(4, 9))]
    chains = made([*hub, (0, 3), (3, 1)]).chains("0", "1", 5, 2)
    assert [[fact.label for fact in chain] for chain in chains] == [["r7", "r8"], ["r0", "r1"]]


def test_names_that_thousands_of_nodes_bear_are_joined_by_some(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, search = list[int](), facts.search_paths

    def seen(graph: Any, topics: Ragged, *more: Any) -> Any:
        joined.append(topics.batch)
        return search(graph, topics, *more)

    monkeypatch.setattr(facts, "search_paths", seen)
    many = replace(made([(0, 1)], 3000), lookup=lambda _: range(3000))
    assert many.chains("street", "street", 1, 2) == [(Fact("0", "r0", "1", "p0"),)]
    assert joined == [facts.BEAM]


def test_unknown_names_and_lengths_are_refused() -> None:
    small = made([(0, 1)])
    for call in (
        lambda: small.around("nobody", 3),
        lambda: small.chains("0", "nobody", 3, 2),
        lambda: small.chains("0", "1", 3, 7),
        lambda: small.chains("0", "1", 3, 0),
    ):
        with pytest.raises(BadInput):
            call()
    assert torch.equal(torch.from_numpy(small.degree[:2]), torch.tensor([1, 1]))
