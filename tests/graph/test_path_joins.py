"""Compiled joins of paths against those in torch, on pruned sets, and the compiled checks against the slow ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import refusal

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.graph import paths
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.paths import expand_paths, path_graph, score_paths, start_paths
from gpu_rag.graph.paths import scores as path_scores
from gpu_rag.graph.paths import sets as path_set
from gpu_rag.graph.paths.joins import Ends, Window, chain_paths, n_steps, path_parts
from gpu_rag.graph.paths.sets import PathSet
from gpu_rag.types import Ragged

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
QUICK = settings(max_examples=80, deadline=None, derandomize=True)
N = 12


def some(paths: PathSet, r: np.random.Generator) -> PathSet:
    """Most of the paths: as a beam leaves them."""
    return paths.rows(torch.from_numpy(r.random(paths.size) < 0.8))


def equal(one: PathSet, other: PathSet) -> bool:
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values()))


def both(call: Callable[..., PathSet]) -> PathSet:
    """The result, which is the same by numba and torch."""
    one, other = (call(implementation=name) for name in ("numba", "torch"))
    assert equal(one, other)
    return one


@QUICK
@given(st.integers(0, 10_000), st.integers(0, 5), st.integers(1, 3))
def test_parts_and_chains_are_those_of_torch(seed: int, batch: int, depth: int) -> None:
    r = np.random.default_rng(seed)
    ends_of = r.integers(0, N, (2, int(r.integers(1, 40))))
    graph = path_graph(csr_from_edges(*torch.from_numpy(ends_of), N, drop_self_loops=False))
    topics = ragged([r.permutation(N)[: r.integers(0, 5)].tolist() for _ in range(batch)])
    ends = Ends(*(torch.from_numpy(r.random(batch) < 0.5) for _ in range(2)))
    window = Window(torch.from_numpy(r.integers(-1, 3, batch)), torch.from_numpy(r.integers(-1, 9, batch)))
    hops = [start_paths(graph, topics)]
    for _ in range(depth):
        hops.append(some(expand_paths(graph, hops[-1], topics), r))
    parts = some(both(lambda **by: path_parts(graph, topics, hops, ends, **by)), r)
    whole: PathSet | None = None
    for step in range(n_steps(topics)):
        before = whole
        whole = both(lambda b=before, s=step, **by: chain_paths(b, parts, topics, s, ends, window, **by))
        whole = some(whole, r)


def test_the_cases_say_something() -> None:
    """Two questions in one batch, with parts of different lengths that meet in a topic, and one that crosses itself."""
    line = path_graph(csr_from_edges(torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 2, 3, 4, 3]), 5))
    topics, window = ragged([[0, 2, 4], [1, 3]]), Window(torch.zeros(2).long(), torch.full((2,), 6))
    closed = Ends(torch.zeros(2).bool(), torch.zeros(2).bool())
    hops = [start_paths(line, topics)]
    for _ in range(2):
        hops.append(expand_paths(line, hops[-1], topics))
    parts = both(lambda **by: path_parts(line, topics, hops, closed, **by))
    first = both(lambda **by: chain_paths(None, parts, topics, 0, closed, window, **by))
    second = both(lambda **by: chain_paths(first, parts, topics, 1, closed, window, **by))
    third = both(lambda **by: chain_paths(second, parts, topics, 2, closed, window, **by))
    assert [[v for v in row if v >= 0] for row in third.nodes.tolist()] == [[0, 1, 2, 3, 4], [1, 0, 3], [1, 2, 3]]
    assert second.size == 4, "0 - 3 - 2 goes on to 4 only over 3, where it has been"


@pytest.mark.parametrize("name", ["numba", "torch"])
def test_too_many_pairs_are_refused_by_both(name: str) -> None:
    sides = torch.arange(2, 9)
    pairs = torch.cat([torch.zeros(7).long(), torch.ones(7).long()]), torch.cat([sides, sides])
    star, topics = path_graph(csr_from_edges(*pairs, 9)), ragged([[0, 1]])
    closed = Ends(torch.zeros(1).bool(), torch.zeros(1).bool())
    hops = [start_paths(star, topics)]
    hops.append(expand_paths(star, hops[0], topics))
    parts = path_parts(star, topics, hops, closed, most=7, implementation=name)
    with pytest.raises(BadInput, match="too many paths; given 7 at the joints"):
        path_parts(star, topics, hops, closed, most=6, implementation=name)
    window = Window(torch.zeros(1).long(), torch.full((1,), 6))
    whole = chain_paths(None, parts, topics, 0, closed, window, implementation=name)
    assert chain_paths(whole, parts, topics, 1, closed, window, most=7, implementation=name).size == 7
    with pytest.raises(BadInput, match="too many paths; given 7 at the joints"):
        chain_paths(whole, parts, topics, 1, closed, window, most=6, implementation=name)
    with pytest.raises(UsageError, match="no such implementation"):
        path_parts(star, topics, hops, closed, implementation="scipy")


def slow_refusal(call: Callable[[], object]) -> str:
    """The same without compiled checks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (paths, path_scores, path_set):
            patch.setattr(module, "compiled_checks", lambda device: None)
        return refusal(call)


