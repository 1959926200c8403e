"""One run on an NVIDIA GPU: what the machine can do, then every Triton kernel checked and timed. Under ten minutes.

usage: python scripts/device_check.py [--out device_check.json] [--seconds 540]
The project must be installed, or PYTHONPATH=.:kernels set; beside it torch and triton, and pytest for the tests.

Sections: machine, ceilings (8 GB copy, 8192^3 product in bf16), each kernel on graphs made on the device from seeds,
tests (tests/triton on the device). A kernel is checked before it is timed, with fresh memory full of NaN: against its
reference, 64 rows in f64, bit-equal from run to run, and one question alone as in the batch. Times are medians of
triton.testing.do_bench, which empties the cache before each run; shares are compulsory bytes / (time x measured copy
bandwidth), for join_top1 of the measured product. Each section is a process of its own, so that a crash ends only that
one; the JSON is written after each.

Exit status: 0 all checks hold, 1 some do not or a section failed, 2 no CUDA device (nothing is run).
No figure of a GPU exists yet: this script has never run on one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from device_cases import OPS, Case, Outputs, cases  # noqa: E402

from gpu_rag.bench.measure import poisoned  # noqa: E402

SECTIONS = ("machine", "ceilings", *OPS, "tests")
COPY_BYTES = 8 * 10**9  # read; as many are written
SIDE = 8192  # of the product
PEER_ERRORS = (ImportError, RuntimeError, TypeError, ValueError)  # CuPy and torch raise RuntimeError out of memory


def machine() -> dict[str, Any]:
    props = torch.cuda.get_device_properties(0)
    modules = ("triton", "cupy", "torch_geometric", "pylibcugraph", "pytest")
    return {
        "ok": True, "device": props.name, "memory_gb": round(props.total_memory / 1e9, 1), "torch": torch.__version__,
        "cuda": torch.version.cuda, "capability": list(torch.cuda.get_device_capability(0)),
        "importable": {name: find_spec(name) is not None for name in modules},
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


def tests() -> dict[str, Any]:
    if find_spec("pytest") is None:
        return {"ok": False, "error": "pytest is not installed"}
    command = [sys.executable, "-m", "pytest", "-m", "triton", "tests/triton", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    return {"ok": done.returncode == 0, "status": done.returncode, "tail": done.stdout[-4000:] + done.stderr[-2000:]}


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


def kernel(op: str, ceiling: dict[str, Any], until: float) -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    for make in cases(op, torch.device("cuda")):
        if time.time() > until:
            results.append({"ok": False, "error": "no time left"})
            break
        case = make()
        checked = check(case)
        results.append({"size": case.size, **checked, **(timed(case, ceiling) if checked["ok"] else {})})
        del case
        torch.cuda.empty_cache()
    return {"ok": all(r["ok"] for r in results), "cases": results}


def section(name: str, ceiling: dict[str, Any], until: float) -> dict[str, Any]:
    plain: dict[str, Callable[[], dict[str, Any]]] = {"machine": machine, "ceilings": ceilings, "tests": tests}
    return plain[name]() if name in plain else kernel(name, ceiling, until)


def run_all(out: Path, seconds: float) -> int:
    start, done = time.time(), {}
    part = out.with_suffix(".part.json")
    for name in SECTIONS:
        left = start + seconds - time.time()
        if left < 5:
            done[name] = {"ok": False, "error": "no time left"}
        else:
            part.unlink(missing_ok=True)
            ceiling = json.dumps(done.get("ceilings", {}))
            command = [sys.executable, __file__, "--section", name, "--out", str(part), "--ceiling", ceiling]
            done[name] = run_section([*command, "--seconds", str(left)], left, part)
        done[name]["after_s"] = round(time.time() - start, 1)
        out.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {'ok' if done[name]['ok'] else 'FAILED'} after {done[name]['after_s']} s", flush=True)
    part.unlink(missing_ok=True)
    return 0 if all(result["ok"] for result in done.values()) else 1


def run_section(command: list[str], left: float, part: Path) -> dict[str, Any]:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"longer than the {left:.0f} s that were left"}
    if ended.returncode or not part.exists():
        return {"ok": False, "error": ended.stderr[-4000:], "status": ended.returncode}
    result: dict[str, Any] = json.loads(part.read_text(encoding="utf-8"))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks and times the Triton kernels on an NVIDIA GPU.")
    parser.add_argument("--out", type=Path, default=Path("device_check.json"), help="the JSON that is written")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for all sections")
    parser.add_argument("--section", choices=SECTIONS, help="only this one (the script calls itself so)")
    parser.add_argument("--ceiling", type=json.loads, default={}, help="JSON of the section ceilings, for --section")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("device_check: no CUDA device (torch.cuda.is_available() is false); nothing was run", file=sys.stderr)
        return 2
    if find_spec("triton") is None:
        print("device_check: triton is not installed; nothing was run", file=sys.stderr)
        return 2
    if args.section is None:
        return run_all(args.out, args.seconds)
    result = section(args.section, args.ceiling, time.time() + args.seconds)
    args.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
