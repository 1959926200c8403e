"""Build and check sparse matrices in row form (`CSR`): the adjacency that every graph op uses."""

from __future__ import annotations

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import ANY_FLOAT, INTEGERS, are_masses, check_form
from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.memory import check_memory
from gpu_rag.lazy import torch
from gpu_rag.types import CSR


def csr_from_edges(
    src: torch.Tensor,
    dst: torch.Tensor,
    n: int,
    weight: torch.Tensor | None = None,
    *,
    undirected: bool = True,
    drop_self_loops: bool = True,
) -> CSR:
    """The adjacency of a list of edges; an edge given several times becomes one entry with the sum of its weights.

    src, dst: i32/i64[M], nodes in [0, n). weight: float[M], finite and >= 0, or None for a matrix without weights.
    undirected: every edge is stored in both directions ((a, b) and (b, a) are the same edge, and both stored weights
    have the same bits). drop_self_loops: drop edges a -> a; else keep each once.
    Returns CSR with indptr i64[n+1], indices i32[E], weight f32[E] or None, on the device of `src`. Weights are summed
    in f64, in the given order; a sum must fit f32. Raises BadInput. Memory O(M).

    >>> csr_from_edges(torch.tensor([0, 2]), torch.tensor([1, 1]), 4).indptr.tolist()   # path 0 - 1 - 2, and 3 alone
    [0, 1, 3, 4, 4]
    """
    _check_edges(src, dst, n, weight)
    check_memory(24 * (n + src.shape[0]), src.device, f"a graph of {n:,} nodes", "split it")
    src, dst = src.long(), dst.long()
    values = None if weight is None else weight.double()
    if drop_self_loops:
        keep = src != dst
        src, dst = src[keep], dst[keep]
        values = None if values is None else values[keep]
    if undirected:
        src, dst = torch.minimum(src, dst), torch.maximum(src, dst)
    key, values = _merged(src * n + dst, values)
    if undirected:  # mirrored after the sum: both directions get one value
        row, column = (key // n, key % n) if n else (key, key)
        off_diagonal = row != column
        key = torch.cat([key, (column * n + row)[off_diagonal]])
        key, order = torch.sort(key)
        values = None if values is None else torch.cat([values, values[off_diagonal]])[order]
    rows, columns = (key // n, key % n) if n else (key, key)
    narrow = None if values is None else values.float()
    if values is not None and narrow is not None and not bool(torch.isfinite(narrow).all()):
        given = f"a sum of {float(values.max()):.3g}"
        raise BadInput("the weights of an edge are too large", given=given, expected="sums below 3.4e38")
    return _assembled(rows, columns, n, narrow)


def _check_edges(src: torch.Tensor, dst: torch.Tensor, n: int, weight: torch.Tensor | None) -> None:
    if n < 0 or n > 2**31 - 1:
        raise BadInput("the number of nodes is out of range", given=f"n={n}", expected="0 <= n < 2^31")
    check_form(src, "src is not a list of nodes", INTEGERS, ["M"])
    check_form(dst, "src and dst differ in length or form", INTEGERS, src.shape, src.device)
    for name, ends in (("src", src), ("dst", dst)):
        check_range(ends, n, f"{name} of an edge")
    if weight is not None:
        _check_weights(weight, src)


def check_range(nodes: torch.Tensor, n: int, what: str, kind: str = "node") -> None:
    """Raise BadInput that names the first of `nodes` (or numbers of another kind) outside [0, n)."""
    if is_trusted(nodes.device):
        return
    bad = nodes < 0
    if n <= torch.iinfo(nodes.dtype).max:  # torch would wrap a larger number to this dtype
        bad |= nodes >= n
    if bool(bad.any()):
        position = int(bad.nonzero()[0, 0])
        given = f"{int(nodes[position])} at position {position}"
        raise BadInput(f"{what} is no {kind}", given=given, expected=f"0 <= {kind} < {n}")


def _check_weights(weight: torch.Tensor, edges: torch.Tensor) -> None:
    check_form(weight, "weights do not match the edges", ANY_FLOAT, edges.shape, edges.device)
    if not bool(are_masses(weight)):
        position = int((~(torch.isfinite(weight) & (weight >= 0))).nonzero()[0, 0])
        given = f"{float(weight[position])} at position {position}"
        raise BadInput("a weight is negative or not finite", given=given, expected="finite and >= 0")


def _merged(key: torch.Tensor, values: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Distinct keys in ascending order, and the sum of each key's values in the given order."""
    if values is None:
        return torch.unique(key), None
    key, order = torch.sort(key, stable=True)
    key, counts = torch.unique_consecutive(key, return_counts=True)
    if key.numel() == 0:
        return key, values
    return key, torch.segment_reduce(values[order], "sum", lengths=counts)


def _assembled(rows: torch.Tensor, columns: torch.Tensor, n: int, weight: torch.Tensor | None) -> CSR:
    """The CSR of entries that are already ordered by (row, column)."""
    if rows.device.type == "cpu":
        return CSR(offsets_of(torch.bincount(rows, minlength=n)), columns.int(), weight)
    # rows ascend; `bincount` would wait to learn its size
    return CSR(torch.searchsorted(rows, torch.arange(n + 1, device=rows.device)), columns.int(), weight)


def check_csr(csr: CSR) -> None:
    """Raise BadInput that names the problem in `csr`; return nothing if it is sound. All of it is read once, with one
    wait for a device.

    Sound: indptr i64[N+1] from 0 to E, never falling; indices i32[E] in [0, N), ascending in each row, no duplicates;
    weight None or f32[E], finite and >= 0; one device.
    """
    _check_arrays(csr)
    if is_trusted(csr.indptr.device):
        return
    indptr, indices, n, m = csr.indptr, csr.indices, csr.n, csr.m
    falls, begins = indptr.diff() < 0, torch.zeros(m + 1, dtype=torch.bool, device=indptr.device)
    begins[indptr.clamp(0, m)] = True
    unordered = (indices[1:] <= indices[:-1]) & ~begins[1:m]
    broken = (indptr[0] != 0) | (indptr[-1] != m) | falls.any() | unordered.any()
    if m:
        low, high = indices.aminmax()
        broken |= (low < 0) | (high >= n)
    if csr.weight is not None:
        broken |= ~are_masses(csr.weight)
    if not bool(broken):
        return
    if int(indptr[0]) != 0 or int(indptr[-1]) != m:
        given = f"{int(indptr[0])} to {int(indptr[-1])}"
        raise BadInput("indptr of a CSR has wrong ends", given=given, expected=f"0 to {m}")
    if bool(falls.any()):
        row = int(falls.nonzero()[0, 0])
        raise BadInput("indptr of a CSR falls", given=f"row {row}", expected="a list that never falls")
    check_range(indices, n, "a column index of a CSR")
    if bool(unordered.any()):
        entry = int(unordered.nonzero()[0, 0])
        what = "has a duplicate entry" if int(indices[entry]) == int(indices[entry + 1]) else "is not sorted"
        row = int(row_of_entry(csr)[entry])
        raise BadInput(f"a row of a CSR {what}", given=f"row {row}", expected="ascending columns, each once")
    if csr.weight is not None:
        _check_weights(csr.weight, indices)


def _check_arrays(csr: CSR) -> None:
    device = csr.indptr.device
    check_form(csr.indptr, "indptr of a CSR has the wrong type", ["i64"], ["N + 1"])
    check_form(csr.indices, "indices of a CSR have the wrong type", ["i32"], ["E"], device)
    if csr.weight is not None:
        check_form(csr.weight, "weight of a CSR has the wrong type", ["f32"], ["E"], device)
        check_form(csr.weight, "weights do not match the edges", ANY_FLOAT, csr.indices.shape)
    if csr.indptr.shape[0] == 0:
        raise BadInput("indptr of a CSR has wrong ends", given="empty", expected=f"0 to {csr.m}")


def row_of_entry(csr: CSR) -> torch.Tensor:
    """The row of every stored entry: i64[E]."""
    rows = torch.arange(csr.n, device=csr.indptr.device)
    return torch.repeat_interleave(rows, csr.indptr.diff(), output_size=csr.m)


def weights_of(csr: CSR) -> torch.Tensor:
    """The weight of every stored entry, 1 without weights: f32[E]."""
    return torch.ones(csr.m, device=csr.indptr.device) if csr.weight is None else csr.weight


def transpose(csr: CSR) -> CSR:
    """The transposed matrix, rows sorted. O(E log E), deterministic."""
    order = torch.sort(csr.indices, stable=True).indices
    weight = None if csr.weight is None else csr.weight[order]
    return _assembled(csr.indices.long()[order], row_of_entry(csr)[order], csr.n, weight)


def is_symmetric(csr: CSR) -> bool:
    """Whether `csr` equals its transpose, with weights compared bit by bit (as `csr_from_edges` makes them)."""
    other = transpose(csr)
    same = (csr.indptr == other.indptr).all() & (csr.indices == other.indices).all()
    if csr.weight is not None and other.weight is not None:
        same &= (csr.weight == other.weight).all()
    return bool(same)


def degrees(csr: CSR) -> torch.Tensor:
    """Weighted degree of each row: f64[N], the sum of its weights (without weights the number of its entries)."""
    counts = csr.indptr.diff()
    if csr.weight is None or csr.m == 0:
        return counts.double()
    return torch.segment_reduce(csr.weight.double(), "sum", lengths=counts)
