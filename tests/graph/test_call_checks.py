"""The compiled checks of short calls against the slow ones: unit rows, questions of `reachable`, seeds, sets."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal

from gpu_rag.graph import ragged
from gpu_rag.graph.common import dots
from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.frontier import FrontierQuery, described, score_lists
from gpu_rag.graph.pagerank import inputs as pagerank_teleport
from gpu_rag.graph.pagerank.inputs import teleport_of_seeds
from gpu_rag.graph.reach import reachable, typed_graph
from gpu_rag.types import Ragged

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
QUICK = settings(max_examples=150, deadline=None, derandomize=True)
N = 6


def slow_refusal(call: Callable[[], object]) -> str:
    """The same without compiled checks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (dots, pagerank_teleport, ragged):
            patch.setattr(module, "compiled_checks", lambda device: None)
        return refusal(call)


def lists(rows: list[list[int]], dtype: torch.dtype = torch.int64) -> Ragged:
    values = torch.tensor([v for row in rows for v in row], dtype=dtype)
    return Ragged(values, torch.tensor(np.cumsum([0] + [len(row) for row in rows])))


ROWS = st.lists(st.lists(st.integers(-1, N), max_size=4), max_size=4)
SHIFTS = st.sampled_from([0, 0, 0, 0, 1, -1])


@QUICK
@given(
    st.lists(st.floats(0.97, 1.03) | st.sampled_from([0.0, 0.99, 1.01, 1e-30, np.nan, np.inf]), max_size=5),
    st.sampled_from([1, 2, 33]), st.integers(0, 9),
)  # fmt: skip
def test_unit_rows_are_refused_alike(lengths: list[float], dims: int, seed: int) -> None:
    rows = torch.randn(len(lengths), dims, generator=torch.Generator().manual_seed(seed))
    rows = torch.nn.functional.normalize(rows) * torch.tensor(lengths)[:, None]
    assert refusal(lambda: check_unit_rows(rows, "rows")) == slow_refusal(lambda: check_unit_rows(rows, "rows"))


def test_the_compiled_check_of_unit_rows_looks() -> None:
    """It accepts what is sound by itself, and nothing that is not."""
    rows = torch.nn.functional.normalize(torch.randn(50, 40, generator=torch.Generator().manual_seed(1)))
    rows[7] = 0
    assert dots._are_units(rows)
    for value in (1.2, torch.nan, torch.inf):
        bad = rows.clone()
        bad[11, 3] = value
        assert not dots._are_units(bad)


@QUICK
@given(ROWS, ROWS, SHIFTS, st.sampled_from([torch.int32, torch.int64]), st.booleans())
def test_questions_of_reachable_are_refused_alike(
    starts: list[list[int]], chains: list[list[int]], shift: int, dtype: torch.dtype, matching: bool
) -> None:
    """By numba in one compiled pass, by torch with the slow checks: one message, or one answer."""
    graph = typed_graph(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0]), torch.tensor([1, 2, 3]), N, 3)
    if matching:
        chains = (chains + [[]] * 4)[: len(starts)]
    directions = [[1 + abs(v) % 3 for v in row] for row in chains]
    if directions and directions[-1] and shift < 0:
        directions[-1][-1] = 4
    asked = [lists(starts, dtype), lists(chains), lists(directions)]
    if shift > 0:
        asked[len(starts) % 3].offsets[-1] += shift
    found = [refusal(lambda i=i: reachable(graph, *asked, implementation=i)) for i in ("numba", "torch")]  # type: ignore[misc]
    assert found[0] == found[1]


@QUICK
@given(
    ROWS, st.none() | st.lists(st.sampled_from([0.0, 0.5, 2.0, -1.0, np.nan, np.inf, 1e308]), min_size=16, max_size=16),
    SHIFTS, st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_seeds_are_taken_alike(
    rows: list[list[int]], weights: list[float] | None, shift: int, dtype: torch.dtype
) -> None:
    """The same refusal, or shares with the same bits."""
    seeds = lists(rows)
    seeds.offsets[-1] += shift
    mass = None
    if weights is not None:
        mass = Ragged(torch.tensor(weights[: len(seeds.values)], dtype=dtype), seeds.offsets)
    with np.errstate(all="ignore"):
        compiled = refusal(lambda: teleport_of_seeds(N, seeds, mass))
        assert compiled == slow_refusal(lambda: teleport_of_seeds(N, seeds, mass))
        if compiled:
            return
        found = teleport_of_seeds(N, seeds, mass)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pagerank_teleport, "compiled_checks", lambda device: None)
            slow = teleport_of_seeds(N, seeds, mass)
    for name in ("offsets", "nodes", "mass"):
        one, other = getattr(found, name), getattr(slow, name)
        assert one.dtype == other.dtype and np.array_equal(one, other), name


@QUICK
@given(ROWS, SHIFTS)
def test_keywords_of_questions_are_refused_alike(rows: list[list[int]], shift: int) -> None:
    words = lists(rows)
    words.offsets[-1] += shift
    vectors = torch.nn.functional.normalize(torch.ones(len(rows), 3))
    things = described(torch.eye(3), lists([[0], [1, 2], []]), 3)
    wanted = lists([[0]] * len(rows))
    asked = FrontierQuery(vectors, words)
    call = lambda: score_lists(asked, things, wanted)  # noqa: E731
    assert refusal(call) == slow_refusal(call)
