"""The Seeker: the next action, from the question, the plan and the Librarian's findings.

By the model where it is capable and decides; else by rules: ask every step whose references are known, once more in
other words where no answer came, and answer when all steps are through.
"""

from __future__ import annotations

from itertools import product

from gpu_rag.methods.higra.dialogue import Answered, Ask, Asks, Dialogue
from gpu_rag.program.ask import ask
from gpu_rag.program.questions import MAX_TOKENS_QUESTION
from gpu_rag.program.reader import Support, is_answer, read
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.decomposition import Plan, PlanStep, fill, references
from gpu_rag.text.rules.decomposition.compare import decide
from gpu_rag.types import Malformed

MAX_ASKS = 6  # sub-questions of one call
MAX_VARIANTS = 3  # of one sub-question, when a reference has several answers
MAX_TOKENS = 384
UNRESOLVED = (
    "\nYour last action was sent back: {questions}. The librarian does not know what #1 is. "
    "Replace every reference by the answer found.\n"
)
_ANSWER = {"type": "string", "maxLength": 500}
_EVIDENCE = {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 20}
_QUESTION = {"type": "string", "minLength": 3, "maxLength": 500}
ACTION_SCHEMA = canonical_schema(
    object_of(
        {
            "action": {"enum": ["ask_librarian", "answer"]},
            "subquestions": {"type": "array", "items": _QUESTION, "maxItems": MAX_ASKS},
            "answer": _ANSWER,
            "evidence": _EVIDENCE,
        }
    )
)
FINAL_SCHEMA = canonical_schema(object_of({"answer": _ANSWER, "evidence": _EVIDENCE}))


def first_asks(plan: Plan) -> Asks:
    """Every step that depends on no other: the first call, in parallel."""
    return tuple(Ask(step.question, step.id) for step in plan.steps if not step.depends_on)


async def next_action(run: Run, dialogue: Dialogue) -> Asks | Answered | None:
    """The next action; None where neither a question nor an answer is left, so that the dialogue must close."""
    if run.models.model_decides:
        action = await _by_model(run, dialogue)
        if not isinstance(action, Malformed):
            return action
        run.note("seeker/rules", 0, (f"the model's action could not be used: {action.reason}",))
    return by_rules(dialogue)


async def last_answer(run: Run, dialogue: Dialogue) -> Answered | None:
    """The one forced answer that closes a dialogue; None where the findings do not tell."""
    if not run.models.model_decides:
        draft = await read(run, dialogue.question, Support(dialogue.readable()))
        return None if draft.text is None else Answered(draft.text, ())
    reply = await ask(
        run,
        Prompt.read("gpu_rag.methods.higra.prompts", "seeker_final"),
        {"question": dialogue.question},
        schema=FINAL_SCHEMA,
        max_tokens=MAX_TOKENS_QUESTION,
        evidence=dialogue.history_lines(),
        slot="history",
        name="seeker/final",
    )
    if not isinstance(reply, dict) or not is_answer(reply["answer"]):
        return None
    return Answered(" ".join(reply["answer"].split()), _known(reply["evidence"], dialogue))


# --- by the model ----------------------------------------------------------------------------------


async def _by_model(run: Run, dialogue: Dialogue) -> Asks | Answered | Malformed | None:
    action = await _action(run, dialogue, "")
    if isinstance(action, tuple):
        open_ = [one.question for one in action if references(one.question)]
        if open_:
            run.note("seeker/sent_back", len(action), tuple(open_))
            action = await _action(run, dialogue, UNRESOLVED.format(questions="; ".join(open_)))
    if isinstance(action, tuple):  # what is still open is left out; it was sent back once
        asks = tuple(one for one in action if not references(one.question))
        before = {one.question.casefold() for one in dialogue.asks}  # to these the librarian would say the same again
        new = tuple(one for one in asks if one.question.casefold() not in before)
        if asks and not new:
            return Malformed("it asks only what was asked before", "; ".join(one.question for one in asks))
        return new or None
    return action


