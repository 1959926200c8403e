"""Building and checking CSR matrices, against dense ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput
from gpu_rag.graph import ragged
from gpu_rag.graph.csr import check_csr, csr_from_edges, degrees, is_symmetric, transpose
from gpu_rag.graph.ragged import check_ragged, expand
from gpu_rag.types import CSR, Ragged

Build = Callable[..., CSR]


def dense(csr: CSR) -> np.ndarray:
    a = np.zeros((csr.n, csr.n))
    rows = np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy()))
    np.add.at(a, (rows, csr.indices.numpy()), 1.0 if csr.weight is None else csr.weight.double().numpy())
    return a


Edges = tuple[int, list[tuple[int, int]], list[float] | None]


@st.composite
def edges(draw: st.DrawFn) -> Edges:
    n = draw(st.integers(1, 9))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30))
    weighted = draw(st.booleans())
    weight = draw(st.lists(st.floats(0, 8, width=32), min_size=len(pairs), max_size=len(pairs)))
    return n, pairs, weight if weighted else None


def check_build(build: Build, case: Edges, undirected: bool, drop: bool) -> None:
    n, pairs, weight = case
    ends = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    values = None if weight is None else torch.tensor(weight, dtype=torch.float32)
    csr = build(ends[:, 0], ends[:, 1], n, values, undirected=undirected, drop_self_loops=drop)
    check_csr(csr)
    expected, present = np.zeros((n, n)), np.zeros((n, n))
    for (a, b), w in zip(pairs, weight or [1.0] * len(pairs), strict=True):
        if a == b and drop:
            continue
        for row, column in {(a, b), (b, a)} if undirected else {(a, b)}:
            expected[row, column] += w
            present[row, column] = 1
    assert csr.m == present.sum()
    assert np.allclose(dense(csr), present if weight is None else expected, rtol=1e-6)
    if undirected:
        assert is_symmetric(csr)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(edges(), st.booleans(), st.booleans())
def test_edges_become_the_matrix(case: Edges, undirected: bool, drop: bool) -> None:
    check_build(csr_from_edges, case, undirected, drop)


def doubled_loops(src: torch.Tensor, dst: torch.Tensor, n: int, weight: torch.Tensor | None, **_: bool) -> CSR:
    """Both directions of a loop counted as two edges."""
    twice = None if weight is None else torch.cat([weight, weight])
    both = (torch.cat([src, dst]), torch.cat([dst, src]))
    return csr_from_edges(*both, n, twice, undirected=False, drop_self_loops=False)


def one_way(src: torch.Tensor, dst: torch.Tensor, n: int, weight: torch.Tensor | None, **_: bool) -> CSR:
    return csr_from_edges(src, dst, n, weight, undirected=False, drop_self_loops=False)


@pytest.mark.parametrize("wrong", [doubled_loops, one_way])
def test_checks_catch(wrong: Build) -> None:
    with pytest.raises(AssertionError):
        check_build(wrong, (3, [(0, 1), (2, 2), (1, 0)], [1.0, 2.0, 4.0]), True, False)


def test_by_hand() -> None:
    csr = csr_from_edges(torch.tensor([0, 2, 1], dtype=torch.int32), torch.tensor([1, 1, 0], dtype=torch.int32), 4)
    assert csr.indptr.tolist() == [0, 1, 3, 4, 4] and csr.indices.tolist() == [1, 0, 2, 1]
    assert csr.indptr.dtype == torch.int64 and csr.indices.dtype == torch.int32 and csr.weight is None
    assert degrees(csr).tolist() == [1, 2, 1, 0]


def test_mirrored_weights_have_equal_bits() -> None:
    """Sums of floats in another order differ: each pair is summed once and then mirrored."""
    r = np.random.default_rng(0)
    pairs = torch.from_numpy(r.integers(0, 4, (2, 3000)))
    csr = csr_from_edges(pairs[0], pairs[1], 4, torch.from_numpy(r.random(3000).astype(np.float32) * 1e-3 + 1e-9))
    a = dense(csr)
    assert np.array_equal(a, a.T)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(edges())
def test_transpose_and_degrees(case: Edges) -> None:
    n, pairs, weight = case
    ends = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    values = None if weight is None else torch.tensor(weight, dtype=torch.float32)
    csr = csr_from_edges(ends[:, 0], ends[:, 1], n, values, undirected=False)
    a, turned = dense(csr), transpose(csr)
    check_csr(turned)
    assert np.array_equal(dense(turned), a.T)
    assert np.allclose(degrees(csr).numpy(), a.sum(1))
    pattern = dense(CSR(csr.indptr, csr.indices))
    assert is_symmetric(csr) == (np.array_equal(a, a.T) and np.array_equal(pattern, pattern.T))


def i64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("match", "csr"),
    [
        ("falls.*row 1", CSR(i64(0, 2, 1, 2), i32(0, 1))),
        ("not sorted.*row 1", CSR(i64(0, 1, 3), i32(1, 1, 0))),
        ("duplicate.*row 1", CSR(i64(0, 0, 2), i32(1, 1))),
    ],
)
def test_check_names_the_broken_row(match: str, csr: CSR) -> None:
    with pytest.raises(BadInput, match=match):
        check_csr(csr)


def test_a_row_may_start_below_the_end_of_the_row_before() -> None:
    check_csr(CSR(i64(0, 2, 4, 4), i32(1, 2, 0, 2)))
    check_csr(CSR(i64(0, 0, 1, 2), i32(1, 1)))
    check_csr(CSR(i64(0), i32()))


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("dst of an edge is no node; given 3 at position 1", lambda: csr_from_edges(i64(0, 1), i64(1, 3), 3)),
        ("src of an edge is no node", lambda: csr_from_edges(i64(-1), i64(1), 3)),
        ("differ in length", lambda: csr_from_edges(i64(0), i64(1, 2), 3)),
        ("no list of nodes", lambda: csr_from_edges(torch.tensor([0.0]), i64(1), 3)),
        ("number of nodes", lambda: csr_from_edges(i64(), i64(), -1)),
        ("weights do not match", lambda: csr_from_edges(i64(0), i64(1), 3, torch.ones(2))),
        ("negative or not finite", lambda: csr_from_edges(i64(0), i64(1), 3, torch.tensor([float("inf")]))),
    ],
)
def test_bad_edges_say_what(match: str, call: Callable[[], object]) -> None:
    with pytest.raises(BadInput, match=match):
        call()


# --- checks of ragged lists with numba and without, and their pieces, against plain loops ----------


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
