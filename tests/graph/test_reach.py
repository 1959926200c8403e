"""Typed reachability against networkx multigraphs."""

from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import listed, ragged
from refusals import refusals

from gpu_rag.graph import ragged as ragged_module
from gpu_rag.graph import reach as module
from gpu_rag.graph.reach import ANY, EITHER, IN, OUT, TypedGraph, reachable, typed_graph
from gpu_rag.types import Ragged

Edges = list[tuple[int, int, int]]
Step = tuple[int, int]
Reach = Callable[[TypedGraph, Ragged, Ragged, Ragged], Ragged]
QUICK = settings(max_examples=50, deadline=None, derandomize=True)
REACH: list[Reach] = [reachable, lambda *a: reachable(*a, implementation="torch")]


def graph_of(edges: Edges, n: int, n_relations: int) -> TypedGraph:
    columns = torch.tensor(edges, dtype=torch.int64).reshape(-1, 3).T
    return typed_graph(columns[0], columns[1], columns[2], n, n_relations)


def ends(graph: nx.MultiDiGraph, starts: list[int], chain: list[Step]) -> list[int]:
    """The last nodes of all walks along the chain."""
    here = set(starts)
    for relation, way in chain:
        out = {b for a, b, k in graph.out_edges(here, keys=True) if relation in (k, ANY)}
        back = {a for a, b, k in graph.in_edges(here, keys=True) if relation in (k, ANY)}
        here = (out if way != IN else set()) | (back if way != OUT else set())
    return sorted(here)


def check(
    reach: Reach, edges: Edges, n: int, n_relations: int, starts: list[list[int]], chains: list[list[Step]]
) -> None:
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((tail, head, relation) for tail, relation, head in edges)
    relations, ways = ragged([[r for r, _ in c] for c in chains]), ragged([[w for _, w in c] for c in chains])
    found = reach(graph_of(edges, n, n_relations), ragged(starts), relations, ways)
    assert found.values.dtype == torch.int32 and found.offsets.dtype == torch.int64
    assert listed(found) == [ends(graph, s, c) for s, c in zip(starts, chains)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Edges, int, int, list[list[int]], list[list[Step]]]:
    n, n_relations = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    node, relation = st.integers(0, n - 1), st.integers(0, n_relations - 1)
    edges = draw(st.lists(st.tuples(node, relation, node), max_size=25))
    batch = draw(st.integers(0, 4))
    starts = draw(st.lists(st.lists(node, max_size=3), min_size=batch, max_size=batch))
    step = st.tuples(st.just(ANY) | relation, st.sampled_from([OUT, IN, EITHER]))
    return edges, n, n_relations, starts, draw(st.lists(st.lists(step, max_size=4), min_size=batch, max_size=batch))


@QUICK
@given(cases())
def test_chains(case: tuple[Edges, int, int, list[list[int]], list[list[Step]]]) -> None:
    for reach in REACH:
        check(reach, *case)


def large(seed: int) -> tuple[Edges, int, int, list[list[int]], list[list[Step]]]:
    r = np.random.default_rng(seed)
    tails, heads = (300 * r.random(1500) ** 3).astype(int).tolist(), r.integers(0, 300, 1500).tolist()
    edges = list(zip(tails, r.integers(0, 4, 1500).tolist(), heads))
    starts = [r.integers(0, 300, k).tolist() for k in r.integers(0, 4, 60)]
    chains = [[(int(r.integers(-1, 4)), int(r.integers(1, 4))) for _ in range(k)] for k in r.integers(0, 4, 60)]
    return edges, 300, 4, starts, chains