async def _action(run: Run, dialogue: Dialogue, notice: str) -> Asks | Answered | Malformed:
    reply = await ask(
        run,
        Prompt.read("gpu_rag.methods.higra.prompts", "seeker"),
        {"question": dialogue.question, "plan": dialogue.plan_lines(), "notice": notice},
        schema=ACTION_SCHEMA,
        max_tokens=MAX_TOKENS,
        evidence=dialogue.history_lines(),
        slot="history",
        name="seeker/action",
    )
    if isinstance(reply, Malformed):
        return reply
    assert isinstance(reply, dict)
    if reply["action"] == "answer":
        if not is_answer(reply["answer"]):
            return Malformed("the answer is empty", str(reply))
        return Answered(" ".join(reply["answer"].split()), _known(reply["evidence"], dialogue))
    questions = dict.fromkeys(" ".join(question.split()) for question in reply["subquestions"])
    if not questions:
        return Malformed("no sub-question was given", str(reply))
    return tuple(Ask(question) for question in questions)


def _known(numbers: list[int], dialogue: Dialogue) -> tuple[int, ...]:
    return tuple(n for n in dict.fromkeys(numbers) if n <= len(dialogue.findings))


# --- by rules --------------------------------------------------------------------------------------


def by_rules(dialogue: Dialogue) -> Asks | Answered | None:
    """The next action without a model.

    A step can be asked when each step that it depends on has answers or was given up. "#k" is replaced by each answer
    of step k (at most MAX_VARIANTS sub-questions a step), or by the words that it stands for where k was given up. A
    step without an answer is asked once more with the whole question behind it, then given up.
    """
    asks: list[Ask] = []
    for step in dialogue.plan.steps:
        if len(asks) < MAX_ASKS and all(_is_through(dialogue, k) for k in step.depends_on):
            asks.extend(_asks_for(dialogue, step))
    if asks:
        return tuple(asks[:MAX_ASKS])
    return _answer(dialogue)


def _is_through(dialogue: Dialogue, step: int) -> bool:
    """Whether a step has answers or was given up: after two tries, or one where the step is the whole question."""
    tries = 1 if len(dialogue.plan.steps) == 1 else 2
    return bool(dialogue.answers_of(step)) or _n_tries(dialogue, step) >= tries


def _n_tries(dialogue: Dialogue, step: int) -> int:
    """Tries of a step; its variants of one call are one try."""
    questions = [dialogue.asks[number - 1].question for number in dialogue.of_step(step)]
    return bool(questions) + any(question.endswith(_again(dialogue)) for question in questions)


def _again(dialogue: Dialogue) -> str:
    return f" (asked for: {dialogue.question})"


def _asks_for(dialogue: Dialogue, step: PlanStep) -> list[Ask]:
    if _is_through(dialogue, step.id):
        return []
    again = _again(dialogue) if _n_tries(dialogue, step.id) else ""
    values = [dialogue.answers_of(k) or (_words_of(dialogue, k),) for k in step.depends_on]
    filled = (fill(step.question, dict(zip(step.depends_on, chosen))) for chosen in product(*values))
    return [Ask(question + again, step.id) for question in list(dict.fromkeys(filled))[:MAX_VARIANTS]]


def _words_of(dialogue: Dialogue, number: int) -> str:
    """The words for a step that was given up: its phrase, with the references in it replaced likewise."""
    step = next(step for step in dialogue.plan.steps if step.id == number)
    known = {k: next(iter(dialogue.answers_of(k)), "") or _words_of(dialogue, k) for k in step.depends_on}
    return fill(step.phrase or step.question.rstrip("?"), known)


def _answer(dialogue: Dialogue) -> Answered | None:
    plan = dialogue.plan
    if plan.compared is not None:
        sides = [dialogue.answers_of(step) for step in plan.compared.steps]
        text = decide(plan.compared, [side[0] for side in sides]) if all(sides) else None
        numbers = [number for step in plan.compared.steps for number in dialogue.of_step(step)]
    else:
        text = "; ".join(dialogue.answers_of(plan.steps[-1].id)) or None
        numbers = dialogue.of_step(plan.steps[-1].id)
    answered = tuple(number for number in numbers if dialogue.findings[number - 1].answers)
    return None if text is None else Answered(text, answered)
