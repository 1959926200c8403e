"""Rules for HiGraAgent without a capable model: the Seeker's next action, and short answers.

Every step of the plan is asked as soon as its references are known, and once more in other words if no answer came.
When all steps are done, the answer of the last one is the answer.
"""

from __future__ import annotations

import re
from itertools import product

from gpu_rag.methods.higra.dialogue import Answered, Dialogue, SubQuestions
from gpu_rag.text.keywords import keywords
from gpu_rag.text.rules.decomposition import PlanStep, fill
from gpu_rag.text.rules.decomposition.compare import decide

MAX_ASKS = 6  # sub-questions per call
MAX_VARIANTS = 3  # per sub-question, when a reference has several answers
_COPULA = re.compile(r"\b(?:is|was|are|were)\b", re.IGNORECASE)
_INTRODUCED = re.compile(r"^(?:the |my )?(?:short )?answer is:?\s+", re.IGNORECASE)
_AFTERTHOUGHT = re.compile(r",\s+(?=(?:the|a|an|who|which|where|whose|and)\b)|(?<=[a-z0-9]{3})\.\s+", re.IGNORECASE)


def next_by_rules(dialogue: Dialogue) -> tuple[SubQuestions, Answered | None]:
    """The sub-questions to ask next. If there are none, the answer, or None if nothing is left to do.

    A step can be asked when each step that it depends on has answers or was given up. "#k" is replaced by each answer
    of step k (at most MAX_VARIANTS sub-questions per step), or by its phrase if k was given up. A step without an
    answer is asked once more with the whole question appended, then given up.
    """
    asks: list[PlanStep] = []
    for step in dialogue.plan.steps:
        if all(_is_through(dialogue, k) for k in step.depends_on):
            asks.extend(_asks_for(dialogue, step))
    distinct = {ask.question: ask for ask in reversed(asks)}  # equal steps are asked once, by the first
    return tuple(ask for ask in asks if distinct[ask.question] is ask)[:MAX_ASKS], None if asks else _answer(dialogue)


def _is_through(dialogue: Dialogue, step: int) -> bool:
    """Whether a step has answers or was given up: after two tries, or after one if it is the only step."""
    tries = 1 if len(dialogue.plan.steps) == 1 else 2
    return bool(dialogue.answers_of(step)) or _n_tries(dialogue, step) >= tries


def _n_tries(dialogue: Dialogue, step: int) -> int:
    """The number of tries of a step. Its variants in one call are one try."""
    questions = [dialogue.findings[number - 1].question for number in dialogue.of_step(step)]
    return bool(questions) + any(question.endswith(_again(dialogue)) for question in questions)


def _again(dialogue: Dialogue) -> str:
    return f" (asked for: {dialogue.question})"


def _asks_for(dialogue: Dialogue, step: PlanStep) -> list[PlanStep]:
    if _is_through(dialogue, step.id):
        return []
    again = _again(dialogue) if _n_tries(dialogue, step.id) else ""
    values = [dialogue.answers_of(k) or (_words_of(dialogue, k),) for k in step.depends_on]
    filled = (fill(step.question, dict(zip(step.depends_on, chosen))) for chosen in product(*values))
    variants = list(dict.fromkeys(filled))[:MAX_VARIANTS]
    return [PlanStep(step.id, " ".join(f"{question}{again}".split())) for question in variants]


def _words_of(dialogue: Dialogue, number: int) -> str:
    """The phrase of a step that was given up; references in it are replaced in the same way."""
    step = next(step for step in dialogue.plan.steps if step.id == number)
    known = {k: next(iter(dialogue.answers_of(k)), "") or _words_of(dialogue, k) for k in step.depends_on}
    return fill(step.phrase or step.question.rstrip("?"), known)


def _answer(dialogue: Dialogue) -> Answered | None:
    compared = dialogue.plan.compared
    steps = (dialogue.plan.steps[-1].id,) if compared is None else compared.steps
    sides = [dialogue.answers_of(step) for step in steps]
    if not all(sides):
        return None
    text = "; ".join(sides[0]) if compared is None else decide(compared, [side[0] for side in sides])
    numbers = (number for step in steps for number in dialogue.of_step(step))
    cited = tuple(number for number in numbers if dialogue.findings[number - 1].answers)
    return None if text is None else Answered(text, cited)


def short_answer(answer: str, question: str) -> str:
    """The part of an answer that does not repeat its question: "The designer was Marta Orlo" becomes "Marta Orlo".

    Small models tend to answer in whole sentences, but the answer is inserted into the next question. Four parts are
    cut: "the answer is"; the text before the first "is", "was", "are", "were", if most of its content words are in the
    question; all after the first sentence; and a relative clause or apposition after a comma.
    """
    text = _INTRODUCED.sub("", answer, count=1) or answer
    copula = _COPULA.search(text)
    if copula is not None:
        known = {word for phrase in keywords(question) for word in phrase.split()}
        content = [word for phrase in keywords(text[: copula.start()]) for word in phrase.split()]
        if 2 * sum(word in known for word in content) > len(content):
            text = text[copula.end() :].strip() or text
    return _AFTERTHOUGHT.split(text, maxsplit=1)[0].strip(" .,") or answer
