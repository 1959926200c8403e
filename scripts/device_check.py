"""One run on an NVIDIA GPU: what the machine can do, then every Triton kernel checked and timed. Under ten minutes.

usage: python scripts/device_check.py [--out device_check.json] [--seconds 540]
       python scripts/device_check.py --section ops_small ops_large      (the next ten minutes: the same JSON goes on)
       python scripts/device_check.py --merge ONE.json TWO.json ... --out ALL.json
It runs from a checkout, installed or not. Needed: torch, triton, numpy and scipy; without pytest, CuPy, PyG,
pylibcugraph or compute-sanitizer their part is absent, and said to be.

Sections: machine, ceilings (8 GB copy, 8192^3 product in bf16), each kernel on graphs made on the device from seeds,
launches (steps of PageRank one by one and as a CUDA graph), tiles (each kernel with tiles of other sizes), tests
(tests/triton on the device), cugraph (PageRank started by cuGraph beside our own, on one large graph), sanitizer
(compute-sanitizer's memcheck and racecheck over tiny cases), and, only if they are named, ops_small and ops_large (the
bench of every op, without peers: those run on the CPU). A kernel is checked before it is timed, with fresh memory full
of NaN: against its reference, 64 rows in f64, bit-equal from run to run, and one question alone as in the batch. Times
are medians of triton.testing.do_bench, which empties the cache before each run; shares are compulsory bytes / (time x
measured copy bandwidth), for join_top1 of the measured product.

Each section is a process of its own, so that a crash ends only that one, and has a share of the time that is left by
its weight: what one saves goes to those after it, and a slow one takes nothing from them. The JSON is written after
each, and holds of a section that was ended what it had found. --section runs the named ones only, with all the time to
themselves, and keeps the others that the JSON has: what one run of ten minutes does not reach is for the next. --merge
puts several JSONs together, where a later file wins.

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

import device_sections  # noqa: E402
import device_tuning  # noqa: E402
from device_case import Case, Outputs  # noqa: E402
from device_cases import OPS, cases, tiny  # noqa: E402
from device_sections import Keep, ended  # noqa: E402

from gpu_rag.bench.measure import poisoned  # noqa: E402

WEIGHTS = {  # of the time for the sections of a run, by how long they take
    "machine": 10, "ceilings": 15, **dict.fromkeys(OPS, 30), "launches": 15, "tiles": 60, "tests": 90,
    "cugraph": 40, "sanitizer": 120, "ops_small": 100, "ops_large": 200,
}  # fmt: skip
SECTIONS = tuple(WEIGHTS)
USUAL = tuple(name for name in SECTIONS if not name.startswith("ops_"))
COPY_BYTES = 8 * 10**9  # read; as many are written
SIDE = 8192  # of the product
GRACE = 10.0  # seconds that a section may be late, which it needs to start and to write
LEAST = 5.0  # seconds left with which no section is begun
# whatever other libraries raise; out of memory torch raises a RuntimeError, CuPy a MemoryError
PEER_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, OSError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
MODULES = (  # whose absence says what cannot be checked or run on the machine
    "triton", "numba", "cupy", "torch_geometric", "pylibcugraph", "raft_dask", "pytest", "faiss", "vllm",
    "transformers", "sentence_transformers", "bm25s", "Stemmer", "ahocorasick", "jsonschema", "llguidance",
)  # fmt: skip


def machine() -> dict[str, Any]:
    props = torch.cuda.get_device_properties(0)
    return {
        "ok": True, "device": props.name, "memory_gb": round(props.total_memory / 1e9, 1), "torch": torch.__version__,
        "cuda": torch.version.cuda, "capability": list(torch.cuda.get_device_capability(0)),
        "importable": {name: find_spec(name) is not None for name in MODULES},
    }  # fmt: skip


def median_ms(run: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(run, return_mode="median"))


def ceilings() -> dict[str, Any]:
    source = torch.ones(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    copy_ms = median_ms(lambda: target.copy_(source))
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_ms = median_ms(lambda: a @ b)
    return {
        "ok": True, "copy_ms": copy_ms, "copy_gb_s": 2 * COPY_BYTES / copy_ms / 1e6,
        "product_ms": product_ms, "product_tflop_s": 2 * SIDE**3 / product_ms / 1e9,
    }  # fmt: skip


def equal(one: Outputs, other: Outputs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check(case: Case) -> dict[str, Any]:
    """What holds of the kernel, before any time is taken."""
    with poisoned():
        found = case.run("triton")
        again, alone = case.run("triton"), case.alone()
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


def timed(case: Case, ceiling: dict[str, Any]) -> dict[str, Any]:
    times = {name: median_ms(lambda n=name: case.run(n)) for name in ("triton", "reference")}  # type: ignore[misc]
    failed, shares = {}, {}
    for name, prepare in case.peers.items():
        try:
            times[name] = median_ms(prepare())
        except PEER_ERRORS as error:  # of another library: it is not there, or cannot take this size
            failed[name] = f"{type(error).__name__}: {error}"[:500]
    for name, ms in times.items():
        work = case.bytes / 1e6 / ceiling["copy_gb_s"] if case.bytes else case.flop / 1e9 / ceiling["product_tflop_s"]
        shares[name] = work / ms
    return {"bytes": case.bytes, "flop": case.flop, "ms": times, "share_of_ceiling": shares, "peers_not_timed": failed}


def kernel(op: str, ceiling: dict[str, Any], until: float, keep: Keep) -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    for make in cases(op, torch.device("cuda")):
        if time.time() > until:
            results.append({"ok": False, "error": "no time left"})
            break
        case = make()
        results.append({"size": case.size, **check(case)})
        keep({"cases": results})
        fit = results[-1]["ok"] and bool(ceiling)
        results[-1] |= timed(case, ceiling) if fit else {"not_timed": "wrong, or no ceilings to compare"}
        keep({"cases": results})
        del case
        torch.cuda.empty_cache()
    return {"ok": all(r["ok"] for r in results), "cases": results}


def section(name: str, ceiling: dict[str, Any], until: float, keep: Keep) -> dict[str, Any]:
    """The result of a section; keep is told what it has found so far."""
    plain: dict[str, Callable[[], dict[str, Any]]] = {
        "machine": machine, "ceilings": ceilings, "tests": lambda: device_sections.tests(until),
        "launches": lambda: device_tuning.launches(median_ms, until, keep),
        "tiles": lambda: device_tuning.tiles(lambda op: cases(op, torch.device("cuda"))[0](), median_ms, until, keep),
        "cugraph": lambda: device_sections.cugraph(until), "sanitizer": lambda: device_sections.sanitizer(until),
        **dict.fromkeys(device_sections.BENCH, lambda: device_sections.ops(name, until, keep)),
    }  # fmt: skip
    return plain[name]() if name in plain else kernel(name, ceiling, until, keep)


def check_tiny(device: torch.device) -> dict[str, Any]:
    """Every kernel on its tiny case: what compute-sanitizer watches."""
    return {op: check(tiny(op, device)) for op in OPS}


def run_all(out: Path, seconds: float, names: tuple[str, ...] = USUAL) -> int:
    """Runs sections; those that `out` has and that are not named are kept."""
    start = time.time()
    done = json.loads(out.read_text(encoding="utf-8")) if out.exists() and names != USUAL else {}
    part = out.with_suffix(".part.json")
    for place, name in enumerate(names):
        began = time.time()
        left = share(start + seconds - began, names[place:])
        part.unlink(missing_ok=True)
        ceiling = done["ceilings"] if done.get("ceilings", {}).get("ok") else {}
        command = [sys.executable, __file__, "--child", name, "--out", str(part), "--ceiling", json.dumps(ceiling)]
        if start + seconds - began < LEAST:
            done[name] = {"ok": False, "error": "no time left"}
        else:
            done[name] = run_section([*command, "--seconds", str(left)], left + GRACE, part)
        done[name]["took_s"] = round(time.time() - began, 1)
        out.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {said(done[name])} ({done[name]['took_s']} s)", flush=True)
    part.unlink(missing_ok=True)
    return status({name: done[name] for name in names})


def share(left: float, names: tuple[str, ...]) -> float:
    """Seconds of the first of the sections that are to come, by weight."""
    return left * WEIGHTS[names[0]] / sum(WEIGHTS[name] for name in names)


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
    parser = argparse.ArgumentParser(description="Checks and times the Triton kernels on an NVIDIA GPU.")
    parser.add_argument("--out", type=Path, default=Path("device_check.json"), help="the JSON that is written")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for all sections")
    parser.add_argument("--section", nargs="+", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--merge", nargs="+", type=Path, metavar="JSON", help="put these together and end")
    parser.add_argument("--tiny", action="store_true", help="check tiny cases only (compute-sanitizer runs this)")
    parser.add_argument("--child", choices=SECTIONS, help=argparse.SUPPRESS)  # the script calls itself so
    parser.add_argument("--ceiling", type=json.loads, default={}, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = parsed()
    if args.merge:
        held = merged(args.merge)
        args.out.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
        return status(held)
    if not torch.cuda.is_available():
        print("device_check: no CUDA device (torch.cuda.is_available() is false); nothing was run", file=sys.stderr)
        return 2
    if find_spec("triton") is None:
        print("device_check: triton is not installed; nothing was run", file=sys.stderr)
        return 2
    if args.tiny:
        found = check_tiny(torch.device("cuda"))
        print(json.dumps(found))
        return 0 if all(result["ok"] for result in found.values()) else 1
    if args.child is None:
        return run_all(args.out, args.seconds, tuple(n for n in SECTIONS if n in (args.section or USUAL)))
    out: Path = args.out
    write(out, section(args.child, args.ceiling, time.time() + args.seconds, lambda found: write(out, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
