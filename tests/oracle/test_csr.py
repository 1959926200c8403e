"""CSR building, transposing, symmetry and degrees against scipy; bad edges; wrong versions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes, refusals

from gpu_rag.errors import BadInput, GpuRagError
from gpu_rag.graph.csr import check_csr, csr_from_edges, degrees, is_symmetric, transpose
from gpu_rag.types import CSR

QUICK = settings(max_examples=35, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
Edges = list[tuple[int, int, int]]


@st.composite
def edge_lists(draw: Any) -> tuple[int, Edges]:
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    return n, draw(st.lists(st.tuples(node, node, st.integers(1, 12)), max_size=30))


def tensors(edges: Edges, dtype: torch.dtype = torch.int64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    table = np.array(edges, dtype=np.int64).reshape(-1, 3)
    src, dst = torch.tensor(table[:, 0]).to(dtype), torch.tensor(table[:, 1]).to(dtype)
    return src, dst, torch.tensor(table[:, 2] / 4, dtype=torch.float32)


def scipy_matrix(n: int, edges: Edges, *, weighted: bool, undirected: bool, drop_self_loops: bool) -> sp.csr_matrix:
    """The meaning: sum (or merge) duplicates; undirected = each edge in both directions, a loop once."""
    kept = [e for e in edges if not (drop_self_loops and e[0] == e[1])]
    if undirected:
        kept = kept + [(d, s, w) for s, d, w in kept if s != d]
    src, dst, w = (np.array([e[i] for e in kept], dtype=np.int64) for i in range(3))
    out = sp.coo_matrix((w / 4 if weighted else np.ones(len(kept)), (src, dst)), shape=(n, n)).tocsr()
    out.sum_duplicates()
    if not weighted:
        out.data[:] = 1
    return out


def from_scipy(m: sp.csr_matrix, weighted: bool) -> CSR:
    m.sort_indices()
    weight = torch.tensor(m.data, dtype=torch.float32) if weighted else None
    return CSR(torch.tensor(m.indptr, dtype=torch.int64), torch.tensor(m.indices, dtype=torch.int32), weight)


def to_scipy(csr: CSR) -> sp.csr_matrix:
    data = np.ones(csr.m) if csr.weight is None else csr.weight.numpy()
    return sp.csr_matrix((data, csr.indices.numpy(), csr.indptr.numpy()), shape=(csr.n, csr.n))


def assert_same(got: CSR, want: CSR) -> None:
    assert got.indptr.dtype == torch.int64 and got.indices.dtype == torch.int32
    assert got.indptr.tolist() == want.indptr.tolist()
    assert got.indices.tolist() == want.indices.tolist()
    assert (got.weight is None) == (want.weight is None)
    if want.weight is not None:
        assert got.weight.dtype == torch.float32 and got.weight.tolist() == want.weight.tolist()


def check_build(build: Callable[..., CSR]) -> None:
    """Weights are multiples of 1/4, so their sums are exact whatever the order."""

    @QUICK
    @given(edge_lists(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([torch.int64, torch.int32]))
    def holds(case: Any, weighted: bool, undirected: bool, drop: bool, dtype: torch.dtype) -> None:
        n, edges = case
        src, dst, w = tensors(edges, dtype)
        got = build(src, dst, n, w if weighted else None, undirected=undirected, drop_self_loops=drop)
        want = scipy_matrix(n, edges, weighted=weighted, undirected=undirected, drop_self_loops=drop)
        assert_same(got, from_scipy(want, weighted))

    holds()


def check_defaults(build: Callable[..., CSR]) -> None:
    """Undirected and without self-loops unless asked otherwise; isolated nodes keep their empty rows."""
    src, dst = torch.tensor([3, 0, 0, 2, 3]), torch.tensor([0, 3, 3, 2, 1])
    got = build(src, dst, 6)
    assert got.indptr.tolist() == [0, 1, 2, 2, 4, 4, 4] and got.indices.tolist() == [3, 3, 0, 1]
    assert got.weight is None
    got = build(src, dst, 6, torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert got.weight.tolist() == [7.0, 16.0, 7.0, 16.0]
    got = build(src, dst, 6, torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), drop_self_loops=False)
    assert got.weight.tolist() == [7.0, 16.0, 8.0, 7.0, 16.0], "a loop counts once"


def build_by_scipy(src: Any, dst: Any, n: int, weight: Any = None, *, undirected: bool = True, **o: Any) -> CSR:
    w = weight if weight is not None else torch.full((len(src),), 0.25)
    edges = [(int(s), int(d), int(x * 4)) for s, d, x in zip(src, dst, w)]
    m = scipy_matrix(
        n, edges, weighted=weight is not None, undirected=undirected, drop_self_loops=o.get("drop_self_loops", True)
    )
    return from_scipy(m, weight is not None)


def merges_weights(src: Any, dst: Any, n: int, weight: Any = None, **o: Any) -> CSR:
    """Wrong: of duplicates the last weight wins."""
    last = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(src, dst))}
    keep = torch.tensor(sorted(last.values()), dtype=torch.int64)
    return build_by_scipy(src[keep], dst[keep], n, None if weight is None else weight[keep], **o)


def counts_duplicates(src: Any, dst: Any, n: int, weight: Any = None, **o: Any) -> CSR:
    """Wrong: an unweighted graph becomes weighted by how often an edge was given."""
    return build_by_scipy(src, dst, n, torch.ones(len(src)) if weight is None else weight, **o)


def one_way(src: Any, dst: Any, n: int, weight: Any = None, **o: Any) -> CSR:
    return build_by_scipy(src, dst, n, weight, **{**o, "undirected": False})


def keeps_loops(src: Any, dst: Any, n: int, weight: Any = None, **o: Any) -> CSR:
    return build_by_scipy(src, dst, n, weight, **{**o, "drop_self_loops": False})


def doubled_loops(src: Any, dst: Any, n: int, weight: Any = None, *, undirected: bool = True, **o: Any) -> CSR:
    """Wrong: both directions of a loop counted as two edges."""
    both = (torch.cat([src, dst]), torch.cat([dst, src])) if undirected else (src, dst)
    twice = torch.cat([weight, weight]) if undirected and weight is not None else weight
    return build_by_scipy(*both, n, twice, undirected=False, **o)


def unsorted(*args: Any, **o: Any) -> CSR:
    got = build_by_scipy(*args, **o)
    rows = [got.indices[s:e].flip(0) for s, e in zip(got.indptr[:-1], got.indptr[1:])]
    return CSR(got.indptr, torch.cat(rows), got.weight)


WRONG_BUILDS = [merges_weights, counts_duplicates, one_way, keeps_loops, unsorted]
test_wrong_builds_are_caught = caught(WRONG_BUILDS, check_build)
test_wrong_defaults_are_caught = caught([*WRONG_BUILDS, doubled_loops], check_defaults)
test_csr_from_edges = passes([build_by_scipy, csr_from_edges], [check_build, check_defaults])


def test_csr_from_no_edges() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for n in (0, 3):
        got = csr_from_edges(none, none, n)
        assert got.indptr.tolist() == [0] * (n + 1) and got.m == 0
        check_csr(got)
    check_csr(csr_from_edges(none, none, 2, torch.zeros(0)))


def test_csr_from_edges_does_not_write_to_its_inputs() -> None:
    src, dst, w = torch.tensor([2, 0, 2]), torch.tensor([1, 1, 1]), torch.tensor([3.0, 2.0, 1.0])
    kept = [t.clone() for t in (src, dst, w)]
    csr_from_edges(src, dst, 3, w)
    assert all(torch.equal(a, b) for a, b in zip(kept, (src, dst, w)))


def i64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


test_bad_edges_say_what = refusals(
    [
        ("dst of an edge is no node; given 3 at position 1", lambda: csr_from_edges(i64(0, 1), i64(1, 3), 3)),
        ("src of an edge is no node", lambda: csr_from_edges(i64(-1), i64(1), 3)),
        ("differ in length", lambda: csr_from_edges(i64(0), i64(1, 2), 3)),
        ("negative or not finite", lambda: csr_from_edges(i64(0), i64(1), 3, torch.tensor([torch.nan]))),
    ]
)


def test_mirrored_weights_have_equal_bits() -> None:
    """Sums of floats in another order differ: each pair is summed once and then mirrored."""
    r = np.random.default_rng(0)
    pairs = torch.from_numpy(r.integers(0, 4, (2, 3000)))
    built = csr_from_edges(pairs[0], pairs[1], 4, torch.from_numpy(r.random(3000).astype(np.float32) * 1e-3 + 1e-9))
    a = to_scipy(built).toarray()
    assert np.array_equal(a, a.T)


def directed(case: tuple[int, Edges], weighted: bool) -> CSR:
    return build_by_scipy(*tensors(case[1])[:2], case[0], tensors(case[1])[2] if weighted else None, undirected=False)


def csr(ptr: list[int], ids: list[int], w: list[float] | None = None, **dtypes: torch.dtype) -> CSR:
    weight = None if w is None else torch.tensor(w, dtype=dtypes.get("weight", torch.float32))
    indptr = torch.tensor(ptr, dtype=dtypes.get("indptr", torch.int64))
    return CSR(indptr, torch.tensor(ids, dtype=dtypes.get("indices", torch.int32)), weight)


def check_transpose(turn: Callable[[CSR], CSR]) -> None:
    @QUICK
    @given(edge_lists(), st.booleans())
    def holds(case: Any, weighted: bool) -> None:
        m = directed(case, weighted)
        assert_same(turn(m), from_scipy(to_scipy(m).T.tocsr(), weighted))

    holds()


def check_symmetry(symmetric: Callable[[CSR], bool]) -> None:
    @QUICK
    @given(edge_lists(), st.booleans(), st.booleans())
    def holds(case: Any, weighted: bool, mirrored: bool) -> None:
        m = directed(case, weighted)
        if mirrored:
            m = from_scipy((to_scipy(m) + to_scipy(m).T).tocsr(), True)
        a = to_scipy(m).toarray()
        assert symmetric(m) == bool((a == a.T).all())

    holds()
    assert symmetric(csr([0, 1, 2], [1, 0], [1.0, 1.0])) is True
    assert symmetric(csr([0, 1, 2], [1, 0], [1.0, 2.0])) is False, "same pattern, other weights"
    assert symmetric(csr([0, 1, 2, 3], [1, 2, 0])) is False, "a directed ring"
    assert symmetric(csr([0], [])) is True


def check_degrees(sums: Callable[[CSR], torch.Tensor]) -> None:
    @QUICK
    @given(edge_lists(), st.booleans())
    def holds(case: Any, weighted: bool) -> None:
        m = directed(case, weighted)
        got = sums(m)
        assert got.dtype in (torch.float32, torch.float64)
        assert got.tolist() == np.asarray(to_scipy(m).sum(1)).ravel().tolist()

    holds()


def scipy_transpose(m: CSR) -> CSR:
    return from_scipy(to_scipy(m).T.tocsr(), m.weight is not None)


def scipy_degrees(m: CSR, axis: int = 1, weighted: bool = True) -> torch.Tensor:
    a = to_scipy(m) if weighted else to_scipy(m).astype(bool)
    return torch.tensor(np.asarray(a.sum(axis)).ravel(), dtype=torch.float32)


def same_pattern(m: CSR) -> bool:
    a = to_scipy(m).toarray() > 0
    return bool((a == a.T).all())


def same_degrees(m: CSR) -> bool:
    return scipy_degrees(m, 0).tolist() == scipy_degrees(m, 1).tolist()


WRONG_REST = [
    (lambda m: m, check_transpose),
    (lambda m: CSR(scipy_transpose(m).indptr, scipy_transpose(m).indices, m.weight), check_transpose),
    (same_pattern, check_symmetry),
    (same_degrees, check_symmetry),
    (lambda m: True, check_symmetry),
    (lambda m: scipy_degrees(m, axis=0), check_degrees),
    (lambda m: scipy_degrees(m, weighted=False), check_degrees),
]
test_wrong_transposes_symmetries_and_degrees_are_caught = caught(WRONG_REST)
test_transpose = passes([scipy_transpose, transpose], [check_transpose])


def test_is_symmetric_and_degrees() -> None:
    check_symmetry(is_symmetric)
    check_degrees(degrees)
    check_degrees(scipy_degrees)


# --- check_csr accepts every valid matrix and names what is broken in a malformed one; checkers with a hole are caugh


VALID = {
    "empty": csr([0], []),
    "no edges": csr([0, 0, 0], []),
    "falls from row to row": csr([0, 2, 3, 3], [0, 2, 1]),
    "same column in two rows": csr([0, 1, 2, 3], [1, 1, 1]),
    "weighted": csr([0, 2, 3], [0, 1, 0], [0.5, 0.0, 2.0]),
    "empty rows between": csr([0, 0, 2, 2, 3], [1, 3, 0]),
}
MALFORMED = {  # name: (matrix, a word of the message)
    "no indptr": (csr([], []), "indptr"),
    "indptr of two axes": (CSR(torch.tensor([[0, 1]]), torch.tensor([0], dtype=torch.int32)), "indptr"),
    "indptr int32": (csr([0, 1], [0], indptr=torch.int32), "indptr"),
    "indptr starts late": (csr([1, 2], [0, 0]), "indptr"),
    "indptr falls": (csr([0, 2, 1, 3], [0, 1, 2]), "indptr"),
    "indptr ends early": (csr([0, 1, 2], [0, 1, 1]), "indptr"),
    "indptr ends late": (csr([0, 1, 3], [0, 1]), "indptr"),
    "indices of two axes": (CSR(torch.tensor([0, 1]), torch.tensor([[0]], dtype=torch.int32)), "ind"),
    "indices int64": (csr([0, 1], [0], indices=torch.int64), "ind"),
    "column too large": (csr([0, 1, 2], [0, 2]), "ind"),
    "column negative": (csr([0, 1, 2], [0, -1]), "ind"),
    "row not sorted": (csr([0, 2, 2], [1, 0]), "sort"),
    "last row not sorted": (csr([0, 1, 1, 4], [2, 0, 2, 1]), "sort"),
    "duplicate": (csr([0, 2, 2], [1, 1]), "dup"),
    "weight too short": (csr([0, 1, 2], [0, 1], [1.0]), "weight"),
    "weight of two axes": (CSR(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32), torch.ones(1, 1)), "weight"),
    "weight float64": (csr([0, 1], [0], [1.0], weight=torch.float64), "weight"),
    "weight NaN": (csr([0, 1, 2], [0, 1], [1.0, float("nan")]), "weight"),
    "weight negative": (csr([0, 1, 2], [0, 1], [1.0, -0.5]), "weight"),
}


def check_checker(checker: Callable[[CSR], object]) -> None:
    for name, good in VALID.items():
        try:
            checker(good)
        except GpuRagError as error:
            raise AssertionError(f"refused a valid matrix ({name}): {error}") from error
    for name, (bad, word) in MALFORMED.items():
        try:
            checker(bad)
        except BadInput as error:
            assert word in str(error).lower(), f"{name}: the message names no {word!r}: {error}"
        else:
            raise AssertionError(f"accepted: {name}")


def reference_checker(m: CSR, leave_out: str = "", fussy: bool = False) -> None:
    n = int(m.indptr.numel()) - 1
    i64, i32, f32, w = torch.int64, torch.int32, torch.float32, m.weight
    lists = m.indptr.dim() == 1 and m.indices.dim() == 1
    rows = [m.indices[s:e].tolist() for s, e in zip(m.indptr.tolist(), m.indptr.tolist()[1:])] if lists else []
    broken = {
        "indptr shape or type": m.indptr.dim() != 1 or n < 0 or m.indptr.dtype != i64,
        "indices shape or type": m.indices.dim() != 1 or m.indices.dtype != i32,
        "weight shape or type": w is not None and (w.shape != m.indices.shape or w.dtype != f32),
        "indptr start": lists and n >= 0 and int(m.indptr[0]) != 0,
        "indptr end": lists and n >= 0 and int(m.indptr[-1]) != m.indices.numel(),
        "indptr falls": bool((m.indptr.diff() < 0).any()),
        "indices out of range": bool(((m.indices < 0) | (m.indices >= n)).any()),
        "not sorted": any(r != sorted(r) for r in rows) or (fussy and m.indices.tolist() != sorted(m.indices.tolist())),
        "duplicates": any(len(set(r)) != len(r) for r in rows) or (fussy and len(set(m.indices.tolist())) < m.m),
        "weight NaN": w is not None and bool(w.isnan().any()),
        "weight negative": w is not None and bool((w < 0).any()),
    }
    for what, is_broken in broken.items():
        if is_broken and what != leave_out:
            raise BadInput(what)


HOLES = ["indptr shape or type", "indices shape or type", "weight shape or type", "indptr start", "indptr end"]
HOLES += ["indptr falls", "indices out of range", "not sorted", "duplicates", "weight NaN", "weight negative"]
WRONG_CHECKERS = {
    "compares across rows": partial(reference_checker, fussy=True),
    **{f"without {what}": partial(reference_checker, leave_out=what) for what in HOLES},
}
test_wrong_checkers_are_caught = caught(WRONG_CHECKERS, check_checker)
test_check_csr = passes([reference_checker, check_csr], [check_checker])
