"""The Seeker: from the question, the plan and what the Librarian said, the next action.

By the model where it is capable and decides; else by rules: ask every step whose references are known, once more in
other words where no answer came, and answer when all steps are through.
"""

from __future__ import annotations

from itertools import product

from gpu_rag.methods.higra.plan import MAX_TOKENS_QUESTION, model_decides
from gpu_rag.methods.higra.state import Answered, Ask, AskLibrarian, Dialogue
from gpu_rag.program.reader import Support, is_answer, read
from gpu_rag.program.verbs import Verbs
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
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
_EVIDENCE = {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 20}
ACTION_SCHEMA = canonical_schema(
    {
        "type": "object",
        "properties": {
            "action": {"enum": ["ask_librarian", "answer"]},
            "subquestions": {
                "type": "array",
                "items": {"type": "string", "minLength": 3, "maxLength": 500},
                "maxItems": MAX_ASKS,
            },
            "answer": {"type": "string", "maxLength": 500},
            "evidence": _EVIDENCE,
        },
        "required": ["action", "subquestions", "answer", "evidence"],
        "additionalProperties": False,
    }
)
FINAL_SCHEMA = canonical_schema(
    {
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 500}, "evidence": _EVIDENCE},
        "required": ["answer", "evidence"],
        "additionalProperties": False,
    }
)


def first_asks(plan: Plan) -> AskLibrarian:
    """Every step that depends on no other: the first call, in parallel."""
    return AskLibrarian(tuple(Ask(step.question, step.id) for step in plan.steps if not step.depends_on))


async def next_action(dialogue: Dialogue, verbs: Verbs) -> AskLibrarian | Answered | None:
    """What to do next; None where neither a question nor an answer is left, so that the dialogue must close."""
    if model_decides(verbs):
        action = await _by_model(dialogue, verbs)
        if not isinstance(action, Malformed):
            return action
        verbs.ctx.note("seeker/rules", 0, (f"the model's action could not be used: {action.reason}",))
    return by_rules(dialogue)


async def last_answer(dialogue: Dialogue, verbs: Verbs) -> Answered | None:
    """The one forced answer that closes a dialogue; None where the findings do not tell."""
    if not model_decides(verbs):
        draft = await read(verbs, dialogue.question, Support(dialogue.readable()))
        return None if draft.text is None else Answered(draft.text, ())
    prompt = Prompt.read("gpu_rag.methods.higra.prompts", "seeker_final")
    text, _, _ = verbs.pack(
        prompt, {"question": dialogue.question}, "history", dialogue.history_lines(), max_tokens=MAX_TOKENS_QUESTION
    )
    reply = await verbs.ask_text(prompt, text, schema=FINAL_SCHEMA, max_tokens=MAX_TOKENS_QUESTION, name="seeker/final")
    if not isinstance(reply, dict) or not is_answer(reply["answer"]):
        return None
    return Answered(" ".join(reply["answer"].split()), _known(reply["evidence"], dialogue))


# --- by the model ----------------------------------------------------------------------------------


async def _by_model(dialogue: Dialogue, verbs: Verbs) -> AskLibrarian | Answered | Malformed | None:
    action = await _asked(dialogue, verbs, "")
    if isinstance(action, AskLibrarian):
        open_ = [ask.question for ask in action.asks if references(ask.question)]
        if open_:
            verbs.ctx.note("seeker/sent_back", len(action.asks), tuple(open_))
            action = await _asked(dialogue, verbs, UNRESOLVED.format(questions="; ".join(open_)))
    if isinstance(action, AskLibrarian):  # what is still open is left out; it was sent back once
        asks = tuple(ask for ask in action.asks if not references(ask.question))
        asked = {ask.question.casefold() for ask in dialogue.asks}  # to these the librarian would say the same again
        new = tuple(ask for ask in asks if ask.question.casefold() not in asked)
        if asks and not new:
            return Malformed("it asks only what was asked before", "; ".join(ask.question for ask in asks))
        return AskLibrarian(new) if new else None
    return action


async def _asked(dialogue: Dialogue, verbs: Verbs, notice: str) -> AskLibrarian | Answered | Malformed:
    prompt = Prompt.read("gpu_rag.methods.higra.prompts", "seeker")
    fields = {"question": dialogue.question, "plan": dialogue.plan_lines(), "notice": notice}
    text, _, _ = verbs.pack(prompt, fields, "history", dialogue.history_lines(), max_tokens=MAX_TOKENS)
    reply = await verbs.ask_text(prompt, text, schema=ACTION_SCHEMA, max_tokens=MAX_TOKENS, name="seeker/action")
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
    return AskLibrarian(tuple(Ask(question) for question in questions))


def _known(numbers: list[int], dialogue: Dialogue) -> tuple[int, ...]:
    return tuple(n for n in dict.fromkeys(numbers) if n <= len(dialogue.findings))


# --- by rules --------------------------------------------------------------------------------------


def by_rules(dialogue: Dialogue) -> AskLibrarian | Answered | None:
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
        return AskLibrarian(tuple(asks[:MAX_ASKS]))
    return _answer(dialogue)


def _is_through(dialogue: Dialogue, step: int) -> bool:
    """Whether a step has answers or was given up: after two tries, or one where the step is the whole question."""
    tries = 1 if len(dialogue.plan.steps) == 1 else 2
    return bool(dialogue.answers_of(step)) or _n_tries(dialogue, step) >= tries


def _n_tries(dialogue: Dialogue, step: int) -> int:
    """Tries of a step; its variants of one call are one try."""
    asked = [dialogue.asks[number - 1].question for number in dialogue.of_step(step)]
    return bool(asked) + any(question.endswith(_again(dialogue)) for question in asked)


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
    """What stands for a step that was given up: its phrase, with the references in it replaced likewise."""
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
