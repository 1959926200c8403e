"""scripts/device_check.py runs to its end on the stand-in device: its first run on a GPU must not end at a slip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "device_check_sections.py"


@pytest.mark.slow
def test_sections_run_to_their_end(tmp_path: Path) -> None:
    out = tmp_path / "sections.json"
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(out)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(out.read_text(encoding="utf-8"))
    failed = {name: held for name, held in results.items() if not held["ok"]}
    assert not failed, json.dumps(failed, indent=1)[-8000:]
    for op in ("ppr_spmm", "join_top1"):
        (case,) = results[op]["cases"]
        assert case["run_to_run_equal"] and case["ms"] == {**case["ms"], "triton": 0.5, "reference": 0.5}
    assert all(row["device"] == "cuda" for held in results["ops_small"]["ops"].values() for row in held["rows"])
