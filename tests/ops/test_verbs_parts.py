"""Verbs is made of parts: none hides another's verb, and every verb that is called has one executor."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import gpu_rag.program
from gpu_rag import engine
from gpu_rag.program.verbs import Verbs

FOLDER = Path(gpu_rag.program.__file__).parent
SERVED_ELSEWHERE = {"embed", "similarity", "llm"}  # by `model_executors`, which needs models


def does(value: Any) -> object:
    """What a property or function does, whatever its docstring says."""
    code = getattr(getattr(value, "fget", value), "__code__", None)
    return (code.co_code, code.co_names) if code else value


def clashes(parts: list[type]) -> list[str]:
    """Names that two parts define in different ways: which of them counts would depend on the order of the bases."""
    found: dict[str, list[object]] = {}
    for part in parts:
        for name, value in vars(part).items():
            if not name.startswith("__"):
                found.setdefault(name, []).append(does(value))
    return [name for name, made in found.items() if any(one != made[0] for one in made)]


def test_no_part_hides_a_verb_of_another() -> None:
    parts = list(Verbs.__bases__)
    assert len(parts) >= 8 and clashes(parts) == []

    class Wrong:
        async def search_dense(self, k: int) -> int:
            return k

    assert clashes([*parts, Wrong]) == ["search_dense"]


def test_every_verb_that_is_called_has_one_executor() -> None:
    index: Any = object()  # executors load what they need when they are first asked
    made = [
        getattr(engine, name)(index)
        for name in vars(engine)
        if name.endswith("_executors") and name != "model_executors"
    ]
    served = Counter(verb for executors in made for verb in executors)
    assert [verb for verb, n in served.items() if n > 1] == []
    calls = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Call":
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}"
                calls.add(node.args[0].value)
    assert len(calls) > 30 and calls - SERVED_ELSEWHERE == set(served)
