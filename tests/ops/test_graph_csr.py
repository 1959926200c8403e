"""Building and checking CSR matrices, against dense ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import check_csr, csr_from_edges, degrees, is_symmetric, transpose
from gpu_rag.types import CSR

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
