"""The page on the Python API: its blocks run as one program."""

import os
import re
import subprocess
import sys
from pathlib import Path

from installed import ROOT

import gpu_rag

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_its_blocks_run(tmp_path: Path) -> None:
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S))
    assert program.count("gpu_rag.") >= 3
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0].startswith("Index('my-index': 2 passages")
    assert set(run.stdout.splitlines()[-2:]) <= {"Kerling", "Halden Bridge"}


def test_it_names_what_is_public() -> None:
    named = set(re.findall(r"gpu_rag\.(\w+)", PAGE))
    assert named <= {*dir(gpu_rag), "integrations"}
    assert {"build", "evaluate", "plan_build", "verify", "verify_answers", "Index"} <= named
    for method in set(re.findall(r"index\.(\w+)", PAGE)) - {"report"}:
        assert callable(getattr(gpu_rag.Index, method)), method
