"""BM25 retrieval, then the shared reader. A baseline."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.program.search import search_bm25
from gpu_rag.types import Question


@dataclass(frozen=True)
class Params:
    """No parameters (k1 and b belong to the index)."""


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The run.limit passages of highest BM25 score."""
    evidence, _ = await run.searched(lambda k: search_bm25(question.text, k), "shares rare words", "search_bm25")
    return Support(evidence)
