"""The Triton kernels against their references: interpreted on the CPU (scripts/test_triton.sh), or on a GPU.

Under the interpreter a program takes milliseconds, so the cases are tiny and constants of the tiles are lowered; fresh
memory is filled with NaN or large integers, so output that is not written cannot look right.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gpu_rag_kernels import dispatch, rows
from gpu_rag_kernels import ego as ego_loops
from gpu_rag_kernels import pagerank as pagerank_loops

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR

DEVICE = "cuda" if torch.cuda.is_available() and not dispatch.interpreted() else "cpu"
pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif("triton" not in dispatch.loop_backends(DEVICE), reason="needs triton, or its interpreter"),
]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    switch: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), switch.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    switch.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0])
    switch.fill_uninitialized_memory = before[1]


def triton_of(op: str) -> Any:
    return importlib.import_module(f"gpu_rag_kernels.{dispatch.LOOPS[op]}.triton")


def graph(n: int, m: int, *, weighted: bool = False, hub: int = 0, seed: int = 0) -> CSR:
    """Random entries, and a node 0 with `hub` neighbours."""
    r = np.random.default_rng(seed)
    src, dst = r.integers(0, n, m).tolist() + [0] * hub, r.integers(0, n, m).tolist() + list(range(hub))
    ends = torch.tensor([src, dst], dtype=torch.int64, device=DEVICE)
    weight = torch.from_numpy(r.random(m + hub)).to(DEVICE) if weighted else None
    return csr_from_edges(ends[0], ends[1], n, weight, undirected=False, drop_self_loops=False)


# --- ppr_spmm --------------------------------------------------------------------------------------

CASES = [
    pytest.param(graph(1, 0), 1, id="one node"),
    pytest.param(graph(20, 0), 3, id="no entries"),
    pytest.param(graph(30, 100), 5, id="pattern"),
    pytest.param(graph(30, 100, weighted=True), 37, id="weights, two tiles of columns"),
    pytest.param(graph(40, 60, hub=33), 4, id="a hub"),
    pytest.param(graph(40, 60, hub=32, weighted=True), 4, id="a hub of whole chunks"),
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    if "triton" in dispatch.loop_backends(DEVICE):
        monkeypatch.setattr(triton_of("ppr_spmm"), "CHUNK", 16)
        monkeypatch.setattr(triton_of("msbfs_or"), "CHUNK", 6)
        monkeypatch.setattr(triton_of("msbfs_or"), "PARTS", 2)


def check_spmm(step: Callable[..., torch.Tensor], csr: CSR, width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    row = torch.repeat_interleave(torch.arange(csr.n, device=DEVICE), csr.indptr.diff())
    dense = torch.zeros(csr.n, csr.n, dtype=torch.float64, device=DEVICE)
    dense[row, csr.indices.long()] = 1.0 if csr.weight is None else csr.weight.double()
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        x, source = (torch.randn(csr.n, width, generator=generator, dtype=dtype).to(DEVICE) for _ in range(2))
        kept = x.clone(), source.clone()
        y = step(csr, x, source, 0.85)
        exact = 0.85 * dense @ x.double() + 0.15 * source.double()
        assert y.dtype == dtype and float((y.double() - exact).abs().max()) < tolerance
        assert torch.equal(x, kept[0]) and torch.equal(source, kept[1])


@pytest.mark.parametrize(("csr", "width"), CASES)
def test_spmm_is_the_formula(csr: CSR, width: int) -> None:
    check_spmm(lambda *a: pagerank_loops.ppr_spmm(*a, implementation="triton"), csr, width)


def test_spmm_equals_the_reference_on_whole_numbers() -> None:
    csr = graph(40, 80, hub=40)
    x, source = (torch.randint(-8, 8, (40, 3)).float().to(DEVICE) for _ in range(2))
    one, other = (pagerank_loops.ppr_spmm(csr, x, source, 0.5, implementation=i) for i in ("triton", "reference"))
    assert torch.equal(one, other)


def test_spmm_bits_do_not_depend_on_the_batch() -> None:
    csr = graph(40, 80, hub=37, weighted=True)
    x, source = (torch.randn(40, 35, generator=torch.Generator().manual_seed(s)).to(DEVICE) for s in (2, 3))
    whole = pagerank_loops.ppr_spmm(csr, x, source, 0.85, implementation="triton")
    for b in (0, 31, 34):
        part = slice(b, b + 1)
        alone = pagerank_loops.ppr_spmm(csr, x[:, part], source[:, part], 0.85, implementation="triton")
        assert torch.equal(alone, whole[:, part])


def without_the_last_chunk(csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float) -> torch.Tensor:
    rows.row_plan(csr.indptr, 16).bounds[-1:] -= 1
    return pagerank_loops.ppr_spmm(csr, x, source, alpha, implementation="triton")


def without_the_hubs(csr: CSR, x: torch.Tensor, source: torch.Tensor, alpha: float) -> torch.Tensor:
    hubs = rows.row_plan(csr.indptr, 16).hubs
    hubs.set_(hubs.new_zeros(0))
    return pagerank_loops.ppr_spmm(csr, x, source, alpha, implementation="triton")


@pytest.mark.parametrize("wrong", [without_the_last_chunk, without_the_hubs])
def test_spmm_checks_catch(wrong: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(AssertionError):
        check_spmm(wrong, graph(40, 60, hub=33), 4)


# --- msbfs_or --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("implementation", ["triton", "reference"])
@pytest.mark.parametrize(
    ("n", "m", "width", "hub"), [(1, 0, 1, 0), (20, 0, 2, 0), (33, 90, 1, 0), (33, 90, 5, 0), (40, 90, 2, 39)]
)
def test_hop_is_an_or(implementation: str, n: int, m: int, width: int, hub: int) -> None:
    check_hop(lambda *a: ego_loops.msbfs_or(*a, implementation=implementation), graph(n, m, hub=hub), width)


def test_hops_reach_the_ball() -> None:
    """Three hops from single nodes, 70 questions in two words, against networkx."""
    import networkx as nx

    n = 24
    ends = torch.randint(0, n, (2, 30), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    csr = csr_from_edges(ends[0], ends[1], n)
    whole = nx.Graph(ends.T.tolist())
    whole.add_nodes_from(range(n))
    seen = torch.zeros(n, 2, dtype=torch.int64, device=DEVICE)
    starts = [int(q) % n for q in range(70)]
    for q, node in enumerate(starts):
        bit = 1 << (q % 64)
        seen[node, q // 64] |= bit - 2**64 if bit >= 2**63 else bit
    front = seen
    for _ in range(3):
        front, seen = ego_loops.msbfs_or(csr, front, seen, implementation="triton")
    for q, node in enumerate(starts):
        reached = [v for v in range(n) if int(seen[v, q // 64]) >> (q % 64) & 1]
        assert reached == sorted(nx.single_source_shortest_path_length(whole, node, 3))


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


@pytest.mark.parametrize("wrong", [pushes, keeps_what_was_seen, by_the_first_chunk])
def test_hop_checks_catch(wrong: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    with pytest.raises(AssertionError):
        check_hop(wrong, graph(33, 90, hub=30), 1)
