"""The sections of scripts/device_check.py beside its kernels, without a device: tools, cuGraph, the bench."""

from __future__ import annotations

import fcntl
import importlib
import json
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from gpu_rag_kernels import dispatch
from kernel_device import NEEDS_INTERPRETER, Script

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import personalized_pagerank, prepare
from gpu_rag.types import Ragged

SCRIPTS = Path(__file__).parents[2] / "scripts"
CPU = torch.device("cpu")


def test_nothing_of_a_late_command_goes_on(script: Script, tmp_path: Path) -> None:
    """What a killed command had started would go on working on the GPU while others are timed."""
    mark, limit_s = tmp_path / "mark", 0.5
    late = f"import fcntl, time; f = open({str(mark)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); f.write('.'); f.flush()"
    late += "; time.sleep(600)"
    starts = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {late!r}]); time.sleep(600)"
    while not mark.exists() or not mark.read_text():  # longer where Python takes longer to start
        limit_s *= 2
        done = script("device_sections").ended([sys.executable, "-c", starts], limit_s)
        assert done["status"] == 124 and f"longer than the {limit_s:.0f} s" in done["tail"]
    until = time.monotonic() + 60  # the system ends it, not at once
    with mark.open() as held:
        while not unlocked(held):
            assert time.monotonic() < until, "it goes on"
            time.sleep(0.01)


