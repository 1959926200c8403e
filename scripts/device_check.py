"""One run on an NVIDIA GPU: the machine's ceilings, every kernel checked and timed, and whole methods profiled.

usage: python scripts/device_check.py [--out device_check.json] [--seconds 540]
       python scripts/device_check.py --rest               (the next ten minutes: what the JSON still lacks)
       python scripts/device_check.py --section ppr_step   (these alone; the JSON keeps the others)
       python scripts/device_check.py --merge ONE.json TWO.json ... --out ALL.json
       python scripts/device_check.py --dry-run            (on a CPU, tiny: each section runs to its end)
It runs from a checkout, installed or not, on torch, triton, numpy and scipy; what lacks another package is absent,
and says so. Profiles and ops need msgspec too. Nothing is downloaded and no file is read: inputs are made from seeds.

Sections, in this order: machine, ceilings (8 GB copy, 8192^3 product in bf16), tiny (every kernel on its smallest
case), sanitizer (compute-sanitizer's memcheck and racecheck over these), each kernel on graphs of 10^6 and 10^8 drawn
edges, solve (PageRank from seeds to ranks, 1000 and 64 questions), launches (its steps one by one and as a CUDA graph),
products (f16 against f32), profile_* (ppr, bubblerag, hoprag and hydrarag over a made index of 5 x 10^5 entities,
embedding by a model of MiniLM's shape: time, the GPU's busy share, waits and bytes crossed, by step), memory (ops where
little memory is left), ops_small, ops_large (the bench of every op), tests (tests/triton on the device), tiles (kernels
with tiles of other sizes), cugraph (PageRank started by cuGraph beside our own). A kernel is checked before it is
timed, with fresh memory full of NaN: against its reference, 64 rows in f64, bit-equal from run to run, and one question
alone as in the batch.
Times are medians of triton.testing.do_bench, which empties the cache before each run; shares are compulsory bytes /
(time x measured copy bandwidth), for join_top1 of the measured product.

Each section is a process of its own, so that a crash ends only that one, and is ended at its own limit. The JSON is
written after each, with a Markdown page beside it, and has of a section that was ended what it had found.

Exit status: 0 all checks hold, 1 some do not or a section failed, 2 no CUDA device (nothing is run), 3 what was run
holds, but a section lacked what it needs ("absent" in the JSON).
No figure of a GPU exists yet: this script has never run on one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
CHECKOUT = [str(HERE.parent), str(HERE.parent / "kernels")]
sys.path.insert(0, str(HERE))
if __name__ == "__main__" or find_spec("gpu_rag") is None:  # not where it is imported beside an installation
    sys.path[1:1] = CHECKOUT
    if os.environ.get("PYTHONPATH", "").split(os.pathsep)[:2] != CHECKOUT:  # for the processes of the sections
        os.environ["PYTHONPATH"] = os.pathsep.join([*CHECKOUT, *filter(None, [os.environ.get("PYTHONPATH")])])

import device_page  # noqa: E402
import device_profile  # noqa: E402
import device_sections  # noqa: E402
import device_tuning  # noqa: E402
from device_case import Case, Keep, Outputs, Plan, Result, refusals  # noqa: E402
from device_cases import OPS, cases, tiny  # noqa: E402
from device_sections import ended  # noqa: E402

from gpu_rag.bench.measure import poisoned  # noqa: E402

LIMITS = {  # seconds of a section
    "machine": 60, "ceilings": 60, "tiny": 240, "sanitizer": 540, **dict.fromkeys(OPS, 180), "solve": 240,
    "launches": 120, "products": 90,
    **{f"profile_{method}": 240 for method in (*device_profile.METHODS, "embedding")}, "memory": 180,
    "ops_small": 300, "ops_large": 540, "tests": 540, "tiles": 400, "cugraph": 300,
}  # fmt: skip
SECTIONS = tuple(LIMITS)
COPY_BYTES = 8 * 10**9  # read; as many are written
SIDE = 8192  # of the product
GRACE = 10.0  # seconds that a section may be late, which it needs to start and to write
LEAST = 5.0  # seconds left with which no section is begun
LATE = "no time left"
MODULES = (  # whose absence says what cannot be checked or run on the machine
    "triton", "numba", "cupy", "torch_geometric", "pylibcugraph", "pytest", "faiss", "vllm", "transformers",
    "sentence_transformers", "msgspec", "bm25s", "Stemmer", "duckdb", "jsonschema", "llguidance",
)  # fmt: skip


def machine(plan: Plan) -> Result:
    found: Result = {"ok": True, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    if plan.device.type == "cuda":
        props = torch.cuda.get_device_properties(0)
        found |= {"device": props.name, "memory_gb": round(props.total_memory / 1e9, 1)}
        found |= {"cuda": torch.version.cuda, "capability": list(torch.cuda.get_device_capability(0))}
    return found | {"importable": {name: find_spec(name) is not None for name in MODULES}}


def ceilings(plan: Plan) -> Result:
    n_bytes, side = (4000, 8) if plan.small else (COPY_BYTES, SIDE)
    source = torch.ones(n_bytes // 4, device=plan.device)
    target = torch.empty_like(source)
    copy_ms = plan.ms(lambda: target.copy_(source))
    a, b = (torch.randn(side, side, device=plan.device, dtype=torch.bfloat16) for _ in range(2))
    product_ms = plan.ms(lambda: a @ b)
    return {
        "ok": True, "copy_ms": copy_ms, "copy_gb_s": 2 * n_bytes / copy_ms / 1e6,
        "product_ms": product_ms, "product_tflop_s": 2 * side**3 / product_ms / 1e9,
    }  # fmt: skip


def equal(one: Outputs, other: Outputs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check(case: Case, which: str = "triton") -> Result:
    """What holds of the kernel, before any time is taken."""
    with poisoned():
        found = case.run(which)
        again, alone = case.run(which), case.alone(which)
        reference = case.run("reference")
    error, allowed = case.error(found)
    floats = [(a, b) for a, b in zip(found, reference, strict=True) if a.is_floating_point()]
    off = max((float((a.double() - b.double()).nan_to_num(0.0).abs().max()) for a, b in floats), default=0.0)
    held = {
        "run_to_run_equal": equal(found, again), "alone_equal": equal(alone, case.part(found)),
        "rows_in_f64": error <= allowed, "all_written": not any(bool(a.isnan().any()) for a, _ in floats),
    }  # fmt: skip
    if case.exact:
        held["equal_to_reference"] = equal(found, reference)
    return {"ok": all(held.values()), **held, "error": error, "allowed": allowed, "largest_difference": off}


def timed(case: Case, ceiling: Result, plan: Plan) -> Result:
    times = {name: plan.ms(lambda n=name: case.run(n)) for name in dict.fromkeys((plan.kernel, "reference"))}  # type: ignore[misc]
    failed, shares = {}, {}
    for name, prepare in {} if plan.small else case.peers.items():
        try:
            times[name] = plan.ms(prepare())
        except refusals() as error:  # of another library: it is not there, or cannot take this size
            failed[name] = f"{type(error).__name__}: {error}"[:500]
    for name, ms in times.items():
        work = case.bytes / 1e6 / ceiling["copy_gb_s"] if case.bytes else case.flop / 1e9 / ceiling["product_tflop_s"]
        shares[name] = work / ms
    return {"bytes": case.bytes, "flop": case.flop, "ms": times, "share_of_ceiling": shares, "peers_not_timed": failed}


def kernel(op: str, ceiling: Result, plan: Plan, until: float, keep: Keep) -> Result:
    results: list[Result] = []
    for make in [lambda: tiny(op, plan.device)] if plan.small else cases(op, plan.device):
        if time.time() > until:
            results.append({"ok": False, "error": LATE})
            break
        results.append({"ok": False})
        try:
            case = make()
            results[-1] = {"size": case.size, **check(case, plan.kernel)}
            keep({"cases": results})
            fit = results[-1]["ok"] and bool(ceiling)
            results[-1] |= timed(case, ceiling, plan) if fit else {"not_timed": "wrong, or no ceilings to compare"}
            del case
        except refusals() as error:  # too large for this device, say: the next size may fit
            results[-1] |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
        keep({"cases": results})
        if plan.device.type == "cuda":
            torch.cuda.empty_cache()
    return {"ok": all(r["ok"] for r in results), "cases": results}


def section(name: str, plan: Plan, ceiling: Result, until: float, keep: Keep) -> Result:
    """The result of a section; keep is told what it has found so far."""
    own = plan, until, keep
    plain: dict[str, Callable[[], Result]] = {
        "machine": lambda: machine(plan), "ceilings": lambda: ceilings(plan), "tiny": lambda: check_tiny(plan),
        "sanitizer": lambda: device_sections.sanitizer(until), "launches": lambda: device_tuning.launches(*own),
        "solve": lambda: device_sections.solve(*own), "products": lambda: device_tuning.products(*own),
        "memory": lambda: device_tuning.memory_edge(*own),
        "profile_embedding": lambda: device_profile.profile_embedding(*own),
        **dict.fromkeys(device_sections.BENCH, lambda: device_sections.ops(name, *own)),
        "tests": lambda: device_sections.tests(until), "cugraph": lambda: device_sections.cugraph(until),
        "tiles": lambda: device_tuning.tiles(lambda op: first_case(op, plan), *own),
    }  # fmt: skip
    try:
        if name in plain:
            return plain[name]()
        if name.startswith("profile_"):
            return device_profile.profile_method(name.removeprefix("profile_"), *own)
        return kernel(name, ceiling, *own)
    except ImportError as error:
        return device_sections.absent(f"{error}")


def first_case(op: str, plan: Plan) -> Case:
    return tiny(op, plan.device) if plan.small else cases(op, plan.device)[0]()


def check_tiny(plan: Plan) -> Result:
    """Every kernel on its tiny case: what compute-sanitizer watches."""
    found: Result = {}
    for op in OPS:
        try:
            found[op] = check(tiny(op, plan.device), plan.kernel)
        except refusals() as error:
            found[op] = {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
    return {"ok": all(result["ok"] for result in found.values()), "ops": found}


def dry_run(out: Path) -> int:
    """Every section that needs no other program, on the CPU, tiny, in this process; the reference for the kernels."""
    plan, done = Plan(torch.device("cpu"), small=True, kernel="reference"), {}
    for name in SECTIONS:
        if name in ("sanitizer", "tests", "cugraph"):
            done[name] = device_sections.absent("not in a dry run")
        else:
            done[name] = section(name, plan, done.get("ceilings", {}), time.time() + LIMITS[name], lambda _: None)
        print(f"{name}: {said(done[name])}", flush=True)
    save(out, done)
    return 1 if status(done) == 1 else 0


def run_all(out: Path, seconds: float, names: tuple[str, ...]) -> int:
    """Runs sections; those that `out` has and that are not named are kept."""
    start = time.time()
    done = json.loads(out.read_text(encoding="utf-8")) if out.exists() and names != SECTIONS else {}
    part = out.with_suffix(".part.json")
    for name in names:
        began = time.time()
        left = min(start + seconds - began - GRACE, LIMITS[name])
        part.unlink(missing_ok=True)
        ceiling = done["ceilings"] if done.get("ceilings", {}).get("ok") else {}
        command = [sys.executable, __file__, "--child", name, "--out", str(part), "--ceiling", json.dumps(ceiling)]
        if left < LEAST:
            done[name] = {"ok": False, "error": LATE}
        else:
            done[name] = run_section([*command, "--seconds", str(left)], left + GRACE, part)
        done[name]["took_s"] = round(time.time() - began, 1)
        save(out, done)
        print(f"{name}: {said(done[name])} ({done[name]['took_s']} s)", flush=True)
    part.unlink(missing_ok=True)
    return status({name: done[name] for name in names})


def rest(out: Path) -> tuple[str, ...]:
    """The sections that a JSON lacks, or had no time for."""
    done = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return tuple(name for name in SECTIONS if done.get(name, {"error": LATE}).get("error") == LATE)


def save(out: Path, done: dict[str, Result]) -> None:
    """The JSON, and the page beside it."""
    ordered = {name: done[name] for name in SECTIONS if name in done}
    out.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(device_page.page(ordered), encoding="utf-8")


def said(result: dict[str, Any]) -> str:
    if result["ok"] is None:
        return f"ABSENT: {result['absent']}"
    return "ok" if result["ok"] else "FAILED"


def status(results: dict[str, dict[str, Any]]) -> int:
    """The exit status of a run."""
    if any(result["ok"] is False for result in results.values()):
        return 1
    return 3 if any(result["ok"] is None for result in results.values()) else 0


def merged(files: list[Path]) -> dict[str, dict[str, Any]]:
    """The sections of several JSONs in the order of a run; where two have one, the later file's."""
    held: dict[str, dict[str, Any]] = {}
    for file in files:
        held.update(json.loads(file.read_text(encoding="utf-8")))
    return {name: held[name] for name in SECTIONS if name in held}


