"""scripts/device_check.py without a device: it runs to its end, its checks catch a wrong op, and no figure of a CPU is
taken for one of a GPU."""

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_rag_kernels import dispatch
from project_scripts import script

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import personalized_pagerank, prepare
from gpu_rag.types import Ragged

SECTIONS = Path(__file__).resolve().parent / "device_check_sections.py"
ROOT = SECTIONS.parents[2]
CHECK = ROOT / "scripts" / "device_check.py"
CPU = torch.device("cpu")
ABSENT = {"tests", "cugraph", "sanitizer"}  # of a dry run: other programs, cuGraph

device_check = script("device_check")


def ran(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    given = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, env=given)


@pytest.mark.slow
def test_a_dry_run_passes_on_a_cpu(tmp_path: Path) -> None:
    """Every section; the page says that no figure is of a GPU."""
    done = ran(CHECK, "--dry-run", "--out", tmp_path / "dry.json")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    results = json.loads((tmp_path / "dry.json").read_text(encoding="utf-8"))
    assert {name for name, result in results.items() if not result["ok"]} == ABSENT
    assert list(results) == list(device_check.SECTIONS)
    page = (tmp_path / "dry.md").read_text(encoding="utf-8")
    assert (
        page.startswith("# no GPU") and "| hydrarag | 4 | 4 | ok |" in page and "| ppr_step_fp16 1 | 40 nodes" in page
    )
    assert results["solve"]["parts"]["edges"]["error"] < 1e-5
    assert results["methods"]["parts"]["ppr"]["questions/s of 4"] > 0


@pytest.mark.slow
def test_sections_run_to_their_end_on_the_stand_in(tmp_path: Path) -> None:
    """Its first run on a GPU must not end at a slip."""
    done = ran(SECTIONS, tmp_path / "sections.json")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    results = json.loads((tmp_path / "sections.json").read_text(encoding="utf-8"))
    failed = {name: result for name, result in results.items() if not result["ok"]}
    assert not failed, json.dumps(failed, indent=1)[-8000:]
    (part,) = results["msbfs_or"]["parts"].values()
    assert part["run_to_run_equal"] and part["ms"] == part["reference, ms"] == 0.5
    assert all(row["device"] == "cuda" for part in results["ops"]["parts"].values() for row in part["rows"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_device_nothing_is_run_or_written(tmp_path: Path) -> None:
    assert ran(CHECK, "--out", tmp_path / "out.json").returncode == 2
    assert not any(tmp_path.iterdir())


def test_the_json_of_another_device_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(name="H200"))
    monkeypatch.setattr(device_check, "find_spec", lambda name: name)
    out = tmp_path / "out.json"
    assert device_check.refused(out) == ""
    for name, why in (("H200", ""), ("H100", "H100")):
        out.write_text(json.dumps({"machine": {"ok": True, "device": name}}))
        assert why in device_check.refused(out) and bool(device_check.refused(out)) == bool(why)


def case_by_reference(op: str) -> Any:
    """The tiny case of an op, with the reference in the kernel's place."""
    (make,) = device_check.cases(op, CPU, True)
    case = make()
    return replace(case, run=lambda _: case.run("reference"), alone=lambda _: case.alone("reference"))


def test_every_kernel_is_a_case() -> None:
    folders = {path.parent.name for path in (ROOT / "kernels" / "gpu_rag_kernels").glob("*/triton.py")}
    named = {"pagerank" if op.startswith("ppr") else dispatch.LOOPS[op] for op in device_check.KERNELS}
    assert named == folders == set(dispatch.LOOPS.values())


@pytest.mark.parametrize("op", device_check.KERNELS)
def test_checks_catch_wrong_outputs(op: str) -> None:
    """One element more, another value in each run, a question that is another alone, and output left as NaN."""
    case, check = case_by_reference(op), device_check.check
    assert check(case)["ok"]
    runs = iter(range(1000))

    def wrong(change: Callable[[torch.Tensor], None]) -> Any:
        def run(which: str) -> tuple[torch.Tensor, ...]:
            outputs = tuple(a.clone() for a in case.run(which))
            if which == "triton":
                change(outputs[1] if op == "ragged_gather_dot_topk" else outputs[0])
            return outputs

        return replace(case, run=run)

    assert not check(wrong(lambda a: a.view(-1)[:1].add_(1)))["as_reference"], "of the first question or row"
    assert not check(wrong(lambda a: a.view(-1)[:1].add_(next(runs))))["run_to_run_equal"]
    other = replace(case, alone=lambda which: tuple(a + 1 for a in case.alone(which)))
    assert not check(other)["alone_equal"]
    if case.run("")[0].is_floating_point():
        assert not check(wrong(lambda a: a.view(-1)[:1].fill_(float("nan"))))["all_written"]


def timing(ms: float, **more: Any) -> Any:
    """A plan whose clock says `ms`, with the reference in the kernel's place."""
    kind = type("Timing", (device_check.Plan,), {"ms": lambda self, run: ms})
    return kind(CPU, kernel="reference", ceilings={"copy_gb_s": 2000.0, "product_tflop_s": 400.0}, **more)


def test_residual_is_zero_at_the_pagerank_only() -> None:
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 40, (2, 90), generator=g)
    csr = csr_from_edges(ends[0], ends[1], 50, torch.rand(90, generator=g) + 0.1, undirected=False)
    graph, seeds = prepare(csr), Ragged(torch.tensor([3, 45]), torch.tensor([0, 1, 2]))
    rows, residual = personalized_pagerank(graph, seeds, tol=1e-9), device_check.residual
    assert residual(graph, rows, seeds, 0.85) < 5e-7
    assert residual(graph, rows.flip(0), seeds, 0.85) > 0.1 and residual(graph, rows, seeds, 0.5) > 0.1


