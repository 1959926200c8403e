"""`msbfs_or` in Triton: a program pulls the words of the neighbours of some nodes. Integers, so no order matters.

Written for triton 3.6. It ran under Triton's interpreter only (TRITON_INTERPRET=1) and compiles for sm_90; it never ran
on a GPU yet.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpu_rag.types import CSR

NODES = 16  # of a program
WORDS = 4  # of a program


@triton.jit
def _pull(  # type: ignore[no-untyped-def]
    indptr, indices, front, seen, fresh, after, n, width, n_nodes: tl.constexpr, n_words: tl.constexpr
):  # fmt: skip
    row = (tl.program_id(0) * n_nodes + tl.arange(0, n_nodes)).to(tl.int64)
    real = row < n
    first = tl.load(indptr + row, mask=real, other=0)
    last = tl.load(indptr + row + 1, mask=real, other=0)
    word = tl.program_id(1) * n_words + tl.arange(0, n_words)
    kept = real[:, None] & (word < width)[None, :]
    at = row[:, None] * width + word[None, :]
    known = tl.load(seen + at, mask=kept, other=0)
    reached = tl.zeros((n_nodes, n_words), dtype=tl.int64)
    for step in range(0, tl.max(last - first, axis=0)):
        entry = first + step
        live = entry < last
        node = tl.load(indices + entry, mask=live, other=0).to(tl.int64)
        wanted = live[:, None] & kept
        reached |= tl.load(front + node[:, None] * width + word[None, :], mask=wanted, other=0)
    new = reached & ~known
    tl.store(fresh + at, new, mask=kept)
    tl.store(after + at, known | new, mask=kept)


def msbfs_or(csr: CSR, front: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(fresh, seen after). See `gpu_rag_kernels.msbfs_or`."""
    front, seen = front.contiguous(), seen.contiguous()
    fresh, after = torch.empty_like(seen), torch.empty_like(seen)
    if seen.numel():
        grid = triton.cdiv(csr.n, NODES), triton.cdiv(seen.shape[1], WORDS)
        _pull[grid](
            csr.indptr, csr.indices, front, seen, fresh, after, csr.n, seen.shape[1], n_nodes=NODES, n_words=WORDS
        )  # fmt: skip
    return fresh, after
