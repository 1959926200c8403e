"""gpu-rag: graph RAG on your own machines.

>>> import gpu_rag
>>> gpu_rag.build("corpus.jsonl", "my-index")                       # doctest: +SKIP
>>> with gpu_rag.Index.open("my-index") as index:                   # doctest: +SKIP
...     index.retrieve("Who ...?", k=5)                             # passages, scores, paths; no language model
...     index.ask("Who ...?")                                       # an answer with its evidence
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Index", "Result", "Results", "__version__", "build", "evaluate", "load_pyg"]

if TYPE_CHECKING:
    from gpu_rag.api import Index, Result, Results, build, evaluate, load_pyg


def __getattr__(name: str) -> Any:
    """Loads the API on first use, so that `import gpu_rag` stays free of torch."""
    if name in __all__:
        from gpu_rag import api

        return getattr(api, name)
    raise AttributeError(f"module 'gpu_rag' has no attribute {name!r}")
