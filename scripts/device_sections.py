"""Sections of scripts/device_check.py beside its kernels: compute-sanitizer, cuGraph, the bench of all ops, the tests.

A section gives {"ok": True | False, ...}, or {"ok": None, "absent": why} where what it needs is not there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import device_graphs as made
import torch
from device_case import Keep, Plan, Result, refusals

from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.pagerank import PageRankGraph, personalized_pagerank, prepare
from gpu_rag.types import Ragged

HERE = Path(__file__).resolve().parent
FOUND = 99  # exit status of compute-sanitizer that has found something
TOOLS = ("memcheck", "racecheck")
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
BENCH = {"ops_small": (10_000, (1, 64)), "ops_large": (1_000_000, (64, 1000))}  # size, batches
DRY, DRY_OPS = (300, (3,)), 3  # of a dry run, where tests bench the others
LARGE = (10_000_000, 100_000_000)  # nodes and drawn edges of the graph for cuGraph
SOLVE = ((100_000, 1_000_000, 1000, 5.0), (10_000_000, 100_000_000, 64, None))  # nodes, drawn edges, questions, goal
DRY_SOLVE = (300, 900, 3, None)
QUESTIONS = 8
DAMPING, TOL = 0.85, 1e-6


def absent(why: str) -> Result:
    return {"ok": None, "absent": why}


def tests(until: float) -> Result:
    if find_spec("pytest") is None:
        return absent("pytest is not installed")
    command = [sys.executable, "-m", "pytest", "-m", "triton", "tests/triton", "-p", "no:cacheprovider"]
    command += ["--ignore", "tests/triton/test_triton_compile.py"]  # needs no device
    if find_spec("xdist") is not None:  # most of the time goes to compiling kernels
        command += ["-n", "4"]
    done = run(command, until)
    return {"ok": done["status"] == 0, **done}


def run(command: list[str], until: float, **environment: str) -> Result:
    """`ended` of a command in the folder of the project."""
    return ended(command, max(1.0, until - time.time()), cwd=HERE.parent, env={**os.environ, **environment})


def ended(command: list[str], left: float, **options: Any) -> Result:
    """The end of a command: its exit status (124: no time left) and its last output. One that is late is ended with
    all that it has started, which would go on working on the GPU."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True, **options)
        late = ""
        try:
            process.wait(left)
        except subprocess.TimeoutExpired:
            late = f"\nlonger than the {left:.0f} s that were left"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in (out, err):
            file.seek(0)
        tail = out.read()[-4000:] + err.read()[-4000:] + late
    return {"status": 124 if late else process.returncode, "tail": tail}


# --- compute-sanitizer -----------------------------------------------------------------------------


def sanitizer(until: float) -> Result:
    """Every kernel on its tiny case, checked, under each tool. torch takes memory without its cache, so that a kernel
    that leaves its arrays is seen."""
    tool = find_sanitizer()
    if tool is None:
        return absent("compute-sanitizer is not on PATH, in CUDA_HOME/bin or in an nvidia package")
    results: Result = {}
    for place, name in enumerate(TOOLS):
        share = time.time() + (until - time.time()) / (len(TOOLS) - place)
        command = [str(tool), "--tool", name, "--error-exitcode", str(FOUND)]
        command += [sys.executable, str(HERE / "device_check.py"), "--tiny"]
        results[name] = sanitized(run(command, share, PYTORCH_NO_CUDA_MEMORY_CACHING="1"))
    return {"ok": all(held["ok"] for held in results.values()), "tool": str(tool), **results}


def sanitized(done: Result) -> Result:
    """What the tool said: nothing found counts only where it says so."""
    counts = [int(a or b) for a, b in SUMMARY.findall(done["tail"])]
    return {"ok": done["status"] == 0 and bool(counts) and not any(counts), "found": counts, **done}


