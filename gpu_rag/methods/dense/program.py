"""Dense retrieval: the passages of highest cosine to the question, then the shared reader. A baseline."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.program.reader import Support, read
from gpu_rag.program.verbs import Verbs
from gpu_rag.types import Draft, Question

NEEDS = ("passage_vectors",)


@dataclass(frozen=True)
class Params:
    """No parameter."""


async def retrieve(question: Question, verbs: Verbs, params: Params) -> Support:
    """The verbs.limit nearest passages."""
    (vector,) = await verbs.embed([question.text])
    found = await verbs.search_dense(vector, verbs.limit)
    return Support(verbs.evidence(found, "nearest by vector", "search_dense"))


async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
    """Retrieve, then read."""
    return await read(question.text, await retrieve(question, verbs, params), verbs)
