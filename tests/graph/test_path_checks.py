"""Paths and pairs that are not what they should be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ragged_lists import ragged
from refusals import refusal

from gpu_rag.errors import BadInput
from gpu_rag.graph.bubble import node_costs
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.paths import (
    Ends,
    Window,
    chain_paths,
    expand_paths,
    path_graph,
    path_parts,
    score_paths,
    start_paths,
)
from gpu_rag.graph.paths import scores as path_scores
from gpu_rag.graph.paths.sets import PathSet
from gpu_rag.types import Ragged

RING = torch.arange(6)
GRAPH = path_graph(csr_from_edges(RING, (RING + 1) % 6, 6))  # 0 - 1 - 2 - 3 - 4 - 5 - 0
TOPICS = ragged([[0, 2], [3]])
OPEN = Ends(torch.tensor([True, False]), torch.tensor([False, True]))
WINDOW = Window(torch.zeros(2).long(), torch.full((2,), 9))
HOPS = [start_paths(GRAPH, TOPICS)]
HOPS.append(expand_paths(GRAPH, HOPS[0], TOPICS))
PARTS = path_parts(GRAPH, TOPICS, HOPS, OPEN)
WHOLE = chain_paths(None, PARTS, TOPICS, 0, OPEN, WINDOW)


def changed(paths: PathSet, name: str, row: int, value: int) -> PathSet:
    """The set with one number replaced."""
    part = getattr(paths, name).clone()
    part[row] = value
    return replace(paths, **{name: part})


STRANGE = [-1, 2]  # questions that are none


@pytest.mark.parametrize("question", STRANGE)
def test_parts_of_other_questions_are_refused(question: int) -> None:
    hops = [HOPS[0], changed(HOPS[1], "question", -1, question)]
    with pytest.raises(BadInput, match=str(question)):
        path_parts(GRAPH, TOPICS, hops, OPEN)


@pytest.mark.parametrize("which", ["parts", "whole"])
@pytest.mark.parametrize("question", STRANGE)
def test_chains_of_other_questions_are_refused(which: str, question: int) -> None:
    given = {"parts": PARTS, "whole": WHOLE}
    given[which] = changed(given[which], "question", -1, question)
    with pytest.raises(BadInput, match=str(question)):
        chain_paths(given["whole"], given["parts"], TOPICS, 1, OPEN, WINDOW)


EYE = torch.eye(4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("question", "node"), [(-1, 0), (2, 0), (0, -1), (0, 4), (2**31 - 1, 0), (0, -(2**31))])
def test_costs_of_pairs_that_are_none_are_refused(question: int, node: int, dtype: torch.dtype) -> None:
    asked, nodes = torch.tensor([0, question], dtype=dtype), torch.tensor([3, node], dtype=dtype)
    call = lambda: node_costs(EYE[:2], EYE, asked, nodes)  # noqa: E731
    wrong = ("node", node) if question == 0 else ("question", question)
    assert f"the {wrong[0]} of a pair is no node; given {wrong[1]} at position 1" in refusal(call)


def test_too_many_pairs_are_refused() -> None:
    sides = torch.arange(2, 9)
    pairs = torch.cat([torch.zeros(7).long(), torch.ones(7).long()]), torch.cat([sides, sides])
    star, topics = path_graph(csr_from_edges(*pairs, 9)), ragged([[0, 1]])
    closed = Ends(torch.zeros(1).bool(), torch.zeros(1).bool())
    hops = [start_paths(star, topics)]
    hops.append(expand_paths(star, hops[0], topics))
    parts = path_parts(star, topics, hops, closed, max_pairs=7)
    with pytest.raises(BadInput, match="too many paths; given 7 at the joints"):
        path_parts(star, topics, hops, closed, max_pairs=6)
    window = Window(torch.zeros(1).long(), torch.full((1,), 6))
    whole = chain_paths(None, parts, topics, 0, closed, window)
    assert chain_paths(whole, parts, topics, 1, closed, window, max_pairs=7).size == 7
    with pytest.raises(BadInput, match="too many paths; given 7 at the joints"):
        chain_paths(whole, parts, topics, 1, closed, window, max_pairs=6)


def path_set_of(group: list[int], question: list[int], nodes: list[list[int]], edges: list[list[int]]) -> PathSet:
    return PathSet(
        torch.tensor(group).long(), torch.tensor(question).long(), torch.tensor(nodes).int(), torch.tensor(edges).int()
    )


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
