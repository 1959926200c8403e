"""scripts/device_check.py without a device: its graphs, its byte counts, and its checks on tiny cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_rag_kernels import dispatch
from kernel_device import NEEDS_INTERPRETER, Script

from gpu_rag.graph.csr import check_csr

SCRIPTS = Path(__file__).parents[2] / "scripts"
CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["rmat", "uniform", "bipartite"])
def test_graphs_come_from_seeds(script: Script, kind: str) -> None:
    make = script("device_graphs").GRAPHS[kind]
    one, again, other = make(300, 900, 1, CPU), make(300, 900, 1, CPU), make(300, 900, 2, CPU)
    check_csr(one)
    assert torch.equal(one.indices, again.indices) and not torch.equal(one.indices, other.indices)
    assert one.n == 300 and 900 < one.m <= 1800
    dense = torch.zeros(300, 300)
    dense[torch.repeat_interleave(torch.arange(300), one.indptr.diff()), one.indices.long()] = 1
    assert torch.equal(dense, dense.T) and not dense.diagonal().any()
    degree = one.indptr.diff()
    if kind == "bipartite":
        assert not dense[:250, :250].any() and not dense[250:, 250:].any()
    assert (int(degree.max()) > 5 * float(degree.float().mean())) == (kind != "uniform")


def test_blocks_and_lists(script: Script) -> None:
    made = script("device_graphs")
    csr = made.blocks(4, 10, 20, 0, CPU)
    rows = torch.repeat_interleave(torch.arange(40), csr.indptr.diff())
    assert csr.n == 40 and csr.m > 40 and torch.equal(rows // 10, csr.indices.long() // 10)
    lists = made.random_lists(5, 8, 30, 0, CPU)
    for first, last in zip(lists.offsets[:-1].tolist(), lists.offsets[1:].tolist()):
        row = lists.values[first:last]
        assert 1 < len(row) <= 8 and bool((row.diff() > 0).all()) and 0 <= int(row.min()) <= int(row.max()) < 30
    assert torch.allclose(made.unit_rows(6, 9, 0, CPU).float().norm(dim=1), torch.ones(6), atol=2e-3)


def test_bytes_by_hand(script: Script) -> None:
    made = script("device_graphs")
    n, m = 10, 30  # pointers 88 bytes, columns 120
    assert made.spmm_bytes(n, m, 4, 4, 4) == 88 + 120 + 3 * 160
    assert made.spmm_bytes(n, m, 4, 2, 4) == 88 + 120 + 80 + 160 + 80
    assert made.step_bytes(n, m, 4, 2) == 88 + 120 + 3 * 80 + 120
    assert made.hop_bytes(n, m, 2) == 88 + 120 + 4 * 160
    assert made.relax_bytes(n, m, 3, 5) == 5 * (88 + 120 + 80 + 240 + 240)
    assert made.gather_bytes(2, 7, 16, 3) == 7 * 36 + 24 + 64 + 48
    assert made.join_flop(3, 5, 16, 4) == 600


def tiny(script: Script, op: str) -> Any:
    return script("device_cases").tiny(op, CPU)


OPS = [
    "ppr_spmm", "ppr_step", "ppr_step_fp16", "msbfs_or", "minplus_relax", "ragged_gather_dot_topk", "join_top1"
]  # fmt: skip


def test_every_kernel_is_a_case(script: Script) -> None:
    assert list(script("device_cases").OPS) == OPS
    folders = {path.parent.name for path in (SCRIPTS.parent / "kernels" / "gpu_rag_kernels").glob("*/triton.py")}
    assert set(dispatch.LOOPS.values()) == folders
    assert all(any(op.startswith(loop) for op in OPS) for loop in dispatch.LOOPS)


@pytest.mark.parametrize("op", [pytest.param(op, marks=NEEDS_INTERPRETER) for op in OPS])
def test_checks_hold_on_tiny_cases(script: Script, op: str) -> None:
    result = script("device_check").check(tiny(script, op))
    assert result["ok"], result
    json.dumps(result)


@pytest.mark.parametrize("op", OPS)
def test_checks_catch_wrong_outputs(script: Script, op: str) -> None:
    """By the reference in the kernel's place: one wrong element of a row that is looked at, and one unwritten."""
    check, case = script("device_check").check, tiny(script, op)
    runs = {"triton": 0}

    def wrong(which: str, change: Callable[[torch.Tensor], None]) -> tuple[torch.Tensor, ...]:
        found = tuple(a.clone() for a in case.run("reference"))
        if which == "triton":
            runs["triton"] += 1
            change(found[1] if op == "ragged_gather_dot_topk" else found[0])
        return found

    def one_more(a: torch.Tensor) -> None:
        a += 1

    def other_each_run(a: torch.Tensor) -> None:
        a.view(-1)[:1] += runs["triton"]

    right = replace(case, alone=lambda _: case.part(case.run("reference")))
    held = check(replace(right, run=lambda _: case.run("reference")))
    assert held["ok"], held
    for change in (one_more, other_each_run):
        found = check(replace(right, run=lambda which, c=change: wrong(which, c)))
        assert not found["ok"]
    assert not found["run_to_run_equal"]
    alone = replace(
        right, run=lambda _: case.run("reference"), alone=lambda which: tuple(a + 1 for a in right.alone(which))
    )
    assert not check(alone)["alone_equal"]


