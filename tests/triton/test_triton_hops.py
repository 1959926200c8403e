"""`msbfs_or` against its reference: interpreted on the CPU (scripts/test_triton.sh), or on a GPU.

Under the interpreter a program takes milliseconds, so the cases are tiny and constants of the tiles are lowered; fresh
memory is filled with NaN or large integers, so output that is not written cannot look right.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpu_rag_kernels import ego as ego_loops
from gpu_rag_kernels import rows
from kernel_device import BOTH, DEVICE, NEEDS_TRITON, graph, marked
from refusals import caught

from gpu_rag.types import CSR


@pytest.fixture(autouse=True)
def small_chunks(lowered: Callable[..., None]) -> None:
    lowered("ego", CHUNK=6, PARTS=2)


def random_words(n: int, width: int, seed: int) -> torch.Tensor:
    words = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, (n, width), dtype=np.int64)
    return torch.from_numpy(words).to(DEVICE)


def check_hop(hop: Callable[..., tuple[torch.Tensor, torch.Tensor]], csr: CSR, width: int) -> None:
    front, seen = random_words(csr.n, width, 1) & random_words(csr.n, width, 2), random_words(csr.n, width, 3)
    kept = front.clone(), seen.clone()
    fresh, after = hop(csr, front, seen)
    for v in range(csr.n):
        for w in range(width):
            word = 0
            for e in range(int(csr.indptr[v]), int(csr.indptr[v + 1])):
                word |= int(front[int(csr.indices[e]), w])
            assert int(fresh[v, w]) == word & ~int(seen[v, w])
            assert int(after[v, w]) == int(seen[v, w]) | word
    assert torch.equal(front, kept[0]) and torch.equal(seen, kept[1])


@BOTH
@pytest.mark.parametrize(
    ("n", "m", "width", "hub"), [(1, 0, 1, 0), (20, 0, 2, 0), (33, 90, 1, 0), (33, 90, 5, 0), (40, 90, 2, 39)]
)
def test_hop_is_an_or(implementation: str, n: int, m: int, width: int, hub: int) -> None:
    check_hop(lambda *a: ego_loops.msbfs_or(*a, implementation=implementation), graph(n, m, hub=hub), width)


def pushes(csr: CSR, front: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A wrong version: from rows to columns."""
    from gpu_rag.graph.csr import transpose

    return ego_loops.msbfs_or(transpose(csr), front, seen, implementation="triton")


def keeps_what_was_seen(csr: CSR, front: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    fresh, _ = ego_loops.msbfs_or(csr, front, torch.zeros_like(seen), implementation="triton")
    return fresh, seen | fresh


def by_the_first_chunk(csr: CSR, front: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    bounds = rows.row_plan(csr.indptr, 6).bounds
    bounds[-1] = bounds[-2] + 1
    return ego_loops.msbfs_or(csr, front, seen, implementation="triton")


test_hop_checks_catch = marked(NEEDS_TRITON)(
    caught([pushes, keeps_what_was_seen, by_the_first_chunk], check_hop, graph(33, 90, hub=30), 1)
)
