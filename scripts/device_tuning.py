"""Sections of scripts/device_check.py that settle choices: tiles of the kernels, steps replayed as a CUDA graph,
products in f16 and f32, and what happens where memory ends.

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
from device_case import Case, Keep, Plan, Result, refusals
from gpu_rag_kernels import pagerank as pagerank_loops
from gpu_rag_kernels.dispatch import LOOPS

from gpu_rag.errors import BadInput
from gpu_rag.graph.ego import checked, ego_balls
from gpu_rag.graph.nearest import nearest
from gpu_rag.graph.pagerank import personalized_pagerank, prepare
from gpu_rag.types import CSR, Ragged

SMALL, FEW = (100_000, 1_000_000), (300, 900)  # nodes and drawn edges, also of a dry run
LEFT = (8.0, 1.0)  # GiB of memory
LOW = 2.0**11  # scale of the low part of a query: f16 keeps its bits
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


def tiles(cases: Callable[[str], Case], plan: Plan, until: float, keep: Keep) -> Result:
    """Each kernel with other tiles, checked before it is timed; best: the constants of the fastest that is right."""
    results: Result = {}
    for op, variants in TILES.items():
        if time.time() > until:
            results[op] = {"ok": False, "error": "no time left"}
            continue
        case = cases(op)
        rows: list[Result] = []
        for values in variants if plan.kernel == "triton" else variants[:1]:
            if time.time() > until:
                break
            with constants(op, values):
                rows.append({"constants": values, **tried(case, plan)})
            right = {row["ms"]: row["constants"] for row in rows if row["ok"]}
            results[op] = {"ok": rows[0]["ok"], "tiles": rows, "best": right[min(right)] if right else None}
            keep({"ops": results})
    return {"ok": all(held["ok"] for held in results.values()), "ops": results}


def tried(case: Case, plan: Plan) -> Result:
    """One choice of constants; the compiler may refuse it, or the device have no space for it."""
    try:
        error, allowed = case.error(case.run(plan.kernel))
        return {"ok": error <= allowed, "error": error, "ms": plan.ms(lambda: case.run(plan.kernel))}
    except refusals() as refused:
        return {"ok": False, "error": f"{type(refused).__name__}: {refused}"[:500]}


# --- steps as a CUDA graph -------------------------------------------------------------------------


def launches(plan: Plan, until: float, keep: Keep) -> Result:
    """Two steps of PageRank, launched one by one and as one graph: the same bits, and what is saved by it."""
    csr = made.rmat(*(FEW if plan.small else SMALL), 7, plan.device)
    results: list[Result] = []
    for batch in BATCHES:
        if time.time() > until:
            results.append({"ok": False, "error": "no time left"})
            break
        try:
            results.append(compared(csr, batch, plan))
        except refusals() as refused:  # a capture that CUDA does not allow
            results.append({"ok": False, "batch": batch, "error": str(refused)[:500]})
        keep({"batches": results})
    return {"ok": all(held["ok"] for held in results), "n": csr.n, "m": csr.m, "batches": results}


class Steps:
    """Two steps over buffers that stay where they are: what a graph can be made of."""

    def __init__(self, csr: CSR, batch: int, kernel: str):
        device, n = csr.indptr.device, csr.n
        self.kernel = kernel
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
                self.csr, x, y, self.restart, DAMPING, self.degree, self.inverse, self.omega, measured=measured,
                implementation=self.kernel,
            )  # fmt: skip
        assert change is not None
        self.change.copy_(change)

    def after(self, run: Callable[[], None]) -> list[torch.Tensor]:
        """The buffers after one call from the start."""
        self.x.copy_(self.first[0])
        self.y.copy_(self.first[1])
        run()
        return [held.clone() for held in (self.x, self.y, self.change)]


def compared(csr: CSR, batch: int, plan: Plan) -> Result:
    steps = Steps(csr, batch, plan.kernel)
    expected = steps.after(steps.run)
    replay = plan.captured(steps.run)
    equal = all(torch.equal(a, b) for a, b in zip(steps.after(replay), expected, strict=True))
    result: Result = {"ok": equal, "batch": batch, "equal": equal}
    for name, run in (("launched", steps.run), ("replayed", replay)):
        result[name] = {"ms": plan.ms(run), "host_ms": host_ms(run, plan)}
    return result


def host_ms(run: Callable[[], None], plan: Plan) -> float:
    """Milliseconds a call, of many that follow each other: where launching takes longer than the work, that."""
    calls = 2 if plan.small else CALLS
    plan.synchronise()
    began = time.perf_counter()
    for _ in range(calls):
        run()
    plan.synchronise()
    return (time.perf_counter() - began) * 1000 / calls


# --- products in f16 and f32 -----------------------------------------------------------------------


def products(plan: Plan, until: float, keep: Keep) -> Result:
    """Scores of unit rows by f32, by f16 with f32 sums, and by f16 with queries in two parts, high and low: time, and
    the largest error of 64 queries beside f64, which must stay below what is proved."""
    n, queries, dims = (300, 8, 32) if plan.small else (1_000_000, 256, 384)
    base = made.unit_rows(n, dims, 1, plan.device)
    rows = torch.nn.functional.normalize(torch.randn(queries, dims, generator=made.generator(2, plan.device),
                                                     device=plan.device), dim=1)  # fmt: skip
    high = rows.half()
    low, wide = (rows - high.float()).mul(LOW).half(), base.float()
    unit = 2.2 * (dims + 64) * 2.0**-24  # of sums in f32
    forms: dict[str, tuple[Callable[[], torch.Tensor], float]] = {
        "f32": (lambda: rows @ wide.T, unit),
        # an f16 result is rounded once, to 2^-12 below 1
        "f16": (lambda: high @ base.T, unit + 2.0**-11 + 2.0**-11),
        "f16, high and low": (lambda: (high @ base.T).float() + (low @ base.T).float() / LOW, unit + 2.0**-11),
    }
    exact = rows[:64].double() @ base.double().T if plan.small else None
    results: Result = {}
    for name, (run, allowed) in forms.items():
        if time.time() > until:
            results[name] = {"ok": False, "error": "no time left"}
            break
        found = run()[:64].float()
        true = (
            exact
            if exact is not None
            else torch.cat([rows[:64].double() @ b.double().T for b in base.split(1 << 17)], 1)
        )
        error = float((found.double() - true).abs().max())
        ms = plan.ms(run)
        held = {"ok": error <= allowed, "error": error, "allowed": allowed, "ms": ms}
        results[name] = held | {
            "tflop_s": 2 * n * queries * dims / ms / 1e9,
            "run_to_run_equal": bool(torch.equal(run(), run())),
        }
        keep({"forms": results})
    return {
        "ok": all(held["ok"] for held in results.values()),
        "n": n,
        "queries": queries,
        "dims": dims,
        "forms": results,
    }


# --- the edge of memory ----------------------------------------------------------------------------


def memory_edge(plan: Plan, until: float, keep: Keep) -> Result:
    """PageRank, neighbours and balls where little memory is left: each gives the bits that it gives with plenty, or is
    refused by a check of ours. torch's own error is a failure. peak_gb: beside what lay there before."""
    n, m, batch = (300, 900, 4) if plan.small else (2_000_000, 20_000_000, 256)
    csr, device = made.rmat(n, m, 7, plan.device), plan.device
    graph, base = prepare(csr), made.unit_rows(n, 64, 1, device)
    base = base.float() if device.type == "cpu" else base
    seeds = Ragged(torch.arange(batch, device=device), torch.arange(batch + 1, device=device))
    sound, queries = checked(csr), made.unit_rows(batch, 64, 2, device).float()
    calls: dict[str, Callable[[], Any]] = {
        "pagerank": lambda: personalized_pagerank(graph, seeds),
        "neighbours": lambda: nearest(queries, base, 20),
        "balls": lambda: ego_balls(sound, seeds, 2),
    }
    results: Result = {}
    for name, run in calls.items():
        whole = run()
        for left in LEFT:
            if time.time() > until:
                results[f"{name}, {left} GiB"] = {"ok": False, "error": "no time left"}
                continue
            results[f"{name}, {left} GiB"] = squeezed(run, whole, left, plan)
            keep({"calls": results})
    return {"ok": all(held["ok"] for held in results.values()), "n": n, "m": csr.m, "batch": batch, "calls": results}


def squeezed(run: Callable[[], Any], whole: Any, left: float, plan: Plan) -> Result:
    """A call with so many GiB free."""
    ballast, before = None, 0
    if plan.device.type == "cuda" and not plan.small:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] - int(left * 2**30)
        ballast = torch.empty(max(free, 0), dtype=torch.uint8, device=plan.device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    try:
        found = run()
    except BadInput as refused:
        return {"ok": True, "refused": str(refused)[:300]}
    except RuntimeError as error:  # out of memory is one
        return {"ok": False, "error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        del ballast
    peak = torch.cuda.max_memory_allocated() - before if plan.device.type == "cuda" and not plan.small else 0
    equal = all(torch.equal(a, b) for a, b in zip(vars(found).values(), vars(whole).values()))
    return {"ok": equal, "equal": equal, "peak_gb": peak / 1e9}