def timing(script: Script, ms: float) -> Any:
    """A plan whose clock says `ms`, with the reference in the kernel's place."""
    kind = script("device_case").Plan
    return type("Timing", (kind,), {"ms": lambda self, run: ms})(CPU)


def test_shares_by_hand(script: Script) -> None:
    module = script("device_check")

    def absent() -> Callable[[], Any]:
        raise ImportError("no such library")

    ceiling = {"copy_gb_s": 2000.0, "product_tflop_s": 400.0}
    plan = timing(script, 2.0)
    copied = replace(tiny(script, "ppr_spmm"), bytes=10**9, peers={"other": absent, "same": lambda: int})
    found = module.timed(copied, ceiling, plan)
    assert found["ms"] == {"triton": 2.0, "reference": 2.0, "same": 2.0}
    assert found["share_of_ceiling"]["triton"] == pytest.approx(0.25)
    assert found["peers_not_timed"] == {"other": "ImportError: no such library"}
    multiplied = replace(tiny(script, "join_top1"), flop=4 * 10**11)
    assert module.timed(multiplied, ceiling, plan)["share_of_ceiling"]["reference"] == pytest.approx(0.5)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_section_that_dies_is_a_failure(script: Script, tmp_path: Path) -> None:
    run, part = script("device_check").run_section, tmp_path / "part.json"
    died = run(python("import sys; sys.exit('out of luck')"), 60.0, part)
    assert not died["ok"] and "out of luck" in died["error"]
    assert not run(python("import time; time.sleep(30)"), 0.5, part)["ok"]
    assert not run(python("pass"), 60.0, part)["ok"], "nothing was written"
    written = f"open({str(part)!r}, 'w').write('{{\"ok\": true}}')"
    assert run(python(written), 60.0, part) == {"ok": True}


