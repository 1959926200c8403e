"""Split a question by rules: its linguistic features, and a plan of sub-questions.

A statement before a question is asked first, see `clauses`. Then the innermost phrase for something to be found ("the
director of Bread for Salt") becomes a sub-question ("Who is the director of Bread for Salt?"), and "#1" replaces it in
the rest. This repeats outward until the question asks for one thing. Comparisons ask about each side first, see
`compare`. English only. A question without features, and one that contains "#1" itself, has a plan of one step: the
question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpu_rag.text.rules.decomposition.clauses import parted, plain
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
# A question that asks for the name of a thing alone: "What was the name of #2?", "Tell me #1."
_TRIVIAL = re.compile(
    r"(?:(?:who|what|where|when|which(?:\s+\w+)?)(?:['\u2019]s|\s+(?:is|are|was|were))|name|give|find|(?:tell|give) me"
    r"|i(?:['\u2019]m| am) looking for)?\s*(?:the name of\s+)?#\d+(?: called| named)?\W*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class PlanStep:
    """One sub-question. id: from 1; depends_on: the steps whose answers replace "#id" in it.

    phrase: the words of the question that the answer replaces, and their kind; "" if the step answers the question.
    """

    id: int
    question: str
    depends_on: tuple[int, ...] = ()
    phrase: str = ""
    kind: str = ""


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
    plan, whole = plan_by_rules(question), dict[int, str]()
    kinds = [] if plan.compared is None else [f"comparison: {' | '.join(plan.compared.options)}"]
    for step in plan.steps:
        whole[step.id] = fill(step.phrase, whole)
        kinds.extend([f"{step.kind}: {whole[step.id]}"] if step.kind else [])
    return kinds[:MAX_STEPS]


def plan_by_rules(question: str) -> Plan:
    """Plan a question by rules. The plan has one step, the question, if there is nothing to split.

    >>> [step.question for step in plan_by_rules("Where was the director of Jaws born?").steps]
    ['Who is the director of Jaws?', 'Where was #1 born?']
    """
    text = " ".join(question.split())
    whole = Plan(_subject(text[:MAX_CHARS]), (PlanStep(1, text),))
    if len(text) > MAX_CHARS or references(text):
        return whole
    comparison = compared(text)
    steps: list[PlanStep] = []
    finals: list[str] = []
    for part in comparison.questions if comparison is not None else (text,):
        reduced, rest = _steps(plain(part), len(steps) + 1)
        steps.extend(reduced)
        finals.append(rest)
    if not 1 < len(steps) + len(finals) <= MAX_STEPS:
        return whole
    steps.extend(PlanStep(i, rest, references(rest)) for i, rest in enumerate(finals, len(steps) + 1))
    if comparison is not None:
        comparison = replace(comparison, steps=tuple(step.id for step in steps[-len(finals) :]))
    return Plan(whole.subject, tuple(steps), comparison)


def _steps(text: str, first: int) -> tuple[list[PlanStep], str]:
    """Steps for a question's statement and phrases, numbered from `first`, and what remains."""
    clauses = parted(text)
    if clauses is None:
        return ([], text) if len(split_sentences(text)) > 1 else _reduced(text, first)
    steps, rest = _steps(clauses[0], first)
    if _TRIVIAL.fullmatch(clauses[1]):
        return steps, rest
    number = first + len(steps)
    steps.append(PlanStep(number, rest, references(rest), rest.rstrip("?"), "statement"))
    more, rest = _steps(clauses[1].replace("#0", f"#{number}"), number + 1)
    return steps + more, rest


def _reduced(text: str, first: int) -> tuple[list[PlanStep], str]:
    """Steps for the phrases of a question, numbered from `first`, and the remaining question."""
    steps: list[PlanStep] = []
    while len(steps) < MAX_STEPS and (described := innermost(text)) is not None:
        (start, stop), number = described.within, first + len(steps)
        phrase = text[described.start : start] + text[stop : described.end]
        rest = f"{text[: described.start]}#{number}{text[start:stop]}{text[described.end :]}"
        if _TRIVIAL.fullmatch(rest):
            break  # the phrase is the whole question
        question = _question_for(phrase, described)
        steps.append(PlanStep(number, question, references(phrase), phrase, described.kind))
        text = rest
    return steps, text


def _question_for(phrase: str, described: Described) -> str:
    phrase = f"the {phrase[4:]}" if phrase.startswith("The ") else phrase
    relative = next((word for word in phrase.split() if word in RELATIVES), "")
    person = is_person(described.head) or (described.kind == RELATIVE and relative in ("who", "whom"))
    word = "Who" if person else "What"
    return f"{word} {'are' if described.head in PLURALS else 'is'} {phrase}?"


def _subject(text: str) -> str:
    """The first name in a question; "" if there is none."""
    units = units_of(text)
    return next((text[u.start : u.end] for u in units if u.is_name), "")
