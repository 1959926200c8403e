"""The steps of PageRank as cases of scripts/device_check.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import device_graphs as made
import torch
from device_case import Case, Outputs, neighbours, some
from gpu_rag_kernels import pagerank as pagerank_loops

from gpu_rag.types import CSR


def spmm(csr: CSR, width: int, seed: int, *, kind: str) -> Case:
    device = csr.indptr.device
    x, source = states(csr, width, seed, 2)
    column = width - 1

    def error(found: Outputs) -> tuple[float, float]:
        worst = 0.0
        for row in some(csr.n, device).tolist():
            exact = 0.85 * x[neighbours(csr, row)].double().sum(0) + 0.15 * source[row].double()
            off = (found[0][row].double() - exact).abs()
            worst = max(worst, float((off / exact.clamp_min(1e-30)).max()))
        return worst, 1e-4

    narrow = x[:, column:].contiguous(), source[:, column:].contiguous()
    return Case(
        "ppr_spmm", {"n": csr.n, "m": csr.m, "batch": width, "graph": kind},
        lambda i: (pagerank_loops.ppr_spmm(csr, x, source, 0.85, implementation=i),), error,
        lambda i: (pagerank_loops.ppr_spmm(csr, *narrow, 0.85, implementation=i),),
        lambda all_: (all_[0][:, column:],), False,
        made.spmm_bytes(csr.n, csr.m, width, 4, 4), 0, spmm_peers(csr, x),
    )  # fmt: skip


def states(csr: CSR, width: int, seed: int, count: int) -> list[torch.Tensor]:
    """f32[N, width] each; the sums of the largest hub stay below what f16 can hold."""
    device = csr.indptr.device
    g, most = made.generator(seed, device), max(1, int(csr.indptr.diff().max()))
    return [torch.rand(csr.n, width, generator=g, device=device) / most for _ in range(count)]


def step(csr: CSR, width: int, seed: int, *, fp16: bool, kind: str) -> Case:
    """A whole relaxed step of PageRank; each question restarts at a node of its own."""
    device, column = csr.indptr.device, width - 1
    scale = 2.0**14 if fp16 else 1.0
    x, y = (held.mul_(scale).half() if fp16 else held for held in states(csr, width, seed, 2))
    degree = csr.indptr.diff().clamp_min(1).float()
    omega = torch.linspace(0.5, 1.3, width, device=device)
    starts = torch.randperm(csr.n, generator=made.generator(seed + 1, device), device=device)[:width]
    at = torch.full((csr.n,), -1, dtype=torch.int32, device=device)
    at[starts] = torch.arange(len(starts), dtype=torch.int32, device=device)
    rows = torch.eye(len(starts), width, device=device)

    def run(which: str, first: int = 0) -> Outputs:
        mine, moved = x[:, first:].contiguous(), y[:, first:].clone()
        restart = pagerank_loops.Restart(rows[:, first:].contiguous(), at)
        change = pagerank_loops.ppr_step(
            csr, mine, moved, restart, 0.85, degree, 1 / degree, omega[first:], scale=scale, implementation=which
        )
        assert change is not None
        return moved, change

    def error(found: Outputs) -> tuple[float, float]:
        worst = 0.0
        for row in some(csr.n, device).tolist():
            pulled = 0.85 * x[neighbours(csr, row)].double().sum(0)
            place = int(at[row])
            restart = 0.15 * scale * rows[place].double() if place >= 0 else 0.0
            z, before = (pulled + restart) / float(degree[row]), y[row].double()
            exact = before + omega.double() * (z - before)
            off = (found[0][row].double() - exact).abs() - (2.0**-24 if fp16 else 0)
            worst = max(worst, float((off / (z + before).clamp_min(1e-30)).max()))
        return worst, 2.0**-10.3 if fp16 else 1e-4  # f16 keeps 11 bits; the step rounds once, and its terms to f32

    return Case(
        "ppr_step_fp16" if fp16 else "ppr_step", {"n": csr.n, "m": csr.m, "batch": width, "graph": kind},
        run, error, lambda i: run(i, column)[:1], lambda all_: (all_[0][:, column:],), False,
        made.step_bytes(csr.n, csr.m, width, 2 if fp16 else 4),
    )  # fmt: skip


def spmm_peers(csr: CSR, x: torch.Tensor) -> dict[str, Callable[[], Callable[[], Any]]]:
    """The product alone, without the teleport."""

    def by_torch() -> Callable[[], Any]:
        ones = torch.ones(csr.m, device=x.device)
        matrix = torch.sparse_csr_tensor(csr.indptr.int(), csr.indices, ones, (csr.n, csr.n), check_invariants=False)
        return lambda: matrix @ x

    def by_cupy() -> Callable[[], Any]:
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        arrays = (torch.ones(csr.m, device=x.device), csr.indices, csr.indptr.int())
        matrix = csr_matrix(tuple(cupy.from_dlpack(a) for a in arrays), shape=(csr.n, csr.n))
        dense = cupy.from_dlpack(x)
        return lambda: matrix @ dense

    def by_pyg() -> Callable[[], Any]:
        from torch_geometric import EdgeIndex

        rows = torch.repeat_interleave(torch.arange(csr.n, device=x.device), csr.indptr.diff())
        edges = EdgeIndex(torch.stack([rows, csr.indices.long()]), sparse_size=(csr.n, csr.n), sort_order="row")
        return lambda: edges.matmul(x)

    return {"torch CSR": by_torch, "CuPy": by_cupy, "PyG EdgeIndex": by_pyg}
