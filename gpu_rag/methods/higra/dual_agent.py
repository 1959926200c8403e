"""The dialogue of Seeker and Librarian without a graph. The Librarian reads the results of hybrid search."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from gpu_rag.methods.higra.seeker import converse
from gpu_rag.program.embed import embed
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking, search_hybrid
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COUNT
from gpu_rag.types import Draft, Question


@dataclass(frozen=True)
class Params(Declared):
    """The length of the dialogue, and the passages read for each sub-question."""

    n_passages: Annotated[int, COUNT, "number of passages read for each sub-question"] = 20
    max_turns: Annotated[int, COUNT, "maximum number of calls to the Librarian before the forced answer"] = 8

    depth: ClassVar[int] = 100  # places of each fused ranking
    constant: ClassVar[float] = 60.0  # constant of reciprocal rank fusion


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """Hybrid search on the question, run.limit passages. Used without a model, when there is no dialogue."""
    return await _find(run, question.text, params, run.limit)


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Run the dialogue."""
    find = partial(_find, run, params=params, k=params.n_passages)
    return await converse(run, question.text, find, params.max_turns)


async def _find(run: Run, text: str, params: Params, k: int) -> Support:
    (vector,) = await embed([text])

    def rank(n: int) -> Awaitable[Ranking]:
        return search_hybrid((text, vector), n, depth=max(params.depth, n), constant=params.constant)

    evidence, _ = await run.searched(rank, "high in both the vector and the word ranking", "search_hybrid", k)
    return Support(evidence)
