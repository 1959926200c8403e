"""No program asks who decides: its decisions are `Ask` and `Choose` values, and the decider of the run takes them.

A program may leave out options that no rule takes, where `only_rules` says that nothing else sees them. Each of these
places is listed here; `test_rule_spoken.py` shows that the rows are the same with and without these options."""

import ast
from pathlib import Path

import pytest

import gpu_rag.methods

ROOT = Path(gpu_rag.methods.__file__).parent
NAMES = {"model_decides", "model_chooses", "asks_model", "capable", "decider", "only_rules"}
LEAVE_OUT = {"bubblerag/anchors.py": 2, "higra/retriever.py": 1, "hoprag/program.py": 1}  # uses of `only_rules`
NO_PROGRAMS = {"stages", "settings.py", "tune.py"}  # a setting names who decides, tuning runs programs


def asked(source: str) -> list[int]:
    """The lines of a module that look at who decides, or set it."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        attribute = isinstance(node, ast.Attribute) and node.attr in NAMES
        name = isinstance(node, ast.Name) and node.id in NAMES
        keyword = isinstance(node, ast.keyword) and node.arg in NAMES
        if attribute or name or keyword:
            lines.append(node.lineno if not isinstance(node, ast.keyword) else node.value.lineno)
    return sorted(set(lines))


def folders() -> list[str]:
    return sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("folder", folders())
def test_no_program_asks_who_decides(folder: str) -> None:
    files = [file for file in (ROOT / folder).rglob("*.py") if NO_PROGRAMS.isdisjoint(file.parts)]
    found = {file.relative_to(ROOT).as_posix(): asked(file.read_text(encoding="utf-8")) for file in files}
    uses = {name: len(lines) for name, lines in found.items() if lines}
    assert uses == {name: n for name, n in LEAVE_OUT.items() if name in found}, found


@pytest.mark.parametrize(
    "branch",
    [
        "if run.model_decides:\n    pass",
        "x = 1 if self.run.model_chooses else 2",
        "while search.run.decider.asks_model:\n    pass",
        "capable = llm.capable",
        "weight = 1.0 if only_rules(run) else 0.5",
        "own = replace(run, decider=RULE)",
    ],
)
def test_a_branch_is_seen(branch: str) -> None:
    assert asked(branch) == [1]


def test_text_about_deciders_is_none() -> None:
    assert asked('"""Who decides: model_decides, capable."""\nfound = decide(run, ASK)  # the decider') == []
