"""scripts/device_check.py without a device: its graphs, its byte counts, and its checks on tiny cases."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_rag_kernels import choice

from gpu_rag.graph.csr import check_csr
from gpu_rag.types import CSR

SCRIPTS = Path(__file__).parents[2] / "scripts"
CPU = torch.device("cpu")
INTERPRETED = choice.interpreted() and "triton" in choice.known("cpu")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


@pytest.mark.parametrize("kind", ["rmat", "uniform", "bipartite"])
def test_graphs_come_from_seeds(script: Callable[[str], Any], kind: str) -> None:
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


def test_blocks_and_lists(script: Callable[[str], Any]) -> None:
    made = script("device_graphs")
    csr = made.blocks(4, 10, 20, 0, CPU)
    rows = torch.repeat_interleave(torch.arange(40), csr.indptr.diff())
    assert csr.n == 40 and csr.m > 40 and torch.equal(rows // 10, csr.indices.long() // 10)
    lists = made.random_lists(5, 8, 30, 0, CPU)
    for first, last in zip(lists.offsets[:-1].tolist(), lists.offsets[1:].tolist()):
        row = lists.values[first:last]
        assert 1 < len(row) <= 8 and bool((row.diff() > 0).all()) and 0 <= int(row.min()) <= int(row.max()) < 30
    assert torch.allclose(made.unit_rows(6, 9, 0, CPU).float().norm(dim=1), torch.ones(6), atol=2e-3)


def test_bytes_by_hand(script: Callable[[str], Any]) -> None:
    made = script("device_graphs")
    n, m = 10, 30  # pointers 88 bytes, columns 120
    assert made.spmm_bytes(n, m, 4, 4, 4) == 88 + 120 + 3 * 160
    assert made.spmm_bytes(n, m, 4, 2, 4) == 88 + 120 + 80 + 160 + 80
    assert made.hop_bytes(n, m, 2) == 88 + 120 + 4 * 160
    assert made.relax_bytes(n, m, 3, 5) == 5 * (88 + 120 + 80 + 240 + 240)
    assert made.gather_bytes(2, 7, 16, 3) == 7 * 36 + 24 + 64 + 48
    assert made.join_flop(3, 5, 16, 4) == 600


def tiny(script: Callable[[str], Any], op: str) -> Any:
    made, case = script("device_graphs"), script("device_cases")
    csr: CSR = made.rmat(40, 90, 3, CPU)
    if op.startswith("ppr_spmm"):
        return case.spmm(csr, 3, 1, fp16=op.endswith("fp16"), kind="rmat")
    if op == "msbfs_or":
        return case.hop(csr, 2, 1, kind="rmat")
    if op == "minplus_relax":
        return case.relax(3, 12, 20, 2, 1, CPU)
    if op == "ragged_gather_dot_topk":
        return case.gather(4, 9, 30, 20, 3, 1, CPU)
    return case.join(70, 20, 5, 1, CPU)


OPS = ["ppr_spmm", "ppr_spmm_fp16", "msbfs_or", "minplus_relax", "ragged_gather_dot_topk", "join_top1"]


@pytest.mark.triton
@pytest.mark.skipif(not INTERPRETED, reason="needs triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("op", OPS)
def test_checks_hold_on_tiny_cases(script: Callable[[str], Any], op: str) -> None:
    result = script("device_check").check(tiny(script, op))
    assert result["ok"], result
    json.dumps(result)


@pytest.mark.parametrize("op", OPS)
def test_checks_catch_wrong_outputs(script: Callable[[str], Any], op: str) -> None:
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

    right = replace(case, alone=lambda: case.part(case.run("reference")))
    held = check(replace(right, run=lambda _: case.run("reference")))
    assert held["ok"], held
    for change in (one_more, other_each_run):
        found = check(replace(right, run=lambda which, c=change: wrong(which, c)))
        assert not found["ok"]
    assert not found["run_to_run_equal"]
    alone = replace(right, run=lambda _: case.run("reference"), alone=lambda: tuple(a + 1 for a in right.alone()))
    assert not check(alone)["alone_equal"]


def test_shares_by_hand(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("device_check")

    def absent() -> Callable[[], Any]:
        raise ImportError("no such library")

    ceiling = {"copy_gb_s": 2000.0, "product_tflop_s": 400.0}
    monkeypatch.setattr(module, "median_ms", lambda run: 2.0)
    copied = replace(tiny(script, "ppr_spmm"), bytes=10**9, peers={"other": absent, "same": lambda: int})
    found = module.timed(copied, ceiling)
    assert found["ms"] == {"triton": 2.0, "reference": 2.0, "same": 2.0}
    assert found["share_of_ceiling"]["triton"] == pytest.approx(0.25)
    assert found["peers_not_timed"] == {"other": "ImportError: no such library"}
    multiplied = replace(tiny(script, "join_top1"), flop=4 * 10**11)
    assert module.timed(multiplied, ceiling)["share_of_ceiling"]["reference"] == pytest.approx(0.5)


def test_a_section_that_dies_is_a_failure(script: Callable[[str], Any], tmp_path: Path) -> None:
    run, part = script("device_check").run_section, tmp_path / "part.json"

    def python(code: str) -> list[str]:
        return [sys.executable, "-c", code]

    died = run(python("import sys; sys.exit('out of luck')"), 60.0, part)
    assert not died["ok"] and "out of luck" in died["error"]
    assert not run(python("import time; time.sleep(30)"), 0.5, part)["ok"]
    assert not run(python("pass"), 60.0, part)["ok"], "nothing was written"
    written = f"open({str(part)!r}, 'w').write('{{\"ok\": true}}')"
    assert run(python(written), 60.0, part) == {"ok": True}


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "device_check.py"), "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no CUDA device" in done.stderr
    assert not any(tmp_path.iterdir())
