"""scripts/device_check.py runs to its end on the stand-in device: its first run on a GPU must not end at a slip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "device_check_sections.py"
CHECK = SCRIPT.parents[2] / "scripts" / "device_check.py"
ABSENT = {"sanitizer", "tests", "tiles", "cugraph"}  # of a dry run: other programs, Triton, cuGraph
LACKING = """
import sys, runpy
# what an image with torch, triton, CuPy, PyG and transformers does not have
sys.modules.update(dict.fromkeys(("Stemmer", "bm25s", "duckdb", "jsonschema", "faiss", "vllm", "pylibcugraph")))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ran(*command: object) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_a_dry_run_passes_on_a_cpu(tmp_path: Path) -> None:
    """Every section, without the packages that a bare image lacks; the page says so."""
    ran("-c", LACKING, CHECK, "--dry-run", "--out", tmp_path / "dry.json")
    results = json.loads((tmp_path / "dry.json").read_text(encoding="utf-8"))
    assert {name for name, found in results.items() if not found["ok"]} <= ABSENT
    assert not [name for name, found in results.items() if found["ok"] is False]
    page = (tmp_path / "dry.md").read_text(encoding="utf-8")
    assert "| profile_hydrarag | ok |" in page and "| bubble_trees |" in page and "| ppr_step_fp16 | n 40" in page
    assert "| PageRank: nodes |" in page and results["solve"]["solves"][0]["error"] < 1e-5


@pytest.mark.slow
def test_sections_run_to_their_end(tmp_path: Path) -> None:
    out = tmp_path / "sections.json"
    ran(SCRIPT, out)
    results = json.loads(out.read_text(encoding="utf-8"))
    failed = {name: held for name, held in results.items() if not held["ok"]}
    assert not failed, json.dumps(failed, indent=1)[-8000:]
    for op in ("ppr_spmm", "join_top1"):
        (case,) = results[op]["cases"]
        assert case["run_to_run_equal"] and case["ms"] == {**case["ms"], "triton": 0.5, "reference": 0.5}
    assert all(row["device"] == "cuda" for held in results["ops_small"]["ops"].values() for row in held["rows"])