def run_section(command: list[str], left: float, part: Path) -> dict[str, Any]:
    """What a section wrote; of one that was ended or died, what it had found until then, and why."""
    done = ended(command, left)
    result: dict[str, Any] = json.loads(part.read_text(encoding="utf-8")) if part.exists() else {}
    if done["status"] or "ok" not in result:
        result |= {"ok": False, "error": done["tail"], "status": done["status"]}
    return result


def write(out: Path, result: dict[str, Any]) -> None:
    """All of it or, to a process that is ended meanwhile, nothing."""
    part = out.with_suffix(".new")
    part.write_text(json.dumps(result) + "\n", encoding="utf-8")
    part.replace(out)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Checks and times gpu-rag on an NVIDIA GPU.")
    parser.add_argument("--out", type=Path, default=Path("device_check.json"), help="the JSON that is written")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for all sections")
    parser.add_argument("--section", nargs="+", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--rest", action="store_true", help="the sections that the JSON lacks, or had no time for")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="JSON", help="put these together and end")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on the CPU: that every section runs to its end")
    parser.add_argument("--tiny", action="store_true", help="check tiny cases only (compute-sanitizer runs this)")
    parser.add_argument("--child", choices=SECTIONS, help=argparse.SUPPRESS)  # the script calls itself so
    parser.add_argument("--ceiling", type=json.loads, default={}, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = parsed()
    if args.merge:
        found = merged(args.merge)
        save(args.out, found)
        return status(found)
    if args.dry_run:
        return dry_run(args.out)
    if not torch.cuda.is_available():
        print("device_check: no CUDA device (torch.cuda.is_available() is false); nothing was run", file=sys.stderr)
        return 2
    if find_spec("triton") is None:
        print("device_check: triton is not installed; nothing was run", file=sys.stderr)
        return 2
    if args.tiny:
        found = check_tiny(Plan(torch.device("cuda")))
        print(json.dumps(found))
        return 0 if found["ok"] else 1
    if args.child is None:
        names = rest(args.out) if args.rest else tuple(n for n in SECTIONS if n in (args.section or SECTIONS))
        return run_all(args.out, args.seconds, names)
    out: Path = args.out
    plan, until = Plan(torch.device("cuda")), time.time() + args.seconds
    write(out, section(args.child, plan, args.ceiling, until, lambda found: write(out, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
