"""The dialogue of Seeker and Librarian without a graph: the Librarian reads the best passages of hybrid search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpu_rag.methods.higra.context import Context
from gpu_rag.methods.higra.dialogue import converse
from gpu_rag.program.reader import Support
from gpu_rag.program.verbs import Verbs
from gpu_rag.settings.ranges import COUNT, RANK_CONSTANT, check_fields
from gpu_rag.types import Draft, Question


@dataclass(frozen=True)
class Params:
    """n_passages: read for each sub-question. depth, constant: of the rank fusion, see `hybrid`. max_turns: calls to
    the Librarian before the forced answer."""

    n_passages: int = 20
    depth: int = 100
    constant: float = 60.0
    max_turns: int = 8

    def __post_init__(self) -> None:
        check_fields(self, n_passages=COUNT, depth=COUNT, constant=RANK_CONSTANT, max_turns=COUNT)


async def retrieve(question: Question, verbs: Verbs, params: Params) -> Support:
    """Without a model there is no dialogue: hybrid search on the question, verbs.limit passages."""
    return Support((await _hybrid_context(question.text, verbs, params, verbs.limit)).passages)


async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
    """The dialogue."""
    find = partial(_hybrid_context, verbs=verbs, params=params, k=params.n_passages)
    return await converse(question.text, verbs, find, params.max_turns)


async def _hybrid_context(text: str, verbs: Verbs, params: Params, k: int) -> Context:
    (vector,) = await verbs.embed([text])
    found = await verbs.search_hybrid(text, vector, k, depth=max(params.depth, k), constant=params.constant)
    return Context(verbs.evidence(found, "high in both the vector and the word ranking", "search_hybrid"))
