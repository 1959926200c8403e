"""Dense and BM25 retrieval joined by reciprocal rank fusion, then the shared reader. A baseline."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar

from gpu_rag.program.embed import embed
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking, search_hybrid
from gpu_rag.settings.check import Declared
from gpu_rag.types import Question


@dataclass(frozen=True)
class Params(Declared):
    """Retrieval by two rankings."""

    depth: ClassVar[int] = 100  # places of each fused ranking
    constant: ClassVar[float] = 60.0  # constant of reciprocal rank fusion, 1 / (constant + rank)


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The run.limit best passages of the fused ranking."""
    (vector,) = await embed([question.text])

    def rank(k: int) -> Awaitable[Ranking]:
        return search_hybrid((question.text, vector), k, depth=max(params.depth, k), constant=params.constant)

    evidence, _ = await run.searched(rank, "high in both the vector and the word ranking", "search_hybrid")
    return Support(evidence)
