"""The sections of scripts/device_check.py beside its kernels, without a device: tools, cuGraph, the bench."""

from __future__ import annotations

import fcntl
import importlib
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import personalized_pagerank, prepare
from gpu_rag.types import Ragged

SCRIPTS = Path(__file__).parents[2] / "scripts"
CPU = torch.device("cpu")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


def test_nothing_of_a_late_command_goes_on(script: Callable[[str], Any], tmp_path: Path) -> None:
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


def test_sanitizer_is_absent_or_found(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: str, status: int, ok: bool
) -> None:
    sections, tool = script("device_sections"), fake_tool(tmp_path, lines, status)
    monkeypatch.setattr(sections, "find_sanitizer", lambda: tool)
    found = sections.sanitizer(time.time() + 3600)
    assert found["ok"] is ok and found["memcheck"]["status"] == status


def test_cugraph_is_absent_where_it_is_not_installed(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = script("device_sections")
    monkeypatch.setattr(sections, "find_spec", lambda name: None)
    assert sections.cugraph(time.time() + 3600) == {"ok": None, "absent": "pylibcugraph or cupy is not installed"}


def test_pageranks_are_compared(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sections, csr = script("device_sections"), script("device_graphs").rmat(300, 900, 1, CPU)
    found = sections.compared(csr, 3, time.time() + 3600, ("torch", "scipy"))
    assert found["ok"] and found["torch"]["run_to_run_equal"] and 0 < found["scipy"]["error"] < 1e-5
    solve = sections.personalized_pagerank
    monkeypatch.setattr(sections, "personalized_pagerank", lambda *a, **o: solve(*a, **o) + 1e-7)
    assert not sections.compared(csr, 3, time.time() + 3600, ("torch",))["ok"], "a wrong version"


def test_residual_is_zero_at_the_pagerank_only(script: Callable[[str], Any]) -> None:
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 40, (2, 90), generator=g)
    csr = csr_from_edges(ends[0], ends[1], 50, torch.rand(90, generator=g) + 0.1, undirected=False)
    graph, seeds = prepare(csr), Ragged(torch.tensor([3, 45]), torch.tensor([0, 1, 2]))
    rows = personalized_pagerank(graph, seeds, tol=1e-9)
    residual = script("device_sections").residual
    assert residual(graph, rows, seeds, 0.85) < 5e-7
    assert residual(graph, rows.flip(0), seeds, 0.85) > 0.1 and residual(graph, rows, seeds, 0.5) > 0.1


def test_ops_are_benched_one_by_one(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sections, kept = script("device_sections"), []
    monkeypatch.setattr(importlib.import_module("gpu_rag.cli.bench_command"), "OPS", ("no-such-op", "rrf", "late"))
    monkeypatch.setitem(sections.BENCH, "ops_small", (300, (2,)))
    clock = iter([0.0, 0.0, 9.0])
    monkeypatch.setattr(sections.time, "time", lambda: next(clock))
    found = sections.ops("ops_small", 5.0, lambda r: kept.append(json.dumps(r)), "cpu")
    refused, rrf, late = found["ops"].values()
    assert rrf["ok"] and rrf["rows"][0]["op"] == "rrf" and not found["ok"] and "libraries" in found["machine"]
    assert "no-such-op" in refused["error"] and late == {"ok": False, "error": "no time left"}
    assert len(kept) == 2 and json.loads(kept[1]) == {"ops": found["ops"]}