@pytest.mark.parametrize("reach", [*REACH, lambda *a: reachable(*a, threads=3)])
def test_many_questions(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUESTIONS", 7)
    monkeypatch.setattr(ragged_module, "EXPAND_AT_ONCE", 40)
    check(reach, *large(0))


FILMS: Edges = [(0, 0, 2), (0, 0, 3), (1, 0, 3), (1, 0, 4), (2, 1, 5), (3, 1, 6), (4, 1, 6)]
"""Directors 0 and 1, films 2 to 4, years 5 and 6; relation 0 directed, 1 made in."""


def test_marks_of_one_step_are_gone_in_the_next() -> None:
    """So many entries to so few nodes that they are marked, not sorted, and cleared one by one: 300 nodes to 0 and 1,
    and 0 and 1 to each other and to the 300."""
    n, sources = 400, list(range(100, 400))
    edges = [(v, 0, hub) for v in sources for hub in (0, 1)] + [(0, 0, 1), (1, 0, 0), (0, 0, 0)]
    check(reachable, edges, n, 1, [sources] * 2, [[(0, OUT)] * 2, [(0, OUT), (0, IN), (0, OUT), (0, EITHER)]])
    chains = [[(0, EITHER)] * k for k in range(1, 6)]
    check(reachable, edges, n, 1, [sources] * 5, chains)


@pytest.mark.parametrize("reach", REACH)
def test_many_edges_to_few_nodes(reach: Reach) -> None:
    """More entries than a step sorts, fewer nodes than are read off the marks: they are met in falling order."""
    graph = graph_of([(tail, 0, 900 - 100 * (tail % 3)) for tail in range(600)], 1000, 1)
    found = reach(graph, ragged([list(range(600))] * 2), ragged([[0], [0, 0]]), ragged([[OUT], [OUT, IN]]))
    assert listed(found) == [[700, 800, 900], list(range(600))]


def ignores_direction(graph: TypedGraph, starts: Ragged, relations: Ragged, directions: Ragged) -> Ragged:
    return reachable(graph, starts, relations, Ragged(torch.full_like(directions.values, EITHER), directions.offsets))


def ignores_relation(graph: TypedGraph, starts: Ragged, relations: Ragged, directions: Ragged) -> Ragged:
    return reachable(graph, starts, Ragged(torch.full_like(relations.values, ANY), relations.offsets), directions)


def keeps_what_it_passed(graph: TypedGraph, starts: Ragged, relations: Ragged, directions: Ragged) -> Ragged:
    whole = reachable(graph, starts, relations, directions)
    rows = [sorted({*a, *b}) for a, b in zip(listed(whole), listed(starts))]
    return ragged(rows, torch.int32)


def never_comes_back(graph: TypedGraph, starts: Ragged, relations: Ragged, directions: Ragged) -> Ragged:
    whole = reachable(graph, starts, relations, directions)
    rows = [sorted({*a} - {*b}) for a, b in zip(listed(whole), listed(starts))]
    return ragged(rows, torch.int32)


def from_the_last(graph: TypedGraph, starts: Ragged, relations: Ragged, directions: Ragged) -> Ragged:
    steps = (ragged([row[::-1] for row in listed(x)]) for x in (relations, directions))
    return reachable(graph, starts, *steps)


WRONG = [ignores_direction, ignores_relation, keeps_what_it_passed, never_comes_back, from_the_last]


@pytest.mark.parametrize("wrong", WRONG)
def test_checks_catch(wrong: Reach) -> None:
    starts = [[0], [0], [6], [3], [3]]
    chains = [[(0, OUT)], [(0, OUT), (0, IN)], [(1, IN), (0, IN)], [(ANY, OUT)], [(0, EITHER)]]
    check(reachable, FILMS, 8, 2, starts, chains)
    with pytest.raises(AssertionError):
        check(wrong, FILMS, 8, 2, starts, chains)


GRAPH, ZERO = graph_of(FILMS, 8, 2), ragged([[0]])


test_bad_input_says_what = refusals(
    [
        ("one of the starts is no node", lambda: reachable(GRAPH, ragged([[8]]), ZERO, ragged([[OUT]]))),
        ("no such relation; given 2 at position 0", lambda: reachable(GRAPH, ZERO, ragged([[2]]), ragged([[OUT]]))),
        ("no such direction; given 0", lambda: reachable(GRAPH, ZERO, ZERO, ZERO)),
        ("relations do not match the starts", lambda: reachable(GRAPH, ZERO, ragged([[0], [0]]), ragged([[1], [1]]))),
        ("the head of an edge is no node", lambda: graph_of([(0, 1, 8)], 8, 2)),
    ]
)
