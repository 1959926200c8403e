"""The dialogue of Seeker and Librarian that answers one question; shared by `dual-agent` and `higra-agent`.

clarify -> plan -> the Librarian takes every sub-question without dependency, at once -> the Seeker asks on or answers,
until it answers or `max_turns` calls are made, when one forced answer closes. All sub-questions of a call are siblings,
so those of all live questions reach the searches and the model as one batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.methods.higra.librarian import Find, Finding, consult
from gpu_rag.methods.higra.plan import clarified, planned
from gpu_rag.methods.higra.seeker import first_asks, last_answer, next_action
from gpu_rag.methods.higra.state import Answered, Ask, Dialogue
from gpu_rag.program.verbs import Verbs
from gpu_rag.runtime.gather import gather
from gpu_rag.types import Draft


async def converse(question: str, verbs: Verbs, find: Find, max_turns: int) -> Draft:
    """The answer of the dialogue; `unsupported` where even the forced answer finds nothing."""
    asked = await clarified(question, verbs)
    dialogue = Dialogue(asked, await planned(asked, verbs))
    asks = first_asks(dialogue.plan).asks
    answer: Answered | None = None
    for turn in range(1, max_turns + 1):
        verbs.ctx.note("ask_librarian", len(asks), (f"turn {turn} of {max_turns}", *(ask.question for ask in asks)))
        dialogue.add(asks, await _consult_all(asks, verbs, find))
        action = await next_action(dialogue, verbs) if turn < max_turns else None
        if action is None or isinstance(action, Answered):
            answer = action
            break
        asks = action.asks
    how = "answer"
    if answer is None:
        how, answer = "forced_answer", await last_answer(dialogue, verbs)
    return _drafted(how, answer, dialogue, verbs)


async def _consult_all(asks: Sequence[Ask], verbs: Verbs, find: Find) -> list[Finding]:
    found: list[Finding] = await gather(*(consult(ask.question, verbs, find) for ask in asks))
    return found


def _drafted(how: str, answer: Answered | None, dialogue: Dialogue, verbs: Verbs) -> Draft:
    cited = answer.cited if answer is not None else ()
    rests_on = tuple(f"rests on: {dialogue.findings[n - 1].question}" for n in cited)
    said = f"answer: {answer.text}" if answer is not None else "answer: none"
    verbs.ctx.note(f"seeker/{how}", len(dialogue.findings), (said, *rests_on))
    evidence, paths = dialogue.evidence(cited), dialogue.paths(cited)
    if answer is None:
        return Draft(None, evidence, paths, "unsupported")
    return Draft(answer.text, evidence, paths)
