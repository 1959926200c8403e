"""Dense and BM25 retrieval joined by reciprocal rank fusion, then the shared reader. A baseline."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.program.ask import embed
from gpu_rag.program.reader import Support, read
from gpu_rag.program.run import Run
from gpu_rag.program.search import search_hybrid
from gpu_rag.settings.ranges import COUNT, RANK_CONSTANT, check_fields
from gpu_rag.types import Draft, Question


@dataclass(frozen=True)
class Params:
    """depth: how many of each ranking are fused. constant: of reciprocal rank fusion, 1 / (constant + rank)."""

    depth: int = 100
    constant: float = 60.0

    def __post_init__(self) -> None:
        check_fields(self, depth=COUNT, constant=RANK_CONSTANT)


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The run.limit best of the fused ranking."""
    (vector,) = await embed([question.text])
    found = await search_hybrid(
        (question.text, vector), run.limit, depth=max(params.depth, run.limit), constant=params.constant
    )
    return Support(run.evidence(found, "high in both the vector and the word ranking", "search_hybrid"))


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Retrieve, then read."""
    return await read(run, question.text, await retrieve(question, run, params))