def unlocked(file: IO[str]) -> bool:
    """Whether no other process holds the lock of a file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def fake_tool(folder: Path, lines: str, status: int) -> Path:
    """A compute-sanitizer that runs nothing and says the given lines."""
    folder.mkdir(parents=True, exist_ok=True)
    tool = folder / "compute-sanitizer"
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint({lines!r}, file=sys.stderr)\nsys.exit({status})\n")
    tool.chmod(0o755)
    return tool


def test_sanitizer_is_absent_or_found(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sections = script("device_sections")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for key in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(sections, "find_spec", lambda name: None)
    assert sections.sanitizer(time.time() + 3600)["ok"] is None
    package = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(sections, "find_spec", lambda name: package)
    packaged = fake_tool(tmp_path / "nvidia" / "cu13" / "compute-sanitizer", "", 0)
    assert sections.find_sanitizer() == packaged
    toolkit = fake_tool(tmp_path / "cuda" / "bin", "", 0)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert sections.find_sanitizer() == toolkit
    on_path = fake_tool(tmp_path / "path", "", 0)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert sections.find_sanitizer() == on_path


CLEAN = "========= ERROR SUMMARY: 0 errors\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"


@pytest.mark.parametrize(
    ("lines", "status", "ok"),
    [
        (CLEAN, 0, True),
        (CLEAN, 1, False),  # a case was wrong
        ("========= ERROR SUMMARY: 3 errors", 99, False),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)", 0, False),
        ("========= Error: no device", 0, False),  # says nothing about errors found
    ],
)
def test_sanitizer_counts_only_what_is_said(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: str, status: int, ok: bool
) -> None:
    sections, tool = script("device_sections"), fake_tool(tmp_path, lines, status)
    monkeypatch.setattr(sections, "find_sanitizer", lambda: tool)
    found = sections.sanitizer(time.time() + 3600)
    assert found["ok"] is ok and found["memcheck"]["status"] == status


def test_cugraph_is_absent_where_it_is_not_installed(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = script("device_sections")
    monkeypatch.setattr(sections, "find_spec", lambda name: None)
    assert sections.cugraph(time.time() + 3600) == {"ok": None, "absent": "pylibcugraph or cupy is not installed"}


def test_pageranks_are_compared(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    sections, csr = script("device_sections"), script("device_graphs").rmat(300, 900, 1, CPU)
    found = sections.compared(csr, 3, time.time() + 3600, ("torch", "numba"))
    assert found["ok"] and found["torch"]["run_to_run_equal"] and 0 < found["numba"]["error"] < 1e-5
    solve = sections.personalized_pagerank
    monkeypatch.setattr(sections, "personalized_pagerank", lambda *a, **o: solve(*a, **o) + 1e-7)
    assert not sections.compared(csr, 3, time.time() + 3600, ("torch",))["ok"], "a wrong version"


def test_residual_is_zero_at_the_pagerank_only(script: Script) -> None:
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 40, (2, 90), generator=g)
    csr = csr_from_edges(ends[0], ends[1], 50, torch.rand(90, generator=g) + 0.1, undirected=False)
    graph, seeds = prepare(csr), Ragged(torch.tensor([3, 45]), torch.tensor([0, 1, 2]))
    rows = personalized_pagerank(graph, seeds, tol=1e-9)
    residual = script("device_sections").residual
    assert residual(graph, rows, seeds, 0.85) < 5e-7
    assert residual(graph, rows.flip(0), seeds, 0.85) > 0.1 and residual(graph, rows, seeds, 0.5) > 0.1


def test_ops_are_benched_one_by_one(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    sections, plan, kept = script("device_sections"), dry(script, "reference"), []
    monkeypatch.setattr(importlib.import_module("gpu_rag.cli.bench_command"), "OPS", ("no-such-op", "rrf", "late"))
    clock = iter([0.0, 0.0, 9.0])
    monkeypatch.setattr(sections.time, "time", lambda: next(clock))
    found = sections.ops("ops_small", plan, 5.0, lambda r: kept.append(json.dumps(r)))
    refused, rrf, late = found["ops"].values()
    assert rrf["ok"] and rrf["rows"][0]["op"] == "rrf" and not found["ok"] and "libraries" in found["machine"]
    assert "no-such-op" in refused["error"] and late == {"ok": False, "error": "no time left"}
    assert len(kept) == 2 and json.loads(kept[1]) == {"ops": found["ops"]}


# --- sections that settle choices -------------------------------------------------------------------

OPS = ("ppr_step", "msbfs_or", "minplus_relax", "ragged_gather_dot_topk", "join_top1")


def dry(script: Script, kernel: str) -> Any:
    """The plan of a dry run, whose clock says 2 ms."""

    class Clocked(script("device_case").Plan):  # type: ignore[misc]
        def ms(self, run: Callable[[], Any]) -> float:
            run()
            return 2.0

    return Clocked(CPU, small=True, kernel=kernel)


@pytest.mark.parametrize("op", [pytest.param(op, marks=NEEDS_INTERPRETER) for op in OPS])
def test_every_tile_is_right(script: Script, op: str) -> None:
    tuning, case = script("device_tuning"), script("device_cases").tiny(op, CPU)
    kernels: Any = importlib.import_module(f"gpu_rag_kernels.{dispatch.LOOPS[tuning.MODULES.get(op, op)]}.triton")
    for values in tuning.TILES[op]:
        before = {name: getattr(kernels, name) for name in values}
        with tuning.constants(op, values):
            assert {name: getattr(kernels, name) for name in values} == values
            found = tuning.tried(case, dry(script, "triton"))
            assert found == {"ok": True, "error": pytest.approx(0, abs=1e-2), "ms": 2.0}
        assert {name: getattr(kernels, name) for name in values} == before


def by_reference(case: Any) -> Any:
    return replace(case, run=lambda which: case.run("reference"))


def test_the_fastest_that_is_right_is_named(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """One choice is wrong, one is refused, one is slow."""
    tuning, cases = script("device_tuning"), script("device_cases")
    assert set(tuning.TILES) == set(OPS) <= set(cases.OPS)
    case = by_reference(cases.tiny("msbfs_or", CPU))
    held: dict[str, int] = {}

    def run(which: str) -> Any:
        if held.get("LANES") == 1:
            raise RuntimeError("out of resource: shared memory")
        fresh, seen = case.run(which)
        return (fresh + 1 if held.get("LANES") == 2 else fresh), seen

    class Constants:
        def __init__(self, op: str, values: dict[str, int]):
            held.clear()
            held.update(values)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(tuning, "constants", Constants)
    monkeypatch.setattr(tuning, "TILES", {"msbfs_or": [{}, {"LANES": 1}, {"LANES": 2}, {"LANES": 3}]})
    kept: list[Any] = []

    class Timed(script("device_case").Plan):  # type: ignore[misc]
        def ms(self, run: Callable[[], Any]) -> float:
            return 5.0 - held.get("LANES", 0)

    plan = Timed(CPU, small=True)
    found = tuning.tiles(lambda op: replace(case, run=run), plan, time.time() + 3600, kept.append)
    rows = found["ops"]["msbfs_or"]["tiles"]
    assert [row["ok"] for row in rows] == [True, False, False, True] and "shared memory" in rows[1]["error"]
    assert found["ok"] and found["ops"]["msbfs_or"]["best"] == {"LANES": 3} and len(kept) == 4
    late = tuning.tiles(lambda op: case, plan, time.time() - 1, kept.append)
    assert not late["ok"] and late["ops"]["msbfs_or"] == {"ok": False, "error": "no time left"}


@pytest.mark.parametrize("replays", ["the same", "nothing", "an error"])
def test_what_is_replayed_must_be_what_was_launched(script: Script, replays: str) -> None:
    class Captured(type(dry(script, "reference"))):  # type: ignore[misc]
        def captured(self, run: Callable[[], None]) -> Callable[[], None]:
            if replays == "an error":
                raise RuntimeError("operation not permitted when stream is capturing")
            return run if replays == "the same" else lambda: None

    plan = Captured(CPU, small=True, kernel="reference")
    found = script("device_tuning").launches(plan, time.time() + 3600, lambda result: None)
    assert found["ok"] == (replays == "the same") and [row["batch"] for row in found["batches"]] == [1, 8, 64]
    if replays == "the same":
        assert all(row["launched"]["ms"] == 2.0 and row["replayed"]["host_ms"] > 0 for row in found["batches"])
    if replays == "an error":
        assert "capturing" in found["batches"][0]["error"]