def test_a_wrong_solve_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    csr, plan, solve = device_check.rmat(300, 900, 1, CPU), timing(2.0), device_check.personalized_pagerank
    assert device_check.solved(csr, 3, plan, "numba")["ok"]
    monkeypatch.setattr(device_check, "personalized_pagerank", lambda *a, **o: solve(*a, **o) + 1e-7)
    assert not device_check.solved(csr, 3, plan)["ok"]


def test_rankings_are_the_same_but_for_ties() -> None:
    def ranking(**scores: float) -> list[Any]:
        return [types.SimpleNamespace(passage_id=name, score=score) for name, score in scores.items()]

    same, there = device_check.same_ranking, ranking(a=0.9, b=0.5, c=0.5 - 1e-7)
    assert same(there, there) and same(ranking(a=0.9, c=0.5, b=0.5 - 1e-7), there)
    assert same(ranking(a=0.9, b=0.5, d=0.5 - 1e-7), there), "a tie at the end"
    assert not same(ranking(b=0.9, a=0.5, c=0.5), there) and not same(ranking(a=0.9, b=0.5), there)
    assert not same(ranking(a=0.9, b=0.6, c=0.5), there) and not same(ranking(d=0.9, a=0.9, b=0.5), there)


@pytest.mark.parametrize("slip", ["none", "another order", "an error"])
def test_smoke_catches_rankings_that_differ_and_errors(monkeypatch: pytest.MonkeyPatch, slip: str) -> None:
    def ask(device: str, method: str, n: int) -> list[Any]:
        wrong = slip if device == "cuda" else "none"
        passages = [types.SimpleNamespace(passage_id=name, score=score) for name, score in (("a", 0.9), ("b", 0.5))]
        error = {"type": "KeyError", "message": "lost"} if wrong == "an error" else None
        return [types.SimpleNamespace(evidence=passages[:: -1 if wrong == "another order" else 1], error=error)] * n

    monkeypatch.setattr(device_check, "over_sample", lambda n, copies, plan, one, names: one(ask, "ppr"))
    part = device_check.smoke(device_check.Plan(torch.device("cuda")))
    assert part["ok"] == (slip == "none") and part["same rankings"] == (0 if slip == "another order" else part["of"])
    assert part["error"] == ("lost" if slip == "an error" else "")
