"""`join_top1` in Triton: a program holds some left rows, walks over one strip of right rows, and keeps three numbers
per row. Dot products and overlaps are accumulated in f32 tiles; no score leaves the program.

f16 rows are multiplied as f16 (by tensor cores), others as f32 (IEEE, no TF32). A dot product is summed in the order of
its components, independent of the other rows. The tiles are not tuned.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpu_rag_kernels.join.reference import Side, Strips

ROWS = 64  # left rows of a program
COLUMNS = 64  # right rows whose scores are made at a time
DEPTH = 32  # components, or keywords, multiplied at a time
WARPS, WARPS_F32 = 4, 8  # warps of a program; f32 rows need more registers than four warps have


@triton.jit
def _products(
    left, right, row, column, n_left, n_right, depth, whole: tl.constexpr, n_rows: tl.constexpr, n_columns:
    tl.constexpr, n_depth: tl.constexpr,
):  # fmt: skip
    """f32[R, C]: left rows times right rows. whole: multiply as stored (both f16), else in f32."""
    acc = tl.zeros((n_rows, n_columns), dtype=tl.float32)
    for start in range(0, depth, n_depth):
        at = start + tl.arange(0, n_depth)
        inside = at < depth
        mine = (row < n_left)[:, None] & inside[None, :]
        theirs = (column < n_right)[None, :] & inside[:, None]
        a = tl.load(left + row[:, None] * depth + at[None, :], mask=mine, other=0.0)
        b = tl.load(right + column[None, :] * depth + at[:, None], mask=theirs, other=0.0)
        if not whole:
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["n_left", "n_right", "n_strips"])
def _strip(
    left, left_head, left_size, left_group, right, right_head, right_size, right_group, best, index, second, n_left,
    n_right, dims, n_head, n_strips, strip, grouped: tl.constexpr, whole: tl.constexpr, n_rows: tl.constexpr, n_columns:
    tl.constexpr, n_depth: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * n_rows + tl.arange(0, n_rows)
    real = row < n_left
    first = tl.program_id(1).to(tl.int64) * strip
    last = tl.minimum(first + strip, n_right)
    size = tl.load(left_size + row, mask=real, other=0)
    top = tl.full((n_rows,), float("-inf"), dtype=tl.float32)
    runner_up = tl.full((n_rows,), float("-inf"), dtype=tl.float32)
    where = tl.full((n_rows,), -1, dtype=tl.int64)
    for start in range(first, last, n_columns):
        column = start + tl.arange(0, n_columns)
        dot = _products(left, right, row, column, n_left, last, dims, whole, n_rows, n_columns, n_depth)
        shared = _products(left_head, right_head, row, column, n_left, last, n_head, True, n_rows, n_columns, n_depth)
        other = tl.load(right_size + column, mask=column < last, other=0)
        union = tl.maximum((size[:, None] + other[None, :]).to(tl.float32) - shared, 1.0)
        score = (tl.div_rn(shared, union) + dot) * 0.5
        allowed = real[:, None] & (column < last)[None, :]
        if grouped:
            mine = tl.load(left_group + row, mask=real, other=0)
            theirs = tl.load(right_group + column, mask=column < last, other=0)
            allowed = allowed & (mine[:, None] != theirs[None, :])
        score = tl.where(allowed, score, float("-inf"))
        most = tl.max(score, axis=1)
        at = tl.min(tl.where(score == most[:, None], column[None, :], last), axis=1)
        rest = tl.max(tl.where(column[None, :] == at[:, None], float("-inf"), score), axis=1)
        runner_up = tl.maximum(tl.maximum(runner_up, rest), tl.minimum(top, most))
        where = tl.where(most > top, at, where)  # columns ascend, so the first of equal scores stays
        top = tl.maximum(top, most)
    place = row * n_strips + tl.program_id(1)
    tl.store(best + place, top, mask=real)
    tl.store(index + place, where.to(tl.int32), mask=real)
    tl.store(second + place, runner_up, mask=real)


def join_top1(left: Side, right: Side, strip: int) -> Strips:
    """See `gpu_rag_kernels.join`."""
    n_strips, device = triton.cdiv(right.n, strip), left.vectors.device
    best, second = (torch.empty(left.n, n_strips, device=device) for _ in range(2))
    index = torch.empty(left.n, n_strips, dtype=torch.int32, device=device)
    if best.numel():
        grouped = left.group is not None and right.group is not None
        sizes = left.size.contiguous(), right.size.contiguous()
        groups = (left.group.contiguous(), right.group.contiguous()) if grouped else sizes  # type: ignore[union-attr]
        whole = left.vectors.dtype == right.vectors.dtype == torch.float16
        _strip[triton.cdiv(left.n, ROWS), n_strips](
            left.vectors.contiguous(), left.head.contiguous(), sizes[0], groups[0],
            right.vectors.contiguous(), right.head.contiguous(), sizes[1], groups[1], best, index, second,
            left.n, right.n, left.vectors.shape[1], left.head.shape[1], n_strips, strip,
            grouped=grouped, whole=whole, n_rows=ROWS, n_columns=COLUMNS, n_depth=DEPTH,
            num_warps=WARPS if whole else WARPS_F32,
        )  # fmt: skip
    return Strips(best, index, second)
