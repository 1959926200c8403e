"""Split a question by rules: its linguistic features, and a plan of sub-questions.

The innermost phrase for something to be found ("the director of Bread for Salt") becomes a sub-question ("Who is the
director of Bread for Salt?"), and "#1" replaces it in the rest. This repeats outward until the question asks for one
thing. Comparisons ask about each side first, see `compare`. English only. A question without features, one
with several sentences, and one that contains "#1" itself, has a plan of one step: the question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpu_rag.text.rules.decomposition.compare import Compared, compared
from gpu_rag.text.rules.decomposition.phrases import (
    PLURALS,
    RELATIVE,
    RELATIVES,
    Described,
    innermost,
    is_person,
    units_of,
)
from gpu_rag.text.sentences import split_sentences

MAX_STEPS = 8
MAX_CHARS = 2000  # a longer question is not split
_REFERENCE = re.compile(r"#(\d{1,3})(?!\w)")
_TRIVIAL = re.compile(r"(?:who|what|where|when|which(?:\s+\w+)?)\s+(?:is|are|was|were)\s+#\d+\W*", re.IGNORECASE)


@dataclass(frozen=True)
class PlanStep:
    """One sub-question. id: from 1; depends_on: the steps whose answers replace "#id" in it.

    phrase: the words of the question that the answer replaces; "" if the step answers the question itself.
    """

    id: int
    question: str
    depends_on: tuple[int, ...] = ()
    phrase: str = ""


@dataclass(frozen=True)
class Plan:
    """The plan of a question: its subject, and its steps in an order in which they can be answered.

    compared: how the last steps' answers make the answer of a comparison; None if the rules read no comparison.
    """

    subject: str
    steps: tuple[PlanStep, ...]
    compared: Compared | None = None


def references(text: str) -> tuple[int, ...]:
    """The distinct numbers k of all "#k" in a text, ascending."""
    return tuple(sorted({int(k) for k in _REFERENCE.findall(text)}))


def fill(text: str, answers: dict[int, str]) -> str:
    """`text` with each "#k" replaced by answers[k], if there is one."""
    return _REFERENCE.sub(lambda match: answers.get(int(match[1]), match[0]), text)


def features(question: str) -> list[str]:
    """The linguistic features of a question, innermost first, each as "kind: words"; at most MAX_STEPS.

    >>> features("Who is the mother of the director of Jaws?")
    ['of-phrase: the director of Jaws']
    """
    if len(question) > MAX_CHARS or references(question):
        return []
    kinds: list[str] = []
    comparison = compared(question)
    if comparison is not None:
        kinds.append(f"comparison: {' | '.join(comparison.options)}")
    for part in comparison.questions if comparison is not None else (question,):
        steps, _ = _reduced(part, 1)
        kinds.extend(f"{kind}: {fill(step.phrase, _phrases(steps))}" for step, kind in steps)
    return kinds[:MAX_STEPS]


def plan_by_rules(question: str) -> Plan:
    """Plan a question by rules. The plan has one step, the question, if there is nothing to split.

    >>> [step.question for step in plan_by_rules("Where was the director of Jaws born?").steps]
    ['Who is the director of Jaws?', 'Where was #1 born?']
    """
    text = " ".join(question.split())
    if len(text) > MAX_CHARS or references(text) or len(split_sentences(text)) > 1:
        return Plan(_subject(text[:MAX_CHARS]), (PlanStep(1, text),))
    comparison = compared(text)
    steps: list[PlanStep] = []
    finals: list[PlanStep] = []
    for part in comparison.questions if comparison is not None else (text,):
        reduced, rest = _reduced(part, len(steps) + 1)
        steps.extend(step for step, _ in reduced)
        finals.append(PlanStep(0, rest, references(rest)))
    if len(steps) + len(finals) > MAX_STEPS:
        return Plan(_subject(text), (PlanStep(1, text),))
    for final in finals:
        steps.append(PlanStep(len(steps) + 1, final.question, final.depends_on))
    if comparison is not None:
        comparison = replace(comparison, steps=tuple(step.id for step in steps[-len(finals) :]))
    return Plan(_subject(text), tuple(steps), comparison)


def _reduced(text: str, first: int) -> tuple[list[tuple[PlanStep, str]], str]:
    """Steps (with their kinds) for the phrases of a question, numbered from `first`, and the remaining question."""
    steps: list[tuple[PlanStep, str]] = []
    while len(steps) < MAX_STEPS:
        described = innermost(text)
        if described is None:
            break
        phrase, number = text[described.start : described.end], first + len(steps)
        rest = f"{text[: described.start]}#{number}{text[described.end :]}"
        if _TRIVIAL.fullmatch(rest):
            break  # the phrase is the whole question
        steps.append((PlanStep(number, _question_for(phrase, described), references(phrase), phrase), described.kind))
        text = rest
    return steps, text


def _question_for(phrase: str, described: Described) -> str:
    relative = next((word for word in phrase.split() if word in RELATIVES), "")
    person = is_person(described.head) or (described.kind == RELATIVE and relative in ("who", "whom"))
    word = "Who" if person else "What"
    return f"{word} {'are' if described.head in PLURALS else 'is'} {phrase}?"


def _phrases(steps: list[tuple[PlanStep, str]]) -> dict[int, str]:
    """The phrase of each step, without references."""
    whole: dict[int, str] = {}
    for step, _ in steps:
        whole[step.id] = fill(step.phrase, whole)
    return whole


def _subject(text: str) -> str:
    """The first name in a question; "" if there is none."""
    units = units_of(text)
    return next((text[u.start : u.end] for u in units if u.is_name), "")
