"""Paths and pairs that are not what they should be: refused with what is wrong, by the compiled checks and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import refusal

from gpu_rag.errors import BadInput
from gpu_rag.graph.bubble import node_costs
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.paths import Ends, Window, chain_paths, expand_paths, path_graph, path_parts, start_paths
from gpu_rag.graph.paths import sets as path_set
from gpu_rag.graph.paths.sets import Kind, PathSet, check_paths
from gpu_rag.types import Ragged

QUICK = settings(max_examples=300, deadline=None, derandomize=True)
BOTH = pytest.mark.parametrize("implementation", ["numba", "torch"])
RING = torch.arange(6)
GRAPH = path_graph(csr_from_edges(RING, (RING + 1) % 6, 6))  # 0 - 1 - 2 - 3 - 4 - 5 - 0
TOPICS = ragged([[0, 2], [3]])
OPEN = Ends(torch.tensor([True, False]), torch.tensor([False, True]))
WINDOW = Window(torch.zeros(2).long(), torch.full((2,), 9))
HOPS = [start_paths(GRAPH, TOPICS)]
HOPS.append(expand_paths(GRAPH, HOPS[0], TOPICS))
PARTS = path_parts(GRAPH, TOPICS, HOPS, OPEN)
WHOLE = chain_paths(None, PARTS, TOPICS, 0, OPEN, WINDOW)


def without_compiled(call: Callable[[], object]) -> str:
    """What the call is refused with by the slow checks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path_set, "compiled_checks", lambda device: None)
        return refusal(call)


def changed(paths: PathSet, name: str, row: int, value: int, column: int | None = None) -> PathSet:
    """The set with one number replaced."""
    part = getattr(paths, name).clone()
    part[row if column is None else (row, column)] = value
    return replace(paths, **{name: part})


# --- paths that are put together -------------------------------------------------------------------

GROUP, NODE, BROKEN = "of no group of its question", "a path leaves the graph", "a path breaks off"
FAULTS: list[tuple[str, str, int, int, int | None]] = [  # what it is refused with, part, row, value, column
    (GROUP, "group", -1, 9, None), (GROUP, "group", 0, -1, None), (NODE, "nodes", 0, 6, 0), (NODE, "nodes", 1, -2, 1),
    (BROKEN, "edges", 1, -7, 0), (BROKEN, "nodes", 0, -1, 0), (BROKEN, "edges", 0, -1, 0),
    ("of no question", "question", -1, 2, None),
    ("of no question", "question", 0, -1, None),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("match", "name", "row", "value", "column"), FAULTS)
def test_parts_of_other_paths_are_refused(
    implementation: str, match: str, name: str, row: int, value: int, column: int | None
) -> None:
    hops = [HOPS[0], changed(HOPS[1], name, row, value, column)]
    with pytest.raises(BadInput, match=match):
        path_parts(GRAPH, TOPICS, hops, OPEN, implementation=implementation)


@BOTH
@pytest.mark.parametrize("which", ["parts", "whole"])
@pytest.mark.parametrize(("match", "name", "row", "value", "column"), FAULTS)
def test_chains_of_other_paths_are_refused(
    implementation: str, which: str, match: str, name: str, row: int, value: int, column: int | None
) -> None:
    if value == 6:
        value = -7  # a chain does not know how large the graph is
    given = {"parts": PARTS, "whole": WHOLE}
    given[which] = changed(given[which], name, row, value, column)
    with pytest.raises(BadInput, match=match):
        chain_paths(given["whole"], given["parts"], TOPICS, 1, OPEN, WINDOW, implementation=implementation)


@BOTH
@pytest.mark.parametrize("offsets", [[1, 2, 3], [0, 3, 1], [0, 2, 4], [0, 4, 3], [0, 0, 2]])
def test_broken_topics_are_refused(implementation: str, offsets: list[int]) -> None:
    broken = Ragged(TOPICS.values, torch.tensor(offsets))
    for call in (
        lambda: chain_paths(None, PARTS, broken, 0, OPEN, WINDOW, implementation=implementation),
        lambda: path_parts(GRAPH, broken, HOPS, OPEN, implementation=implementation),
    ):
        with pytest.raises(BadInput, match="offsets of topics are broken"):
            call()


