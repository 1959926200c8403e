"""check_csr accepts every valid matrix and names what is broken in a malformed one; checkers with a hole are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpu_rag.errors import BadInput, GpuRagError
from gpu_rag.graph.csr import check_csr
from gpu_rag.types import CSR


def csr(ptr: list[int], ids: list[int], w: list[float] | None = None, **dtypes: torch.dtype) -> CSR:
    weight = None if w is None else torch.tensor(w, dtype=dtypes.get("weight", torch.float32))
    indptr = torch.tensor(ptr, dtype=dtypes.get("indptr", torch.int64))
    return CSR(indptr, torch.tensor(ids, dtype=dtypes.get("indices", torch.int32)), weight)


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


WRONG_CHECKERS = ["indptr shape or type", "indices shape or type", "weight shape or type", "indptr start", "indptr end"]
WRONG_CHECKERS += ["indptr falls", "indices out of range", "not sorted", "duplicates", "weight NaN", "weight negative"]


@pytest.mark.parametrize("leave_out", WRONG_CHECKERS)
def test_a_checker_that_leaves_one_thing_out_is_caught(leave_out: str) -> None:
    with pytest.raises(AssertionError):
        check_checker(lambda m: reference_checker(m, leave_out))


def test_a_checker_that_compares_across_rows_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_checker(lambda m: reference_checker(m, fussy=True))


@pytest.mark.parametrize("checker", [reference_checker, check_csr])
def test_check_csr(checker: Any) -> None:
    check_checker(checker)
