"""`ragged_gather_dot_topk` in Triton: rows are read where they lie, the gathered matrix is never made.

The first kernel gives every candidate a key of 64 bits, unique in its list: the score in the order of integers above,
the inverted place in the list below. The second takes the largest key of each list k times, each below the one before.

Written for triton 3.6. It ran under Triton's interpreter only (TRITON_INTERPRET=1) and compiles for sm_90; it never ran
on a GPU yet.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpu_rag.types import Ragged, TopK

CANDIDATES = 32  # of a program
DIMS = 64  # read together
PLACES = 128  # keys of a list that are compared together
LEAST = -(2**63)


@triton.jit
def _keys(  # type: ignore[no-untyped-def]
    queries, vectors, values, owners, offsets, keys, total, dims,
    n_candidates: tl.constexpr, n_dims: tl.constexpr,
):  # fmt: skip
    place = (tl.program_id(0) * n_candidates + tl.arange(0, n_candidates)).to(tl.int64)
    real = place < total
    owner = tl.load(owners + place, mask=real, other=0)
    node = tl.load(values + place, mask=real, other=0).to(tl.int64)
    score = tl.zeros((n_candidates,), dtype=tl.float32)
    for start in range(0, dims, n_dims):
        at = start + tl.arange(0, n_dims)
        kept = real[:, None] & (at < dims)[None, :]
        left = tl.load(queries + owner[:, None] * dims + at[None, :], mask=kept, other=0.0).to(tl.float32)
        right = tl.load(vectors + node[:, None] * dims + at[None, :], mask=kept, other=0.0).to(tl.float32)
        score += tl.sum(left * right, axis=1)
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0: they are equal
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    inner = place - tl.load(offsets + owner, mask=real, other=0)
    tl.store(keys + place, (ordered.to(tl.int64) << 32) | (0xFFFFFFFF - inner), mask=real)


@triton.jit
def _select(keys, offsets, chosen, k, least: tl.constexpr, n_places: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(offsets + row)
    last = tl.load(offsets + row + 1)
    below = tl.full((1,), 2**63 - 1, dtype=tl.int64)
    for rank in range(0, k):
        best = tl.full((n_places,), least, dtype=tl.int64)
        for start in range(first, last, n_places):
            place = start + tl.arange(0, n_places)
            key = tl.load(keys + place, mask=place < last, other=least)
            best = tl.maximum(best, tl.where(key < below, key, least))
        found = tl.max(best, axis=0)
        tl.store(chosen + row * k + rank, found)
        below = tl.full((1,), 0, dtype=tl.int64) + found


def ragged_gather_dot_topk(queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int) -> TopK:
    """See `gpu_rag_kernels.ragged_gather_dot_topk`."""
    queries, vectors = queries.contiguous(), vectors.contiguous()
    batch, total = queries.shape[0], lists.values.shape[0]
    rows = torch.arange(batch, device=queries.device)
    owners = torch.repeat_interleave(rows, lists.offsets.diff(), output_size=total)
    keys = torch.empty(total, dtype=torch.int64, device=queries.device)
    chosen = torch.full((batch, k), LEAST, dtype=torch.int64, device=queries.device)
    if total and k:
        _keys[(triton.cdiv(total, CANDIDATES),)](
            queries, vectors, lists.values, owners, lists.offsets, keys, total, queries.shape[1],
            n_candidates=CANDIDATES, n_dims=DIMS,
        )  # fmt: skip
        _select[(batch,)](keys, lists.offsets, chosen, k, least=LEAST, n_places=PLACES)
    real = chosen != LEAST
    place = lists.offsets[:-1, None] + (0xFFFFFFFF - (chosen & 0xFFFFFFFF))
    ids = torch.full((batch, k), -1, dtype=torch.int32, device=queries.device)
    ids[real] = lists.values[place[real]].int()
    ordered = (chosen >> 32).int()
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return TopK(ids, torch.where(real, scores, -torch.inf))
