"""Dense and BM25 retrieval joined by reciprocal rank fusion, then the shared reader. A baseline."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.program.reader import Support, read
from gpu_rag.program.verbs import Verbs
from gpu_rag.settings.ranges import COUNT, RANK_CONSTANT, check_fields
from gpu_rag.types import Draft, Question

NEEDS = ("passage_vectors", "bm25")


@dataclass(frozen=True)
class Params:
    """depth: how many of each ranking are fused. constant: of reciprocal rank fusion, 1 / (constant + rank)."""

    depth: int = 100
    constant: float = 60.0

    def __post_init__(self) -> None:
        check_fields(self, depth=COUNT, constant=RANK_CONSTANT)


async def retrieve(question: Question, verbs: Verbs, params: Params) -> Support:
    """The verbs.limit best of the fused ranking."""
    (vector,) = await verbs.embed([question.text])
    found = await verbs.search_hybrid(
        question.text, vector, verbs.limit, depth=max(params.depth, verbs.limit), constant=params.constant
    )
    return Support(verbs.evidence(found, "high in both the vector and the word ranking", "search_hybrid"))


async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
    """Retrieve, then read."""
    return await read(question.text, await retrieve(question, verbs, params), verbs)
