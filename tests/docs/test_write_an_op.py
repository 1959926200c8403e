"""docs/write-an-op.md: its code, taken from the page, is an op that passes its own tests, and is short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "write-an-op.md"
PATHS = """
import gpu_rag.graph, gpu_rag_kernels
gpu_rag.graph.__path__.append({graph!r})
gpu_rag_kernels.__path__.append({kernels!r})
"""


def blocks() -> dict[str, str]:
    """The code of the page by the path in its first line."""
    return dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S))


def run_page(code: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The tests of the page, run on its op as if both lay in the packages."""
    for name, text in code.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    places = {"graph": str(folder / "gpu_rag" / "graph"), "kernels": str(folder / "kernels" / "gpu_rag_kernels")}
    (folder / "conftest.py").write_text(PATHS.format(**places), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def test_the_op_of_the_page_passes_its_tests(tmp_path: Path) -> None:
    done = run_page(blocks(), tmp_path)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"), [("counts[p] += a == b", "counts[p] += a != b"), ("right[pair] *", "left[pair] *")]
)
def test_a_wrong_backend_fails_them(right: str, wrong: str, tmp_path: Path) -> None:
    code = {name: text.replace(right, wrong) for name, text in blocks().items()}
    assert code != blocks()
    assert run_page(code, tmp_path).returncode == 1


def test_it_is_short() -> None:
    op = [text for name, text in blocks().items() if not name.startswith("tests/")]
    assert len(op) == 2 and sum(len([line for line in text.split("\n") if line.strip()]) for text in op) < 60
