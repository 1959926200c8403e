"""Preparation of a question: clarification, and decomposition into a plan of sub-questions.

The model sees the linguistic features of the question. The rules are in `text.rules.decomposition`.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from gpu_rag.models.ask import Ask, Refused
from gpu_rag.program.decide import decide
from gpu_rag.program.oracle import Known
from gpu_rag.program.run import Run
from gpu_rag.text.rules.decomposition import MAX_STEPS, Plan, PlanStep, features, plan_by_rules, references
from gpu_rag.text.rules.decomposition.phrases import AUX, QUESTION_WORDS
from gpu_rag.text.rules.extraction.lexicon import PREPOSITIONS

_LETTERS = re.compile(r"[^\W\d_]+")  # "what's" gives "what" and "s"
MAX_TOKENS_QUESTION, MAX_TOKENS_PLAN = 128, 512


class Rewritten(Struct, frozen=True):
    """A question in other words."""

    question: Annotated[str, Meta(min_length=3, max_length=1000)]


class PlannedStep(Struct, frozen=True):
    """A sub-question, and the ids of the steps whose answers it refers to as "#id"."""

    id: Annotated[int, Meta(ge=1, le=99)]
    subquestion: Annotated[str, Meta(min_length=3, max_length=500)]
    depends_on: Annotated[tuple[int, ...], Meta(max_length=MAX_STEPS)]


class Planned(Struct, frozen=True):
    """A plan as a model writes it."""

    subject: Annotated[str, Meta(max_length=200)]
    plan: Annotated[tuple[PlannedStep, ...], Meta(min_length=1, max_length=MAX_STEPS)]


def is_question(text: str) -> bool:
    """Whether a text begins with a question word, possibly after a preposition, or with an auxiliary."""
    words = _LETTERS.findall(text.casefold())[:2]
    if not words:
        return False
    return words[0] in QUESTION_WORDS | AUX or (words[0] in PREPOSITIONS and words[-1] in QUESTION_WORDS)


CLARIFY = Ask(
    "clarify",
    Rewritten,
    rule=lambda question: Rewritten(question),
    prompt="gpu_rag.program.prompts:clarify",
    words=lambda reply: (" ".join(reply.question.split()),),
    max_tokens=MAX_TOKENS_QUESTION,
)


async def clarified(run: Run, question: str) -> str:
    """The question, rewritten if it does not begin like one."""
    if is_question(question):
        return question
    return " ".join((await decide(run, CLARIFY, question=question)).question.split())


async def planned(run: Run, question: str) -> Plan:
    """The plan of a question."""
    rules = plan_by_rules(question)
    return _plan(await decide(run, PLAN, question=question, rules=rules), rules)


def _by_rules(rules: Plan) -> Planned:
    return Planned(rules.subject, tuple(PlannedStep(step.id, step.question, step.depends_on) for step in rules.steps))


def _checked(reply: Planned) -> Planned | Refused:
    """The reply with white space folded and references added to dependencies; refused unless ids differ and steps
    depend on earlier steps."""
    steps: list[PlannedStep] = []
    for step in reply.plan:
        text = " ".join(step.subquestion.split())
        needs = tuple(sorted({*step.depends_on, *references(text)}))
        known = {earlier.id for earlier in steps}
        if step.id in known or not known.issuperset(needs):
            return Refused("two steps have one id, or a step depends on no earlier step")
        steps.append(PlannedStep(step.id, text, needs))
    return Planned(" ".join(reply.subject.split()), tuple(steps))


def _plan(reply: Planned, rules: Plan) -> Plan:
    """The plan of a reply. If its steps equal the rules' steps, the rules' phrases and comparison are kept."""
    if reply.plan == _by_rules(rules).plan:
        return Plan(reply.subject, rules.steps, rules.compared)
    return Plan(reply.subject, tuple(PlanStep(step.id, step.subquestion, step.depends_on) for step in reply.plan))


def _of_gold(gold: Known) -> Planned | None:
    """The gold decomposition of a question as a plan; None if it has no usable one."""
    given = gold.gold.meta.get("decomposition")
    steps = given if isinstance(given, list) else []
    texts = [step.get("question") if isinstance(step, dict) else None for step in steps]
    if not 0 < len(texts) <= MAX_STEPS or not all(isinstance(text, str) and 3 <= len(text) <= 500 for text in texts):
        return None
    plan = _checked(Planned("", tuple(PlannedStep(i, str(text), ()) for i, text in enumerate(texts, 1))))
    return None if isinstance(plan, Refused) else plan


def _in_words(reply: Planned) -> tuple[str, ...]:
    steps = (f"#{step.id} {step.subquestion}{_after(step)}" for step in reply.plan)
    return (f"subject: {reply.subject or 'not known'}", *steps)


def _after(step: PlannedStep) -> str:
    return f"   (after {', '.join(f'#{k}' for k in step.depends_on)})" if step.depends_on else ""


PLAN = Ask(
    "plan",
    Planned,
    rule=_by_rules,
    prompt="gpu_rag.program.prompts:decompose",
    show=lambda question: {"question": question, "features": "; ".join(features(question)) or "none"},
    check=_checked,
    words=_in_words,
    gold=_of_gold,
    max_tokens=MAX_TOKENS_PLAN,
)
