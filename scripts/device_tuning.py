"""Sections of scripts/device_check.py that settle choices: tiles of the kernels, and steps replayed as a CUDA graph.

Nothing here changes what gpu-rag runs: it says what to change.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import device_graphs as made
import torch
from device_case import Case
from gpu_rag_kernels import pagerank as pagerank_loops
from gpu_rag_kernels.dispatch import LOOPS

from gpu_rag.types import CSR

Result = dict[str, Any]
Keep = Callable[[Result], None]
Clock = Callable[[Callable[[], Any]], float]  # milliseconds of a call
SMALL = (100_000, 1_000_000)  # nodes and drawn edges
BATCHES = (1, 8, 64)
CALLS = 200  # whose time on the host is taken together
DAMPING = 0.85

# of the constants of a kernel's module; none: as they are
TILES: dict[str, list[dict[str, int]]] = {
    "ppr_step": [
        {}, {"COLUMNS": 64}, {"COLUMNS": 64, "ROWS": 4}, {"COLUMNS": 16, "ROWS": 16}, {"ROWS": 4}, {"ROWS": 16},
    ],
    "msbfs_or": [{}, {"LANES": 64}, {"LANES": 256}],
    "minplus_relax": [{}, {"NODES": 4}, {"NODES": 16}, {"ENTRIES": 4}, {"ENTRIES": 16}],
    "ragged_gather_dot_topk": [{}, {"CANDIDATES": 8}, {"CANDIDATES": 32}, {"CANDIDATES": 8, "DIMS": 128}, {"DIMS": 32}],
    "join_top1": [{}, {"DEPTH": 64}, {"COLUMNS": 128, "WARPS": 8}, {"ROWS": 128, "WARPS": 8}],
}  # fmt: skip
MODULES = {"ppr_step": "ppr_spmm"}  # of ops that are not named as their module


# --- tiles -----------------------------------------------------------------------------------------


@contextmanager
def constants(op: str, values: dict[str, int]) -> Iterator[None]:
    """Inside, the module of an op's kernel has these constants."""
    module = importlib.import_module(f"gpu_rag_kernels.{LOOPS[MODULES.get(op, op)]}.triton")
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(patch.object(module, name, value))
        yield


def tiles(cases: Callable[[str], Case], median_ms: Clock, until: float, keep: Keep) -> Result:
    """Each kernel with other tiles, checked before it is timed; best: the constants of the fastest that is right."""
    results: Result = {}
    for op, variants in TILES.items():
        if time.time() > until:
            results[op] = {"ok": False, "error": "no time left"}
            continue
        case = cases(op)
        rows: list[Result] = []
        for values in variants:
            if time.time() > until:
                break
            with constants(op, values):
                rows.append({"constants": values, **tried(case, median_ms)})
            right = {row["ms"]: row["constants"] for row in rows if row["ok"]}
            results[op] = {"ok": rows[0]["ok"], "tiles": rows, "best": right[min(right)] if right else None}
            keep({"ops": results})
    return {"ok": all(held["ok"] for held in results.values()), "ops": results}


def tried(case: Case, median_ms: Clock) -> Result:
    """One choice of constants; the compiler may refuse it, or the device have no room for it."""
    try:
        error, allowed = case.error(case.run("triton"))
        return {"ok": error <= allowed, "error": error, "ms": median_ms(lambda: case.run("triton"))}
    except (AssertionError, RuntimeError, ValueError) as refused:
        return {"ok": False, "error": f"{type(refused).__name__}: {refused}"[:500]}


# --- steps as a CUDA graph -------------------------------------------------------------------------


def launches(median_ms: Clock, until: float, keep: Keep, device: str = "cuda") -> Result:
    """Two steps of PageRank, launched one by one and as one graph: the same bits, and what is saved by it."""
    csr = made.rmat(*SMALL, 7, torch.device(device))
    results: list[Result] = []
    for batch in BATCHES:
        if time.time() > until:
            results.append({"ok": False, "error": "no time left"})
            break
        try:
            results.append(compared(csr, batch, median_ms))
        except RuntimeError as refused:  # a capture that CUDA does not allow
            results.append({"ok": False, "batch": batch, "error": str(refused)[:500]})
        keep({"batches": results})
    return {"ok": all(held["ok"] for held in results), "n": csr.n, "m": csr.m, "batches": results}


class Steps:
    """Two steps over buffers that stay where they are: what a graph can be made of."""

    def __init__(self, csr: CSR, batch: int):
        device, n = csr.indptr.device, csr.n
        self.csr, self.omega = csr, torch.linspace(0.8, 1.2, batch, device=device)
        self.first = torch.rand(2, n, batch, generator=made.generator(1, device), device=device) / n
        self.x, self.y = self.first.clone()
        at = torch.full((n,), -1, dtype=torch.int32, device=device)
        at[:batch] = torch.arange(batch, dtype=torch.int32, device=device)
        self.restart = pagerank_loops.Restart(torch.eye(batch, device=device), at)
        self.degree = csr.indptr.diff().clamp_min(1).float()
        self.inverse = 1 / self.degree
        self.change = torch.zeros(batch, dtype=torch.float64, device=device)

    def run(self) -> None:
        for x, y, measured in ((self.x, self.y, False), (self.y, self.x, True)):
            change = pagerank_loops.ppr_step(
                self.csr, x, y, self.restart, DAMPING, self.degree, self.inverse, self.omega, measured=measured
            )
        assert change is not None
        self.change.copy_(change)

    def after(self, run: Callable[[], None]) -> list[torch.Tensor]:
        """The buffers after one call from the start."""
        self.x.copy_(self.first[0])
        self.y.copy_(self.first[1])
        run()
        return [held.clone() for held in (self.x, self.y, self.change)]


def compared(csr: CSR, batch: int, median_ms: Clock) -> Result:
    steps = Steps(csr, batch)
    expected = steps.after(steps.run)
    replay = captured(steps.run)
    equal = all(torch.equal(a, b) for a, b in zip(steps.after(replay), expected, strict=True))
    result: Result = {"ok": equal, "batch": batch, "equal": equal}
    for name, run in (("launched", steps.run), ("replayed", replay)):
        result[name] = {"ms": median_ms(run), "host_ms": host_ms(run)}
    return result


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """What does `run` again as one CUDA graph. It is run first: a capture may neither compile nor ask for sizes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], None] = graph.replay
    return replay


def host_ms(run: Callable[[], None]) -> float:
    """Milliseconds a call, of many that follow each other: where launching takes longer than the work, that."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1000 / CALLS
