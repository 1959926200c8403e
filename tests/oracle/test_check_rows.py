"""The compiled check of a matrix counts over all entries at once: it says what a look at every row says."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]
Check = Callable[..., bool]
MANY = settings(max_examples=600, deadline=None, derandomize=True)


def looks_at_every_row(indptr: Any, indices: Any, weight: Any, offsets: Any) -> bool:
    """Row pointers that never fall, from 0 to the number of entries; rows that ascend inside the block of their row;
    weights that are finite and not negative."""
    n, m = len(indptr) - 1, len(indices)
    if indptr[0] != 0 or indptr[n] != m or offsets[-1] != n or (weight is not None and len(weight) != m):
        return False
    if any(indptr[i] > indptr[i + 1] for i in range(n)):
        return False
    for b in range(len(offsets) - 1):
        for i in range(offsets[b], offsets[b + 1]):
            row = indices[indptr[i] : indptr[i + 1]].tolist()
            if row != sorted(set(row)) or any(not offsets[b] <= column < offsets[b + 1] for column in row):
                return False
    return weight is None or all(0 <= w < np.inf for w in weight.tolist())


@st.composite
def matrices(draw: st.DrawFn) -> Arrays:
    """Block-diagonal matrices, of which most have one fault planted: two entries exchanged or made equal, a column of
    another block, an entry that changes its row, a row pointer or a weight that is wrong."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    offsets = np.cumsum([0, *sizes])
    rows = [
        sorted(draw(st.sets(st.integers(lo, hi - 1), max_size=4)))
        for lo, hi in zip(offsets[:-1].tolist(), offsets[1:].tolist())
        for _ in range(hi - lo)
    ]
    indptr = np.cumsum([0] + [len(row) for row in rows])
    indices = np.array([column for row in rows for column in row], np.int32)
    weight = np.ones(len(indices), np.float32) if draw(st.booleans()) else None
    fault, m = (
        draw(st.sampled_from(["", "swap", "repeat", "column", "move", "pointer", "weight", "length"])),
        len(indices),
    )
    at = draw(st.integers(0, max(m - 2, 0)))
    if fault == "swap" and m > 1:
        indices[[at, at + 1]] = indices[[at + 1, at]]
    if fault == "repeat" and m > 1:
        indices[at + 1] = indices[at]
    if fault == "column" and m:
        indices[draw(st.integers(0, m - 1))] = draw(st.integers(-1, int(offsets[-1])))
    if fault in ("move", "pointer"):
        at = draw(st.integers(0, len(indptr) - 1))
        indptr[at] += draw(st.sampled_from([-1, 1] if fault == "move" else [-m - 1, -2, 2, m + 1]))
    if fault == "weight" and weight is not None and m:
        weight[draw(st.integers(0, m - 1))] = draw(st.sampled_from([-1.0, np.nan, np.inf, -0.0]))
    if fault == "length" and weight is not None:
        weight = weight[1:]
    return indptr, indices, weight, offsets


def check(is_matrix: Check) -> None:
    found = []

    @MANY
    @given(matrices())
    def compare(case: Arrays) -> None:
        expected = looks_at_every_row(*case)
        found.append(expected)
        assert bool(is_matrix(*case)) == expected

    compare()
    assert 0.2 < np.mean(found) < 0.8  # both kinds are among the draws


def test_says_what_a_look_at_every_row_says() -> None:
    from gpu_rag_kernels.checks import is_matrix

    check(is_matrix)


def with_rows(rows_of_blocks: Check) -> Check:
    """`is_matrix` with another way to look at the columns; all else as it should be."""

    def is_matrix(indptr: Any, indices: Any, weight: Any, offsets: Any) -> bool:
        n, m = len(indptr) - 1, len(indices)
        falls = indptr[0] != 0 or indptr[n] != m or offsets[-1] != n or (np.diff(indptr) < 0).any()
        if falls or (weight is not None and (len(weight) != m or not ((weight >= 0) & (weight < np.inf)).all())):
            return False
        return rows_of_blocks(indptr, indices, offsets)

    return is_matrix


def counted(indptr: Any, indices: Any, offsets: Any, *, empty_rows: bool = False, middle: bool = True) -> bool:
    """As the kernel counts. empty_rows: rows without entries are taken for places where a row begins. middle: columns
    between the first and the last of a row must ascend."""
    descents = int((indices[1:] <= indices[:-1]).sum())
    for b in range(len(offsets) - 1):
        for i in range(offsets[b], offsets[b + 1]):
            first, last = indptr[i], indptr[i + 1]
            if first < last and (indices[first] < offsets[b] or indices[last - 1] >= offsets[b + 1]):
                return False
            if 0 < first < len(indices) and (first < last or empty_rows):
                descents -= int(indices[first] <= indices[first - 1])
    return descents == 0 if middle else descents <= len(indptr)


def test_the_right_version_of_the_wrong_ones_passes() -> None:
    check(with_rows(counted))


WRONG: dict[str, Check] = {
    "an empty row is taken for one that begins": lambda *a: counted(*a, empty_rows=True),
    "the order inside a row is not looked at": lambda *a: counted(*a, middle=False),
    "columns may be equal": lambda indptr, indices, offsets: all(
        (np.diff(indices[indptr[i] : indptr[i + 1]]) >= 0).all() for i in range(len(indptr) - 1)
    ),
    "blocks are not looked at": lambda indptr, indices, offsets: counted(indptr, indices, offsets[[0, -1]]),
}


@pytest.mark.parametrize("name", WRONG)
def test_checks_catch(name: str) -> None:
    with pytest.raises(AssertionError):
        check(with_rows(WRONG[name]))
