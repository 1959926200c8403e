"""Checks of ragged lists with numba and without, and their pieces, against plain loops."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput
from gpu_rag.graph import ragged
from gpu_rag.graph.ragged import check_ragged, expand
from gpu_rag.types import Ragged

N = 6


def is_set(values: list[int], offsets: list[int]) -> bool:
    """Whether the offsets cut the values into lists, each strictly ascending and in [0, N)."""
    if offsets[0] != 0 or offsets[-1] != len(values) or offsets != sorted(offsets):
        return False
    lists = [values[a:b] for a, b in zip(offsets, offsets[1:])]
    return all(0 <= v < N for v in values) and all(one == sorted(set(one)) for one in lists)


def message(check: object, lists: Ragged) -> str:
    try:
        check(lists)  # type: ignore[operator]
    except BadInput as error:
        return str(error)
    return ""


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, N - 1), unique=True, max_size=4), max_size=4), st.randoms(), st.integers(0, 3))
def test_sets_are_those_of_a_loop(compiled: bool, rows: list[list[int]], rng: random.Random, wrong: int) -> None:
    """Sound lists, and such where a value or an offset was changed; what is said names the fault."""
    values, offsets = [v for row in rows for v in sorted(row)], [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    if wrong == 1 and values:
        values[rng.randrange(len(values))] = rng.randrange(-1, N + 1)
    if wrong == 2:
        offsets[rng.randrange(len(offsets))] += rng.choice((-2, -1, 1, 9))
    lists = Ragged(torch.tensor(values, dtype=torch.int64), torch.tensor(offsets))

    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(ragged, "compiled_checks", lambda _: None)
        said = message(lambda one: check_ragged(one, "lists", n=N, ascending=True), lists)
        in_range = message(lambda one: check_ragged(one, "lists", n=N), lists)
    assert said == in_range or (in_range == "" and "not in order" in said)
    assert (said == "") == is_set(values, offsets)


@pytest.mark.parametrize("most", [1, 3, 7, 1000])
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=12))
def test_pieces_hold_all_and_no_more_than_they_may(most: int, spans: list[tuple[int, int]]) -> None:
    first = torch.tensor([a for a, _ in spans], dtype=torch.int64)
    last = torch.tensor([a + length for a, length in spans], dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "EXPAND_AT_ONCE", most)
        pieces = [(owner.tolist(), place.tolist()) for owner, place in expand(first, last)]
    found = [pair for owner, place in pieces for pair in zip(owner, place)]
    assert found == [(i, p) for i, (a, length) in enumerate(spans) for p in range(a, a + length)]
    assert all(len(owner) <= most or len(set(owner)) == 1 for owner, _ in pieces)
    assert len(pieces) <= max(1, len(spans))