def path_set_of(group: list[int], question: list[int], nodes: list[list[int]], edges: list[list[int]]) -> PathSet:
    return PathSet(
        torch.tensor(group).long(), torch.tensor(question).long(), torch.tensor(nodes).int(), torch.tensor(edges).int()
    )


GRAPH = path_graph(csr_from_edges(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]), 4))
SMALL = st.lists(st.integers(-1, 4), min_size=2, max_size=2)


@QUICK
@given(
    SMALL, st.lists(st.integers(-1, 2), min_size=2, max_size=2), st.lists(SMALL, min_size=2, max_size=2), SMALL, SMALL
)
def test_inputs_are_refused_alike(
    group: list[int], question: list[int], nodes: list[list[int]], edges: list[int], topics: list[int]
) -> None:
    walks = path_set_of(group, question, nodes, [[e] for e in edges])
    asked = ragged([topics, [0]])
    queries, vectors = (torch.nn.functional.normalize(torch.ones(rows, 3)) for rows in (2, 3))
    calls: list[Callable[[], Any]] = [
        lambda: start_paths(GRAPH, asked),
        lambda: expand_paths(GRAPH, walks, asked),
        lambda: score_paths(walks, queries, vectors, asked),
        lambda: score_paths(walks, queries * 1.02, vectors, asked),
    ]
    for call in calls:
        assert refusal(call) == slow_refusal(call)


def test_long_lists_of_topics_may_not_repeat_either() -> None:
    graph = path_graph(csr_from_edges(torch.arange(99), torch.arange(1, 100), 100))
    assert start_paths(graph, ragged([list(range(100))])).size == 100
    with pytest.raises(BadInput, match="twice"):
        start_paths(graph, ragged([[*range(99), 98]]))


def test_few_edges_of_many_have_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """In f16, by sorting the edges that are there and by numbering all."""
    r = np.random.default_rng(3)
    edges = np.where(np.arange(4) < r.integers(0, 5, (60, 1)), r.integers(0, 5000, (60, 4)), -1)
    walks = path_set_of([0] * 60, [0] * 60, r.integers(0, 50, (60, 5)).tolist(), edges.tolist())
    queries, vectors = (torch.nn.functional.normalize(torch.randn(rows, 24)) for rows in (1, 5000))
    asked: Ragged = ragged([[1, 2]])
    few = score_paths(walks, queries, vectors.half(), asked)[1]
    monkeypatch.setattr(path_scores, "_FEW", 0)
    assert torch.equal(few, score_paths(walks, queries, vectors.half(), asked)[1])
    assert torch.equal(few, score_paths(walks, queries, vectors.half().float(), asked)[1])