@BOTH
@pytest.mark.parametrize(
    ("match", "topics"),
    [
        ("offsets of topics are broken", Ragged(TOPICS.values[:2], TOPICS.offsets)),
        ("topics are no ragged lists", Ragged(TOPICS.values, torch.tensor(0))),
        ("topics are no ragged lists", Ragged(TOPICS.values, TOPICS.offsets.int())),
        ("topics are no integers", Ragged(TOPICS.values.float(), TOPICS.offsets)),
        ("one of the topics is no node", Ragged(TOPICS.values - 1, TOPICS.offsets)),
        ("one of the topics is no node", Ragged(TOPICS.values + 2**31, TOPICS.offsets)),
        ("ends.first does not fit", ragged([[0, 2]])),
    ],
)
def test_topics_of_a_chain_are_checked(implementation: str, match: str, topics: Ragged) -> None:
    with pytest.raises(BadInput, match=match):
        chain_paths(None, PARTS, topics, 0, OPEN, WINDOW, implementation=implementation)


def test_a_chain_has_no_step_before_the_first() -> None:
    with pytest.raises(BadInput, match="no beginning; given step -1"):
        chain_paths(WHOLE, PARTS, TOPICS, -1, OPEN, WINDOW)


@pytest.mark.parametrize(
    ("match", "part", "value"),
    [
        ("other dtypes", "group", HOPS[1].group.int()),
        ("other dtypes", "question", HOPS[1].question.double()),
        ("other dtypes", "nodes", HOPS[1].nodes.long()),
        ("other dtypes", "edges", HOPS[1].edges.float()),
        ("no common shape", "nodes", HOPS[1].nodes.flatten()),
        ("no common shape", "nodes", HOPS[1].nodes[:, :0]),
        ("no common shape", "nodes", HOPS[1].nodes[0, 0]),
        ("no common shape", "edges", HOPS[1].edges[:, :, None]),
        ("no common shape", "group", HOPS[1].group[:-1]),
        ("no common shape", "question", HOPS[1].question[:, None]),
    ],
)
def test_columns_of_paths_are_checked(match: str, part: str, value: torch.Tensor) -> None:
    broken = replace(HOPS[1], **{part: value})
    for call in (
        lambda: expand_paths(GRAPH, broken, TOPICS),
        lambda: path_parts(GRAPH, TOPICS, [HOPS[0], broken], OPEN),
        lambda: chain_paths(None, broken, TOPICS, 0, OPEN, WINDOW),
    ):
        with pytest.raises(BadInput, match=match):
            call()


def fits(paths: PathSet, kind: Kind) -> bool:
    """Whether every path is of the kind, one after the other."""
    starts = [kind.per_topic * at + kind.per_question * b for b, at in enumerate(kind.offsets.tolist())]
    columns = (paths.group, paths.question, paths.nodes, paths.edges)
    for group, b, nodes, edges in zip(*(part.tolist() for part in columns)):
        hops = sum(node != -1 for node in nodes) - 1
        sound = 0 <= b < len(starts) - 1 and starts[b] <= group < starts[b + 1]
        sound = sound and hops >= 0 and (kind.padded or hops == len(edges))
        sound = sound and all(0 <= node < kind.n for node in nodes[: hops + 1])
        sound = sound and all(edge >= 0 for edge in edges[:hops])
        if not (sound and nodes[hops + 1 :] == edges[hops:] == [-1] * (len(edges) - hops)):
            return False
    return paths.group.tolist() == sorted(paths.group.tolist())


