"""gpu-rag: graph RAG on your own machines.

>>> import gpu_rag
>>> index = gpu_rag.build("corpus.jsonl", "my-index")                        # doctest: +SKIP
>>> index = gpu_rag.Index.open("my-index")                                   # doctest: +SKIP
>>> index.retrieve("Who ...?", k=5)    # passages, scores and paths; no language model is asked    # doctest: +SKIP
>>> index.ask("Who ...?", llm="http://127.0.0.1:8000/v1#MODEL")              # doctest: +SKIP
"""

# ruff: noqa: F403, F405
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpu_rag.errors import *

if TYPE_CHECKING:
    from gpu_rag.api.builds import build, plan_build
    from gpu_rag.api.changes import Change, add, update
    from gpu_rag.api.checks import read_answers, verify, verify_answers
    from gpu_rag.api.evaluations import evaluate
    from gpu_rag.api.indexes import Index, load_pyg
    from gpu_rag.api.merging import merge
    from gpu_rag.api.questions import load_questions
    from gpu_rag.api.removal import remove
    from gpu_rag.report.answers import Result, Results
    from gpu_rag.types import Question

__version__ = "0.1.0"
_LAZY = {
    **dict.fromkeys(("build", "plan_build"), "api.builds"),
    **dict.fromkeys(("Change", "add", "update"), "api.changes"),
    "merge": "api.merging",
    "remove": "api.removal",
    **dict.fromkeys(("read_answers", "verify", "verify_answers"), "api.checks"),
    "evaluate": "api.evaluations",
    **dict.fromkeys(("Index", "load_pyg"), "api.indexes"),
    "load_questions": "api.questions",
    "Question": "types",
    **dict.fromkeys(("Result", "Results"), "report.answers"),
}
__all__ = [
    "BadInput",
    "BudgetExceeded",
    "Cancelled",
    "Change",
    "ContextOverflow",
    "GpuRagError",
    "Index",
    "IndexCorrupt",
    "IndexLocked",
    "IndexMismatch",
    "MissingBackend",
    "MissingLayer",
    "ModelError",
    "Question",
    "RequestFailed",
    "Result",
    "Results",
    "StorageError",
    "UsageError",
    "__version__",
    "add",
    "build",
    "evaluate",
    "load_pyg",
    "load_questions",
    "merge",
    "plan_build",
    "read_answers",
    "remove",
    "update",
    "verify",
    "verify_answers",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that `import gpu_rag` stays free of torch."""
    if name in _LAZY:
        return getattr(import_module(f"gpu_rag.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'gpu_rag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
