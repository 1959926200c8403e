"""The notebooks: cells run in their order in a fresh process, and what a cell ends with is shown, as Jupyter does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs" / "notebooks").glob("*.ipynb"))
RUN = """
import ast, json, sys
names = {"__name__": "__main__"}
shown = []
for number, text in enumerate(json.load(sys.stdin)):
    tree = ast.parse(text, f"cell {number}")
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {number}", "exec"), names)
    value = eval(compile(last, f"cell {number}", "eval"), names) if last else None
    if value is not None:
        show = getattr(value, "_repr_html_", None)
        shown.append(show() if show else repr(value))
print("SHOWN", json.dumps(shown))
"""


def cells(path: Path, kind: str) -> list[str]:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == kind]


def test_there_are_two_without_outputs() -> None:
    assert [path.name for path in NOTEBOOKS] == ["evidence.ipynb", "methods.ipynb"]
    for path in NOTEBOOKS:
        found = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in found)
        assert len({cell["id"] for cell in found}) == len(found)


def run(path: Path, folder: Path) -> list[str]:
    """Outputs of the cells of a notebook."""
    given = json.dumps(cells(path, "code"))
    command = [sys.executable, "-P", "-W", "error::SyntaxWarning", "-c", RUN]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=folder, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SHOWN ")]
    return list(json.loads(line.removeprefix("SHOWN ")))


@pytest.mark.slow
def test_evidence(tmp_path: Path) -> None:
    counts, found, passages, answers, answer = run(NOTEBOOKS[0], tmp_path)
    assert "'documents': 5" in counts and "'rejects': 0" in counts
    assert "<li>Kerling - mayor was - Anna Stroud <small>kerling.html</small></li>" in found and "<mark>" in found
    assert "kerling.html" in passages and "lighthouse" in answers and "Tamsin" in answer


@pytest.mark.slow
def test_methods(tmp_path: Path) -> None:
    digest, table, titles, found, facts, walks = run(NOTEBOOKS[1], tmp_path)
    assert len(digest) == 66 and all(name in table for name in ("dense", "bm25", "hybrid", "ppr", "recall@5"))
    assert "William Herschel" in titles and "<mark>" in found
    assert "Pierre Curie" in facts and "Uranium" in walks
