"""gpu-rag: graph RAG on your own machines.

>>> import gpu_rag
>>> index = gpu_rag.build("corpus.jsonl", "my-index")                        # doctest: +SKIP
>>> index = gpu_rag.Index.open("my-index")                                   # doctest: +SKIP
>>> index.retrieve("Who ...?", k=5)    # passages, scores and paths; no language model is asked    # doctest: +SKIP
>>> index.ask("Who ...?", llm="http://127.0.0.1:8000/v1#MODEL")              # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpu_rag.errors import (
    BadInput,
    BudgetExceeded,
    Cancelled,
    ContextOverflow,
    GpuRagError,
    IndexCorrupt,
    IndexLocked,
    IndexMismatch,
    MissingBackend,
    MissingLayer,
    ModelError,
    RequestFailed,
    StorageError,
    UsageError,
)
from gpu_rag.types import Question

if TYPE_CHECKING:
    from gpu_rag.api import (
        Index,
        build,
        evaluate,
        load_pyg,
        load_questions,
        plan_build,
        read_answers,
        verify,
        verify_answers,
    )
    from gpu_rag.report.answers import Result, Results

__version__ = "0.1.0"
__all__ = [
    "BadInput",
    "BudgetExceeded",
    "Cancelled",
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
    "build",
    "evaluate",
    "load_pyg",
    "load_questions",
    "plan_build",
    "read_answers",
    "verify",
    "verify_answers",
]
_LAZY = {name: "gpu_rag.report.answers" if name.startswith("Result") else "gpu_rag.api" for name in __all__}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that `import gpu_rag` stays free of torch."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gpu_rag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
