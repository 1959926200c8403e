"""HiGraAgent: the dialogue of Seeker and Librarian, the Librarian retrieving by HiGraRetriever."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpu_rag.methods.higra.context import Params as RetrieverParams
from gpu_rag.methods.higra.context import graph_context
from gpu_rag.methods.higra.dialogue import converse
from gpu_rag.program.reader import Support
from gpu_rag.program.verbs import Verbs
from gpu_rag.settings.ranges import COUNT, check_fields
from gpu_rag.types import Draft, Question

__all__ = ["Params", "program", "retrieve"]


@dataclass(frozen=True)
class Params(RetrieverParams):
    """Those of `higra-retriever`, for each sub-question. max_turns: calls to the Librarian before the forced answer."""

    max_turns: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, max_turns=COUNT)


async def retrieve(question: Question, verbs: Verbs, params: Params) -> Support:
    """Without a model there is no dialogue: what the Librarian would read for the question itself."""
    context = await graph_context(question.text, verbs, params, verbs.limit)
    return Support(context.passages[: verbs.limit], context.paths)


async def program(question: Question, verbs: Verbs, params: Params) -> Draft:
    """The dialogue."""
    find = partial(graph_context, verbs=verbs, params=params)
    return await converse(question.text, verbs, find, params.max_turns)
