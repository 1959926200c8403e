"""The Seeker and its dialogue with the Librarian.

First the question is clarified and planned. The Librarian takes all sub-questions without dependency at once. Then the
Seeker asks on or answers, until it answers or `max_turns` calls are made; then one forced answer closes the dialogue.
The sub-questions of a call run side by side, so the sub-questions of all live questions form one batch for the searches
and the model.
"""

from __future__ import annotations

from gpu_rag.methods.higra.asks import ANSWER, LAST, NEXT, as_action, unresolved
from gpu_rag.methods.higra.dialogue import Answered, Dialogue, SubQuestions
from gpu_rag.methods.higra.librarian import Find, consult
from gpu_rag.methods.higra.rules import next_by_rules
from gpu_rag.program.decide import decide
from gpu_rag.program.questions import clarified, planned
from gpu_rag.program.reader import is_answer
from gpu_rag.program.run import Run
from gpu_rag.runtime.gather import gather
from gpu_rag.text.rules.decomposition import PlanStep
from gpu_rag.types import Draft


async def converse(run: Run, question: str, find: Find, max_turns: int) -> Draft:
    """The answer of the dialogue; `unsupported` if even the forced answer finds nothing."""
    question = await clarified(run, question)
    dialogue = Dialogue(question, await planned(run, question))
    asks: SubQuestions = tuple(step for step in dialogue.plan.steps if not step.depends_on)
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


async def next_action(run: Run, dialogue: Dialogue) -> SubQuestions | Answered | None:
    """The next action; None if neither a question nor an answer is left, so the dialogue must close.

    A sub-question that equals one of the rules answers the same plan step.
    """
    asks, answer = next_by_rules(dialogue)
    rules = as_action(asks, answer)
    fields = {"dialogue": dialogue, "rules": rules}
    reply = await decide(run, NEXT, sent_back=(), **fields)
    if left_open := unresolved(reply, rules):
        run.note("seeker/sent_back", len(reply.subquestions), tuple(left_open))
        reply = await decide(run, NEXT, sent_back=tuple(left_open), **fields)
    if reply.action == ANSWER:
        return Answered(reply.answer, reply.evidence) if is_answer(reply.answer) else None
    steps = {step.question: step.id for step in asks}
    return tuple(PlanStep(steps.get(text, 0), text) for text in reply.subquestions) or None


async def last_answer(run: Run, dialogue: Dialogue) -> Answered | None:
    """The forced answer that closes a dialogue; None if the findings hold no answer."""
    reply = await decide(run, LAST, run=run, dialogue=dialogue)
    cited = tuple(number for number in dict.fromkeys(reply.evidence) if number <= len(dialogue.findings))
    return Answered(" ".join(reply.answer.split()), cited) if is_answer(reply.answer) else None
