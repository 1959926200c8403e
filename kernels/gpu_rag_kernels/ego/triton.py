"""`msbfs_or` in Triton: a program pulls the words of the neighbours of several nodes. Integers, so no order matters.

Nodes are ordered by degree. Hubs are cut into chunks whose words a second kernel combines (see `rows`): a program that
processed a whole hub would delay the hop.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpu_rag.types import CSR
from gpu_rag_kernels.rows import packed, row_plan

CHUNK = 256  # neighbours of a hub that one program pulls
WORDS = 4  # per program, at most
LANES = 128  # words of nodes, or of chunks, in a program: one for each thread
PARTS = 32  # words of chunks that a hub's program reads together


@triton.jit
def _reached(indices, front, first, last, word, inside, width, n_nodes: tl.constexpr, n_words: tl.constexpr):
    """[N, W]: the OR of the words of the neighbours first..last, read two at a time."""
    reached = tl.zeros((n_nodes, n_words), dtype=tl.int64)
    for step in range(0, tl.max(last - first, axis=0), 2):
        entry = first + step
        one = tl.load(indices + entry, mask=entry < last, other=0).to(tl.int64)
        two = tl.load(indices + entry + 1, mask=entry + 1 < last, other=0).to(tl.int64)
        wanted = (entry < last)[:, None] & inside[None, :]
        further = (entry + 1 < last)[:, None] & inside[None, :]
        a = tl.load(front + one[:, None] * width + word[None, :], mask=wanted, other=0)
        b = tl.load(front + two[:, None] * width + word[None, :], mask=further, other=0)
        reached |= a | b
    return reached


@triton.jit
def _put(seen, fresh, after, row, real, reached, word, inside, width):
    at = row[:, None] * width + word[None, :]
    kept = real[:, None] & inside[None, :]
    known = tl.load(seen + at, mask=kept, other=0)
    new = reached & ~known
    tl.store(fresh + at, new, mask=kept)
    tl.store(after + at, known | new, mask=kept)


@triton.jit(do_not_specialize=["n_listed"])
def _pull(
    indptr, indices, front, seen, fresh, after, listed, n_listed, width, n_nodes: tl.constexpr, n_words: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * n_nodes + tl.arange(0, n_nodes)
    real = place < n_listed
    row = tl.load(listed + place, mask=real, other=0)
    first = tl.load(indptr + row, mask=real, other=0)
    last = tl.load(indptr + row + 1, mask=real, other=0)
    word = tl.program_id(1) * n_words + tl.arange(0, n_words)
    inside = word < width
    reached = _reached(indices, front, first, last, word, inside, width, n_nodes, n_words)
    _put(seen, fresh, after, row, real, reached, word, inside, width)


@triton.jit(do_not_specialize=["n_chunks"])
def _chunks(indices, front, partial, starts, ends, n_chunks, width, n_nodes: tl.constexpr, n_words: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * n_nodes + tl.arange(0, n_nodes)
    real = place < n_chunks
    first = tl.load(starts + place, mask=real, other=0)
    last = tl.load(ends + place, mask=real, other=0)
    word = tl.program_id(1) * n_words + tl.arange(0, n_words)
    inside = word < width
    reached = _reached(indices, front, first, last, word, inside, width, n_nodes, n_words)
    tl.store(partial + place[:, None] * width + word[None, :], reached, mask=real[:, None] & inside[None, :])


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _hubs(partial, seen, fresh, after, hubs, bounds, width, n_parts: tl.constexpr, n_words: tl.constexpr):
    word = tl.program_id(1) * n_words + tl.arange(0, n_words)
    inside = word < width
    last = tl.load(bounds + tl.program_id(0) + 1)
    reached = tl.zeros((n_parts, n_words), dtype=tl.int64)
    for start in range(tl.load(bounds + tl.program_id(0)), last, n_parts):
        chunk = start + tl.arange(0, n_parts)
        wanted = (chunk < last)[:, None] & inside[None, :]
        reached |= tl.load(partial + chunk[:, None] * width + word[None, :], mask=wanted, other=0)
    one = tl.arange(0, 1)
    row = tl.load(hubs + tl.program_id(0) + one)
    _put(seen, fresh, after, row, one == 0, tl.reduce(reached, 0, _either)[None, :], word, inside, width)


def msbfs_or(csr: CSR, front: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(fresh, new seen). See `gpu_rag_kernels.ego`."""
    csr, front, seen = packed(csr), front.contiguous(), seen.contiguous()
    fresh, after, width = torch.empty_like(seen), torch.empty_like(seen), seen.shape[1]
    plan = row_plan(csr.indptr, CHUNK)
    if not seen.numel():
        return fresh, after
    n_words = min(triton.next_power_of_2(width), WORDS)
    n_nodes, tiles = LANES // n_words, triton.cdiv(width, n_words)
    if plan.rows.numel():
        _pull[triton.cdiv(plan.rows.numel(), n_nodes), tiles](
            csr.indptr, csr.indices, front, seen, fresh, after, plan.rows, plan.rows.numel(), width,
            n_nodes=n_nodes, n_words=n_words,
        )  # fmt: skip
    if plan.hubs.numel():
        n_chunks = plan.starts.numel()
        partial = seen.new_empty(n_chunks, width)
        _chunks[triton.cdiv(n_chunks, n_nodes), tiles](
            csr.indices, front, partial, plan.starts, plan.ends, n_chunks, width, n_nodes=n_nodes, n_words=n_words
        )  # fmt: skip
        _hubs[plan.hubs.numel(), tiles](
            partial, seen, fresh, after, plan.hubs, plan.bounds, width, n_parts=PARTS, n_words=n_words
        )  # fmt: skip
    return fresh, after
