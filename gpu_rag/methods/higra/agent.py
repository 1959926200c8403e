"""HiGraAgent: the dialogue of Seeker and Librarian. The Librarian retrieves by HiGraRetriever."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from gpu_rag.methods.higra import retriever
from gpu_rag.methods.higra.retriever import retrieve
from gpu_rag.methods.higra.seeker import converse
from gpu_rag.program.run import Run
from gpu_rag.settings.ranges import COUNT
from gpu_rag.types import Draft, Question

__all__ = ["Params", "program", "retrieve"]  # without a model there is no dialogue, only HiGraRetriever


@dataclass(frozen=True)
class Params(retriever.Params):
    """The settings of `higra-retriever`, applied to each sub-question, and the length of the dialogue."""

    max_turns: Annotated[int, COUNT, "maximum number of calls to the Librarian before the forced answer"] = 8


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Run the dialogue."""
    return await converse(run, question.text, partial(retriever.find, run, params=params), params.max_turns)
