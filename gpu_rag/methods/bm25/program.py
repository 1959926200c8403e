"""BM25 retrieval, then the shared reader. A baseline."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.program.reader import Support, read
from gpu_rag.program.verbs import Verbs
from gpu_rag.types import Draft, Question

NEEDS = ("bm25",)


@dataclass(frozen=True)
class Params:
    """No parameter (k1 and b belong to the index)."""


async def retrieve(question: Question, verbs: Verbs, params: Params) -> Support:
    """The verbs.limit passages of highest BM25 score."""
    found = await verbs.search_bm25(question.text, verbs.limit)
    return Support(verbs.evidence(found, "shares rare words", "search_bm25"))


async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
    """Retrieve, then read."""
    return await read(question.text, await retrieve(question, verbs, params), verbs)