def find_sanitizer() -> Path | None:
    """On PATH, in the CUDA toolkit, or in a package of pip."""
    name = "compute-sanitizer"
    on_path = shutil.which(name)
    toolkits = [Path(os.environ[key]) / "bin" / name for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    spec = find_spec("nvidia")
    folders = [] if spec is None or spec.submodule_search_locations is None else spec.submodule_search_locations
    packaged = [path for folder in folders for path in sorted(Path(folder).glob(f"*/**/{name}"))]
    candidates = [*([Path(on_path)] if on_path else []), *toolkits, *packaged]
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


# --- PageRank, whole ----------------------------------------------------------------------------------


def solve(plan: Plan, until: float, keep: Keep) -> Result:
    """Questions of one seed each solved to TOL, from lists of seeds to rows of ranks: time, the proved L1 error of some
    of them by additions in f64, and bits run to run."""
    results: list[Result] = []
    for n, m, batch, goal_ms in (DRY_SOLVE,) if plan.small else SOLVE:
        if time.time() > until:
            results.append({"ok": False, "error": "no time left"})
            break
        graph = prepare(made.rmat(n, m, 7, plan.device))
        linked = graph.pull.indptr.diff().nonzero()[:, 0]
        drawn = torch.randint(len(linked), (batch,), generator=made.generator(3, plan.device), device=plan.device)
        seeds = Ragged(linked[drawn], torch.arange(batch + 1, device=plan.device))

        def run(graph: PageRankGraph = graph, seeds: Ragged = seeds) -> torch.Tensor:
            return personalized_pagerank(graph, seeds, damping=DAMPING, tol=TOL)

        try:
            rows, few = run(), Ragged(seeds.values[:QUESTIONS], seeds.offsets[: QUESTIONS + 1])
            error = residual(graph, rows[:QUESTIONS], few, DAMPING) / (1 - DAMPING)
            equal = bool(torch.equal(run(), rows))
            del rows
            found = {"ok": equal and error <= 2 * (TOL + 1e-7) / (1 - DAMPING), "error": error, "equal": equal}
            found |= {"ms": plan.ms(run), "goal_ms": goal_ms}
        except refusals() as refused:
            found = {"ok": False, "error": f"{type(refused).__name__}: {refused}"[:500]}
        results.append({"n": n, "m": graph.pull.m, "batch": batch, **found})
        keep({"solves": results})
    return {"ok": all(held["ok"] for held in results), "solves": results}


# --- cuGraph ---------------------------------------------------------------------------------------


def cugraph(until: float) -> Result:
    if find_spec("pylibcugraph") is None or find_spec("cupy") is None:
        return absent("pylibcugraph or cupy is not installed")
    return compared(made.rmat(*LARGE, 7, torch.device("cuda")), QUESTIONS, until)


def compared(csr: Any, questions: int, until: float, implementations: tuple[str, ...] = ("torch", "cugraph")) -> Result:
    """Each implementation on one graph: seconds of the first call and of the next, and the proved L1 error by a
    residual that plain additions in f64 give; of cuGraph alone, too."""
    graph = prepare(csr)
    device = graph.device
    linked = csr.indptr.diff().nonzero()[:, 0]
    drawn = torch.randint(len(linked), (questions,), generator=made.generator(3, device), device=device)
    seeds = Ragged(linked[drawn], torch.arange(questions + 1, device=device))
    results: Result = {"n": graph.n, "m": graph.pull.m, "questions": questions, "tol": TOL}

    def timed(call: Callable[[], torch.Tensor]) -> Result:
        rows, first = seconds(call)
        if time.time() > until:
            return {"ok": False, "error": "no time left"}
        again = seconds(call)
        error = residual(graph, rows, seeds, DAMPING) / (1 - DAMPING)
        equal = bool(torch.equal(rows, again[0]))
        return {"ok": True, "first_s": first, "s": again[1], "error": error, "run_to_run_equal": equal}

    for name in implementations:
        options: Any = {"damping": DAMPING, "tol": TOL, "implementation": name}
        held = timed(lambda o=options: personalized_pagerank(graph, seeds, **o))  # type: ignore[misc]
        # tol, the rounding of the result, and what the residual adds to both
        held["ok"] = held["ok"] and held["error"] <= 2 * (TOL + 1e-7) / (1 - DAMPING)
        results[name] = held
    if "cugraph" in implementations:
        ranks, build = alone(graph, seeds)
        results["cugraph alone"] = {**timed(ranks), "build_s": build}
    return {"ok": all(held["ok"] for held in results.values() if isinstance(held, dict)), **results}


def alone(graph: PageRankGraph, seeds: Ragged) -> tuple[Callable[[], torch.Tensor], float]:
    """What gives the ranks of cuGraph itself, without our steps, and how long its form of the graph took."""
    from gpu_rag.graph.pagerank.cugraph import SingleGraph
    from gpu_rag.graph.pagerank.plan import plan_of

    plan = plan_of("power", DAMPING, TOL, 200, symmetric=graph.symmetric, known_mass=graph.symmetric)
    pi = torch.zeros(graph.n, seeds.batch, dtype=torch.float64, device=graph.device)
    pi[seeds.values.long(), torch.arange(seeds.batch, device=graph.device)] = 1.0
    synchronise()
    began = time.perf_counter()
    held = SingleGraph(graph)
    synchronise()
    return lambda: held.ranks(pi, plan).T.contiguous(), time.perf_counter() - began


def seconds(call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    synchronise()
    began = time.perf_counter()
    found = call()
    synchronise()
    return found, time.perf_counter() - began


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def residual(graph: PageRankGraph, rows: torch.Tensor, seeds: Ragged, damping: float) -> float:
    """The largest |(1-d) pi + d (P^T p + lost(p) pi) - p|_1 of rows p f32[B, N] with one seed each, by additions in
    f64 that no kernel of ours makes."""
    targets, worst = row_of_entry(graph.pull), 0.0
    for p, seed in zip(rows, seeds.values.tolist(), strict=True):
        p = p.double()
        flow = (p / graph.scale)[graph.pull.indices.long()]
        flow = flow if graph.pull.weight is None else flow * graph.pull.weight
        step = torch.zeros_like(p).index_add_(0, targets, flow).mul_(damping)
        step[seed] += 1 - damping + damping * float(p[graph.dangling].sum())
        worst = max(worst, float((step - p).abs().sum()))
    return worst


# --- the bench -------------------------------------------------------------------------------------


def ops(name: str, plan: Plan, until: float, keep: Keep) -> Result:
    """gpu-rag bench of every op, checked and timed one after the other in this process: its start takes as long as
    several ops."""
    from gpu_rag.bench.report import machine
    from gpu_rag.cli.bench_command import OPS

    device, (size, batches) = plan.device.type, DRY if plan.small else BENCH[name]
    ops = list(OPS)[:DRY_OPS] if plan.small and device == "cpu" else list(OPS)
    results: Result = {op: {"ok": False, "error": "no time left"} for op in ops}
    for op in ops:
        if time.time() > until:
            break
        results[op] = benched(op, size, batches, device)
        keep({"ops": results})
    return {"ok": all(held["ok"] for held in results.values()), "machine": machine(device), "ops": results}


def benched(op: str, size: int, batches: tuple[int, ...], device: str) -> Result:
    """The rows of one op; not ok where one failed its check."""
    from gpu_rag.bench.case import REFUSED, Config
    from gpu_rag.bench.run import run_bench

    config = Config(
        sizes=(size,), batches=batches, dampings=(DAMPING,), graphs=("power-law",), index=None, generated=True,
        peers=False, device=device, threads=1, rounds=1, hops=(),
    )  # fmt: skip
    try:
        found = run_bench([op], config)
    except refusals() as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
    ok = not any(row.note.startswith(REFUSED) for row in found)
    return {"ok": ok, "rows": [row.document() for row in found]}
