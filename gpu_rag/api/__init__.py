"""The Python API: one function or method for each command. Names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_rag.api.builds import build, plan_build
    from gpu_rag.api.checks import read_answers, verify, verify_answers
    from gpu_rag.api.evaluations import evaluate
    from gpu_rag.api.indexes import Index, load_pyg
    from gpu_rag.api.questions import load_questions

__all__ = [
    "Index",
    "build",
    "evaluate",
    "load_pyg",
    "load_questions",
    "plan_build",
    "read_answers",
    "verify",
    "verify_answers",
]
_FILE_OF = {
    **dict.fromkeys(("build", "plan_build"), "builds"),
    **dict.fromkeys(("read_answers", "verify", "verify_answers"), "checks"),
    "evaluate": "evaluations",
    **dict.fromkeys(("Index", "load_pyg"), "indexes"),
    "load_questions": "questions",
}


def __getattr__(name: str) -> Any:
    if name in _FILE_OF:
        return getattr(import_module(f"gpu_rag.api.{_FILE_OF[name]}"), name)
    raise AttributeError(f"module 'gpu_rag.api' has no attribute {name!r}")
