"""The dialogue of Seeker and Librarian that answers one question, without a graph: the Librarian reads hybrid search.

clarify -> plan -> the Librarian takes every sub-question without dependency, at once -> the Seeker asks on or answers,
until it answers or `max_turns` calls are made, when one forced answer closes. All sub-questions of a call are siblings,
so those of all live questions reach the searches and the model as one batch. `higra-agent` has the same dialogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from gpu_rag.methods.higra.librarian import Find, consult
from gpu_rag.methods.higra.seeker import Answered, Asks, Dialogue, last_answer, next_action
from gpu_rag.program.embed import embed
from gpu_rag.program.questions import clarified, planned
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.program.search import search_hybrid
from gpu_rag.runtime.gather import gather
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COUNT
from gpu_rag.types import Draft, Question


@dataclass(frozen=True)
class Params(Declared):
    """The length of the dialogue, and what each sub-question reads."""

    n_passages: Annotated[int, COUNT, "read for each sub-question"] = 20
    max_turns: Annotated[int, COUNT, "calls to the Librarian before the forced answer"] = 8

    depth: ClassVar[int] = 100  # of each ranking that is fused
    constant: ClassVar[float] = 60.0  # of reciprocal rank fusion


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """Without a model there is no dialogue: hybrid search on the question, run.limit passages."""
    return await _find(run, question.text, params, run.limit)


async def program(question: Question, run: Run, params: Params) -> Draft:
    """The dialogue."""
    find = partial(_find, run, params=params, k=params.n_passages)
    return await converse(run, question.text, find, params.max_turns)


async def _find(run: Run, text: str, params: Params, k: int) -> Support:
    (vector,) = await embed([text])
    found = await search_hybrid((text, vector), k, depth=max(params.depth, k), constant=params.constant)
    return Support(run.evidence(found, "high in both the vector and the word ranking", "search_hybrid"))


async def converse(run: Run, question: str, find: Find, max_turns: int) -> Draft:
    """The answer of the dialogue; `unsupported` where even the forced answer finds nothing."""
    question = await clarified(run, question)
    dialogue = Dialogue(question, await planned(run, question))
    asks: Asks = tuple(step for step in dialogue.plan.steps if not step.depends_on)
    answer: Answered | None = None
    for turn in range(1, max_turns + 1):
        run.note("ask_librarian", len(asks), (f"turn {turn} of {max_turns}", *(ask.question for ask in asks)))
        dialogue.findings += await gather(*(consult(run, ask.question, find, ask.id) for ask in asks))
        action = await next_action(run, dialogue) if turn < max_turns else None
        if action is None or isinstance(action, Answered):
            answer = action
            break
        asks = action
    how = "answer"
    if answer is None:
        how, answer = "forced_answer", await last_answer(run, dialogue)
    text, cited = (None, ()) if answer is None else (answer.text, answer.cited)
    rests_on = tuple(f"rests on: {dialogue.findings[n - 1].question}" for n in cited)
    run.note(f"seeker/{how}", len(dialogue.findings), (f"answer: {'none' if text is None else text}", *rests_on))
    status = "unsupported" if text is None else "answered"
    return Draft(text, dialogue.evidence(cited), dialogue.paths(cited), status)
