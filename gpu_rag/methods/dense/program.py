"""Dense retrieval: the passages of highest cosine to the question, then the shared reader. A baseline."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.program.ask import embed
from gpu_rag.program.reader import Support, read
from gpu_rag.program.run import Run
from gpu_rag.program.search import search_dense
from gpu_rag.types import Draft, Question


@dataclass(frozen=True)
class Params:
    """No parameter."""


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The run.limit nearest passages."""
    (vector,) = await embed([question.text])
    found = await search_dense(vector, run.limit)
    return Support(run.evidence(found, "nearest by vector", "search_dense"))


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Retrieve, then read."""
    return await read(run, question.text, await retrieve(question, run, params))
