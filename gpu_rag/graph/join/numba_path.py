"""`JoinIndex.best` on the CPU: fast products by torch, overlaps from inverted lists, scores scanned by numba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dots.numba import JoinLeft, JoinRight, join_tile, look_up

from gpu_rag.graph.common.arrays import component_bits, score_bits
from gpu_rag.graph.common.low_precision import LowPrecision, fastest_dtype, low_precision_rows, rounding_of, slack_of
from gpu_rag.graph.common.threads import run_parts
from gpu_rag.graph.ragged import arrays_of
from gpu_rag.types import Ragged

Array = np.ndarray[Any, Any]
ROWS, COLUMNS, SCORES = 256, 1 << 16, 1 << 20  # per product, at most
NO_GROUPS = torch.zeros(0, dtype=torch.int64)
ARITHMETIC = 2.0**-21  # 8 u of f32: a cut (2 u), less a score (1 u), times a union (1 u of a share), and space


@dataclass(frozen=True)
class Right:
    """The right side for the kernels. words: i64[W], its keywords, ascending; approx: its rows in `dtype`."""

    words: Array
    side: JoinRight
    dtype: torch.dtype
    approx: LowPrecision


def prepared(
    vectors: torch.Tensor, keywords: Ragged, groups: torch.Tensor | None, *, dtype: torch.dtype | None = None
) -> Right:
    """Prepare a checked right side. dtype: data type of the products, f32 or bf16; None: the fastest."""
    dtype = dtype or fastest_dtype()
    words, list_offsets, list_rows, size = inverted(keywords)
    side = JoinRight(
        component_bits(vectors), (NO_GROUPS if groups is None else groups.long()).numpy(), size, list_offsets, list_rows
    )
    return Right(words, side, dtype, low_precision_rows(vectors, dtype))


def inverted(keywords: Ragged) -> tuple[Array, Array, Array, Array]:
    """(words i64[W] ascending, list_offsets i64[W+1], list_rows i32[T] ascending, size i32[N]) of distinct keywords."""
    values, offsets = arrays_of(keywords)
    n, values = keywords.batch, values.astype(np.int64)
    row = np.repeat(np.arange(n), np.diff(offsets))
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    names = None
    if (high - low + 1) * max(n, 1) >= 2**62:
        names, values = np.unique(values, return_inverse=True)
        low = 0
    keys = np.sort((values - low) * max(n, 1) + row)
    keys = keys[np.diff(keys, prepend=-1) != 0]
    word = keys // max(n, 1)
    list_rows = (keys - word * max(n, 1)).astype(np.int32)
    first = np.flatnonzero(np.diff(word, prepend=-1))
    words = word[first] + low if names is None else names[word[first]]
    size = np.bincount(list_rows, minlength=n).astype(np.int32)
    return words, np.append(first, len(keys)), list_rows, size


def _left(vectors: torch.Tensor, keywords: Ragged, groups: torch.Tensor | None, words: Array) -> JoinLeft:
    values, offsets = arrays_of(keywords)
    n = keywords.batch
    size, found_offsets, numbers = np.empty(n, np.int32), np.zeros(n + 1, np.int64), np.empty(len(values), np.int32)
    look_up(offsets, values.astype(np.int64), words, size, found_offsets, numbers)
    group = (NO_GROUPS if groups is None else groups.long()).numpy()
    return JoinLeft(component_bits(vectors), group, size, found_offsets, numbers)


def join_by_numba(
    left: torch.Tensor, keywords: Ragged, groups: torch.Tensor | None, right: Right, threads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Best f64[Nl] and index i64[Nl] of a checked left side."""
    n_left, n_right = left.shape[0], len(right.side.size)
    best, index = np.full(n_left, -np.inf), np.full(n_left, -1, np.int64)
    if not n_left or not n_right:
        return torch.from_numpy(best), torch.from_numpy(index)
    side, approx = _left(left, keywords, groups, right.words), low_precision_rows(left, right.dtype)
    step = min(n_right, COLUMNS, SCORES // min(n_left, ROWS))
    for j0 in range(0, n_right, step):
        columns = right.approx.part(j0, min(j0 + step, n_right))
        slack = slack_of(approx, columns) + rounding_of(right.dtype) * approx.length * columns.length.max() + ARITHMETIC

        def join(i0: int, j0: int = j0, columns: LowPrecision = columns, slack: Array = slack) -> None:
            scores = score_bits(approx.rows[i0 : i0 + ROWS] @ columns.rows.T)
            join_tile(scores, i0, j0, side, right.side, float(slack[i0 : i0 + ROWS].max()), best, index)

        run_parts(join, range(0, n_left, ROWS), threads)
    return torch.from_numpy(best), torch.from_numpy(index)