def test_what_a_section_found_before_it_was_ended_is_kept(script: Script, tmp_path: Path) -> None:
    module, part = script("device_check"), tmp_path / "part.json"
    for last, error in (("import time; time.sleep(60)", "longer than the 2 s"), ("raise SystemExit('lost')", "lost")):
        module.write(part, {"cases": [1, 2]})
        found = module.run_section(python(last), 2.0, part)
        assert found["cases"] == [1, 2] and found["ok"] is False and error in found["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["part.json"]


def test_cases_are_kept_as_they_end_and_peers_may_fail(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third case is not reached; a library that has no memory left takes nothing from the kernel's figures."""
    module, kept = script("device_check"), []

    def full() -> Callable[[], Any]:
        raise MemoryError("out of memory")  # as CuPy's own error

    case = replace(tiny(script, "ppr_spmm"), run=lambda _: tiny(script, "ppr_spmm").run("reference"), peers={"c": full})
    case = replace(case, alone=lambda _: case.part(case.run("reference")))
    makes = [lambda: case, lambda: case, lambda: python("no time")]
    clock = iter([0.0, 0.0, 9.0])
    monkeypatch.setattr(module, "cases", lambda op, device: makes)
    monkeypatch.setattr(module.time, "time", lambda: next(clock))
    ceiling, plan = {"copy_gb_s": 1.0, "product_tflop_s": 1.0}, timing(script, 2.0)
    found = module.kernel("ppr_spmm", ceiling, plan, 5.0, lambda r: kept.append(str(r)))
    assert [c["ok"] for c in found["cases"]] == [True, True, False] and not found["ok"]
    assert found["cases"][0]["peers_not_timed"] == {"c": "MemoryError: out of memory"}
    assert len(kept) == 4 and "rows_in_f64" in kept[0] and "'ms'" not in kept[0] and "'ms'" in kept[1]


def test_a_kernel_that_does_not_fit_ends_neither_section_nor_size(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a tile wants more shared memory than a device has: an error of Triton's own, no RuntimeError."""
    module, tuning = script("device_check"), script("device_tuning")
    kind = type("OutOfResources", (Exception,), {})
    for one in (module, tuning):
        monkeypatch.setattr(one, "refusals", lambda: (kind,))

    def too_large(_: str) -> None:
        raise kind("out of resource: shared memory, Required: 300000, Hardware limit: 232448")

    case = replace(tiny(script, "ppr_spmm"), run=lambda _: tiny(script, "ppr_spmm").run("reference"))
    case = replace(case, alone=lambda _: case.part(case.run("reference")))
    makes = [lambda: replace(case, run=too_large), lambda: case]
    monkeypatch.setattr(module, "cases", lambda op, device: makes)
    plan, left = timing(script, 2.0), module.time.time() + 60
    first, second = module.kernel("ppr_spmm", {}, plan, left, lambda r: None)["cases"]
    assert not first["ok"] and "shared memory" in first["error"] and second["ok"]
    found = tuning.tried(makes[0](), plan)
    assert not found["ok"] and "OutOfResources" in found["error"]


@pytest.mark.parametrize("seed", range(21))
def test_steps_in_f16_are_right_to_their_last_bit_and_pass(script: Script, seed: int) -> None:
    """The reference itself is off by up to 1.3 * 2^-11 of a row's sum; a state that is off by 2^-9 is still caught."""
    made = script("device_graphs").rmat(40, 90, seed, CPU)
    case = script("device_pagerank").step(made, 3, seed, fp16=True, kind="rmat")
    found = case.run("reference")
    error, allowed = case.error(found)
    assert error <= allowed == 2.0**-10.3
    assert case.error((found[0] * (1 + 2.0**-9), found[1]))[0] > allowed


def test_each_section_ends_at_its_own_limit(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, limits = script("device_check"), {}
    assert max(module.LIMITS.values()) + module.GRACE <= 600, "a command has ten minutes"

    def run_section(command: list[str], left: float, part: Path) -> dict[str, Any]:
        limits[command[command.index("--child") + 1]] = left - module.GRACE
        return {"ok": True}

    monkeypatch.setattr(module, "run_section", run_section)
    assert module.run_all(tmp_path / "out.json", 1e6, module.SECTIONS) == 0
    assert limits == module.LIMITS
    module.run_all(tmp_path / "out.json", 100.0 + module.GRACE, ("ops_large",))
    assert limits["ops_large"] == pytest.approx(100, abs=1)


def test_a_trace_by_hand(script: Script) -> None:
    """Two kernels that overlap by half, a copy each way, and a wait beside that of the profile."""

    def event(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}

    events = [
        event("cpu_op", "aten::mm", 0, 100), event("kernel", "a", 10, 20), event("kernel", "b", 20, 20),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 50, 5, bytes=4096),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 60, 5, bytes=64), {"ph": "M", "name": "process_name"},
        *(event("cuda_runtime", "cudaStreamSynchronize", at, 1) for at in (61, 90)),
    ]  # fmt: skip
    assert script("device_profile").traced(events) == {
        "gpu_busy": 0.4, "kernels": 2, "waits": 1, "bytes_to_gpu": 4096, "bytes_to_host": 64,
    }  # fmt: skip


def played(module: Any, monkeypatch: pytest.MonkeyPatch, results: dict[str, dict[str, Any]]) -> list[str]:
    """Sections end at once with the given results; returns which were asked for."""
    asked: list[str] = []

    def run_section(command: list[str], left: float, part: Path) -> dict[str, Any]:
        asked.append(command[command.index("--child") + 1])
        return dict(results.get(asked[-1], {"ok": True}))

    monkeypatch.setattr(module, "run_section", run_section)
    return asked


def test_sections_go_on_where_a_run_ended(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, out = script("device_check"), tmp_path / "out.json"
    lacking = {"sanitizer": {"ok": None, "absent": "no tool"}}
    asked = played(module, monkeypatch, {**lacking, "msbfs_or": {"ok": False, "error": "slow"}})
    assert module.run_all(out, 1e6, module.SECTIONS) == 1
    assert asked == list(module.SECTIONS) == list(json.loads(out.read_text()))
    assert "sanitizer: ABSENT: no tool" in capsys.readouterr().out
    assert "| sanitizer | absent: no tool |" in out.with_suffix(".md").read_text()
    asked = played(module, monkeypatch, lacking)
    assert module.run_all(out, 540.0, ("msbfs_or",)) == 0 and asked == ["msbfs_or"]
    held = json.loads(out.read_text())
    assert held["msbfs_or"]["ok"] and list(held) == list(module.SECTIONS), "the others are kept"
    assert module.rest(out) == ()
    assert module.run_all(out, 1e6, module.SECTIONS) == 3, "something was absent, which is not ok"
    asked = played(module, monkeypatch, {})
    assert module.run_all(out, 1.0, module.SECTIONS) == 1 and asked == [], "no section is begun without time"
    assert json.loads(out.read_text())["machine"]["error"] == module.LATE
    assert module.rest(out) == module.SECTIONS == module.rest(tmp_path / "none.json")


def test_jsons_are_merged(script: Script, tmp_path: Path) -> None:
    one, two, out = (tmp_path / name for name in ("one.json", "two.json", "out.json"))
    one.write_text(json.dumps({"tests": {"ok": False}, "machine": {"ok": True, "device": "a"}}))
    two.write_text(json.dumps({"tests": {"ok": True}, "cugraph": {"ok": None, "absent": "x"}}))
    command = [sys.executable, str(SCRIPTS / "device_check.py"), "--merge", str(one), str(two), "--out", str(out)]
    assert subprocess.run(command, check=False).returncode == 3
    held = json.loads(out.read_text())
    assert list(held) == ["machine", "tests", "cugraph"] and held["tests"]["ok"]


def test_it_runs_from_a_checkout(tmp_path: Path) -> None:
    """Not installed, and started from another folder; so do the processes of its sections."""
    held = tmp_path / "held.json"
    held.write_text("{}")
    code = """
import contextlib, os, runpy, sys
sys.argv = sys.argv[1:]
with contextlib.suppress(SystemExit):
    runpy.run_path(sys.argv[0], run_name="__main__")
import gpu_rag, gpu_rag_kernels
print(gpu_rag.__file__, gpu_rag_kernels.__file__, os.environ["PYTHONPATH"])
"""
    plain = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    given = [str(SCRIPTS / "device_check.py"), "--merge", str(held), "--out", str(tmp_path / "out.json")]
    done = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, check=True, cwd=tmp_path, env=plain
    )
    ours, kernels, path = done.stdout.split()[-3:]
    root = SCRIPTS.parent
    assert Path(ours).is_relative_to(root / "gpu_rag") and Path(kernels).is_relative_to(root / "kernels")
    assert path == os.pathsep.join([str(root), str(root / "kernels")])


def test_importing_it_beside_an_installation_changes_nothing(script: Script) -> None:
    script("device_check")
    assert str(SCRIPTS.parent / "kernels") not in os.environ.get("PYTHONPATH", "").split(os.pathsep)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "device_check.py"), "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no CUDA device" in done.stderr
    assert not any(tmp_path.iterdir())
