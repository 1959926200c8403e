"""`ragged_gather_dot_topk` in Triton: rows are read in place; no gathered matrix is made.

The first kernel multiplies 32-bit whole numbers and adds them in 64 bits: exact for any tile, layout or row alignment.
It is bound by memory, not by this arithmetic. The second kernel gives every candidate of a list a unique 64-bit key,
with the score in integer order in the upper half and the inverted position in the lower half. It takes the largest key
k times, each below the one before.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpu_rag.types import Ragged, TopK

CANDIDATES = 16  # candidates of a program: with more, its registers leave space for few other programs
DIMS = 64  # read together
PLACES = 128  # keys of a list that are compared together
LOWEST_KEY = tl.constexpr(-(2**63))  # below every key
MAX_LENGTH = tl.constexpr(1.01)  # no component of a unit row is larger, f16 rounding included


@triton.jit
def _whole(x):
    """rint(2^24 x) of f32, |x| < 64, as i32; ties go to even. From 2^23 on f32 has whole numbers only."""
    scaled = x * 16777216.0
    above = tl.where(scaled < 0, -8388608.0, 8388608.0)
    return tl.where(tl.abs(scaled) < 8388608.0, (scaled + above) - above, scaled).to(tl.int32)


@triton.jit(do_not_specialize=["total"])
def _scores(
    queries, vectors, owners, values, bias, out, total, dims, biased: tl.constexpr, n_candidates: tl.constexpr, n_dims:
    tl.constexpr,
):  # fmt: skip
    """Write out, f64 or f32: the dot product of each candidate, plus its bias."""
    place = tl.program_id(0).to(tl.int64) * n_candidates + tl.arange(0, n_candidates)
    real = place < total
    owner = tl.load(owners + place, mask=real, other=0).to(tl.int64)
    node = tl.load(values + place, mask=real, other=0).to(tl.int64)
    acc = tl.zeros((n_candidates, n_dims), dtype=tl.int64)
    strange = tl.zeros((n_candidates, n_dims), dtype=tl.int32)
    for start in range(0, dims, n_dims):
        at = start + tl.arange(0, n_dims)
        kept = real[:, None] & (at < dims)[None, :]
        left = tl.load(queries + owner[:, None] * dims + at[None, :], mask=kept, other=0.0).to(tl.float32)
        right = tl.load(vectors + node[:, None] * dims + at[None, :], mask=kept, other=0.0).to(tl.float32)
        unit = (tl.abs(left) <= MAX_LENGTH) & (tl.abs(right) <= MAX_LENGTH)  # false for NaN
        strange = tl.where(unit, strange, 1)
        acc += _whole(tl.where(unit, left, 0.0)).to(tl.int64) * _whole(tl.where(unit, right, 0.0)).to(tl.int64)
    score = tl.sum(acc, axis=1).to(tl.float64) * 3.552713678800501e-15  # 2^-48; below 2^53, so exact
    score = tl.where(tl.max(strange, axis=1) == 0, score, float("nan"))
    if biased:
        score += tl.load(bias + place, mask=real, other=0.0)
    tl.store(out + place, score.to(out.dtype.element_ty), mask=real)


@triton.jit
def _keys(scores, first, count, inner):
    """The keys of positions `inner` of a list; LOWEST_KEY after its end."""
    score = tl.load(scores + first + inner, mask=inner < count, other=0.0) + 0.0  # -0.0 becomes 0.0: they are equal
    bits = score.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(inner < count, (ordered.to(tl.int64) << 32) | (0xFFFFFFFF - inner), LOWEST_KEY)


@triton.jit
def _put(places, best, at, key):
    """Write the place and score of a key; padding if it is LOWEST_KEY."""
    ordered = (key >> 32).to(tl.int32)
    score = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    tl.store(places + at, tl.where(key == LOWEST_KEY, -1, 0xFFFFFFFF - (key & 0xFFFFFFFF)).to(tl.int32))
    tl.store(best + at, tl.where(key == LOWEST_KEY, float("-inf"), score))


@triton.jit(do_not_specialize=["k"])
def _select(scores, offsets, places, best, k, n_places: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(offsets + row)
    count = tl.load(offsets + row + 1) - first
    inner = tl.arange(0, n_places).to(tl.int64)
    below = tl.full((1,), 2**63 - 1, dtype=tl.int64)
    head = _keys(scores, first, count, inner)  # a short list is read once
    for rank in range(0, k):
        top = tl.where(head < below, head, LOWEST_KEY)
        for start in range(n_places, count, n_places):
            key = _keys(scores, first, count, start + inner)
            top = tl.maximum(top, tl.where(key < below, key, LOWEST_KEY))
        found = tl.max(top, axis=0)
        _put(places, best, row * k + rank, found)
        below = tl.full((1,), 0, dtype=tl.int64) + found


def gather_dots(queries: torch.Tensor, i: torch.Tensor, vectors: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """See `gpu_rag_kernels.frontier.gather_dots`."""
    return _scored(queries, i, vectors, j, None, torch.float64)


def ragged_gather_dot_topk(
    queries: torch.Tensor, owner: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int, bias: torch.Tensor | None
) -> TopK:
    """See `gpu_rag_kernels.frontier`."""
    owners = torch.repeat_interleave(owner, lists.offsets.diff(), output_size=lists.values.shape[0])
    scores = _scored(queries, owners, vectors, lists.values, bias, torch.float32)
    places = torch.empty(lists.batch, k, dtype=torch.int32, device=queries.device)
    best = torch.empty(lists.batch, k, device=queries.device)
    if places.numel():
        _select[(lists.batch,)](scores, lists.offsets.contiguous(), places, best, k, n_places=PLACES, num_warps=1)
    return TopK(places, best)


def _scored(
    queries: torch.Tensor, owners: torch.Tensor, vectors: torch.Tensor, values: torch.Tensor,
    bias: torch.Tensor | None, dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    total = values.shape[0]
    out = torch.empty(total, dtype=dtype, device=queries.device)
    if total:
        _scores[(triton.cdiv(total, CANDIDATES),)](
            queries.contiguous(), vectors.contiguous(), owners.contiguous(), values.contiguous(),
            out if bias is None else bias.contiguous(), out, total, queries.shape[1],
            biased=bias is not None, n_candidates=CANDIDATES, n_dims=DIMS,
        )  # fmt: skip
    return out
