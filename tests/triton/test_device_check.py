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


@pytest.mark.parametrize("seed", range(5))
def test_steps_in_f16_are_right_to_their_last_bit_and_pass(script: Script, seed: int) -> None:
    """The reference itself is off by up to 1.3 * 2^-11 of a row's sum; a state that is off by 2^-9 is still caught."""
    made = script("device_graphs").rmat(40, 90, seed, CPU)
    case = script("device_pagerank").step(made, 3, seed, fp16=True, kind="rmat")
    found = case.run("reference")
    error, allowed = case.error(found)
    assert error <= allowed == 2.0**-10.3
    assert case.error((found[0] * (1 + 2.0**-9), found[1]))[0] > allowed


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "device_check.py"), "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no CUDA device" in done.stderr
    assert not any(tmp_path.iterdir())