@st.composite
def some_paths(draw: st.DrawFn) -> tuple[PathSet, Kind]:
    """Paths of a kind, of which in most draws one number is another one, or a hop is missing."""
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    per_topic, per_question = draw(st.sampled_from([(1, 0), (1, 1), (0, 1)]))
    kind = Kind(offsets, per_topic, per_question, 5, draw(st.booleans()))
    starts = per_topic * offsets + per_question * torch.arange(len(sizes) + 1)
    groups = sorted(draw(st.lists(st.integers(0, max(int(starts[-1]) - 1, 0)), max_size=4)))
    groups = groups if int(starts[-1]) else []
    question = torch.searchsorted(starts, torch.tensor(groups, dtype=torch.int64), right=True) - 1
    width, size = draw(st.integers(0, 3)), len(groups)
    nodes = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=size * (width + 1), max_size=size * (width + 1))))
    edges = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=size * width, max_size=size * width)))
    nodes, edges = nodes.int().view(size, width + 1), edges.int().view(size, width)
    for row in range(size if kind.padded else 0):
        hops = draw(st.integers(0, width))
        nodes[row, hops + 1 :], edges[row, hops:] = -1, -1
    paths = PathSet(torch.tensor(groups, dtype=torch.int64), question, nodes, edges)
    part = draw(st.sampled_from(["", "gap", "group", "question", "nodes", "edges"]))
    if part == "gap" and edges.numel():
        row, hop = draw(st.integers(0, size - 1)), draw(st.integers(0, width - 1))
        nodes[row, hop + 1], edges[row, hop] = -1, -1
    elif part not in ("", "gap") and getattr(paths, part).numel():
        flat = getattr(paths, part).view(-1)
        flat[draw(st.integers(0, flat.shape[0] - 1))] = draw(st.integers(-2, 6))
    return paths, kind


def compiled(paths: PathSet, kind: Kind) -> bool:
    return path_set._are_paths(paths, kind.offsets.shape[0] - 1, kind)


def checked(paths: PathSet, kind: Kind) -> bool:
    return not refusal(lambda: check_paths(paths, kind.offsets.shape[0] - 1, torch.device("cpu"), kind))


def slowly(paths: PathSet, kind: Kind) -> bool:
    return not without_compiled(lambda: check_paths(paths, kind.offsets.shape[0] - 1, torch.device("cpu"), kind))


@QUICK
@given(some_paths())
def test_kinds_of_paths_are_told_alike(case: tuple[PathSet, Kind]) -> None:
    paths, kind = case
    sound = fits(paths, kind)
    assert checked(paths, kind) == slowly(paths, kind) == sound
    if paths.size:
        assert compiled(paths, kind) == sound
    call = lambda: check_paths(paths, kind.offsets.shape[0] - 1, torch.device("cpu"), kind)  # noqa: E731
    assert refusal(call) == without_compiled(call)


# --- costs of pairs --------------------------------------------------------------------------------

EYE = torch.eye(4)


def pairs(*ids: int) -> torch.Tensor:
    return torch.tensor(ids)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("question", "node"), [(-1, 0), (2, 0), (0, -1), (0, 4), (2**31 - 1, 0), (0, -(2**31))])
def test_costs_of_pairs_that_are_none_are_refused(question: int, node: int, dtype: torch.dtype) -> None:
    asked, nodes = torch.tensor([0, question], dtype=dtype), torch.tensor([3, node], dtype=dtype)
    call = lambda: node_costs(EYE[:2], EYE, asked, nodes)  # noqa: E731
    wrong = ("node", node) if question == 0 else ("question", question)
    assert f"the {wrong[0]} of a pair is no node; given {wrong[1]} at position 1" in refusal(call)


@pytest.mark.parametrize(
    ("question", "node"),
    [
        (pairs(0), pairs(0, 1)),
        (pairs(0).double(), pairs(0)),
        (pairs(0), pairs(0).bool()),
        (pairs(0)[:, None], pairs(0)[:, None]),
    ],
)
def test_pairs_that_are_no_lists_are_refused(question: torch.Tensor, node: torch.Tensor) -> None:
    with pytest.raises(BadInput, match="pairs are no lists"):
        node_costs(EYE, EYE, question, node)


def test_no_pairs_have_no_costs() -> None:
    none: Any = torch.zeros(0, dtype=torch.int64)
    assert node_costs(EYE, EYE[:0], none, none).shape == (0,)
