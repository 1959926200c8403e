"""Rewrites a question that follows earlier turns so that it stands alone. Searches and readers see only the new
question.

A model that decides rewrites it (prompt `condense`). Otherwise a rule applies: if the question begins with a pronoun
for something that it does not name, or has at most three words and no name, the names of the last turns are appended in
brackets. The rule does not know which name is meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_rag.models.ask import Ask
from gpu_rag.program.decide import decide
from gpu_rag.program.questions import MAX_TOKENS_QUESTION, Rewritten
from gpu_rag.program.run import Run
from gpu_rag.text.keywords import written_names

Turn = tuple[str, str]  # speaker (user or assistant), and text

TURNS, CHARS = 6, 400  # the last turns that are used, and the characters of each
MAX_NAMES, FEW_WORDS = 3, 3
_PRONOUN = re.compile(r"\b(?:he|him|his|she|hers?|it|its|they|them|theirs?)\b", re.IGNORECASE)
_SPEAKERS = {"user": "Question", "assistant": "Answer"}


async def condensed(run: Run, question: str, history: Sequence[Turn]) -> str:
    """The question in a form that needs no history. history: oldest first."""
    turns = [(who, " ".join(text.split())[:CHARS]) for who, text in history[-TURNS:] if text.strip()]
    if not turns:
        return question
    reply = await decide(run, CONDENSE, question=question, turns=turns)
    return " ".join(reply.question.split())


def with_names(question: str, turns: Sequence[Turn]) -> str:
    """The question, followed by the names of the last turns if it seems to refer to them.

    >>> with_names("Where was he born?", [("user", "Who founded the city of Loss?"), ("assistant", "Hugo Brandt")])
    'Where was he born? (Hugo Brandt; Loss)'
    >>> with_names("Where did Marta Orlo spend her youth?", [("assistant", "Hugo Brandt")])
    'Where did Marta Orlo spend her youth?'
    """
    own, pronoun = written_names(question), _PRONOUN.search(question)
    before = question if pronoun is None else question[: pronoun.start()]
    if any(name in before for name in own) or (pronoun is None and (own or len(question.split()) > FEW_WORDS)):
        return question
    names: list[str] = []
    for who, text in reversed(turns):
        known = [name.casefold() for name in (*own, *names)]
        names += [name for name in _named(who, text) if name.casefold() not in known]
        if names and who == "user":
            break
    return f"{question} ({'; '.join(names[:MAX_NAMES])})" if names else question


def _slots(question: str, turns: Sequence[Turn]) -> dict[str, str]:
    history = "\n".join(f"{_SPEAKERS.get(who, who)}: {text}" for who, text in turns)
    return {"history": history, "question": question}


CONDENSE = Ask(
    "condense",
    Rewritten,
    rule=lambda question, turns: Rewritten(with_names(question, turns)),
    prompt="gpu_rag.program.prompts:condense",
    show=_slots,
    words=lambda reply: (" ".join(reply.question.split()),),
    max_tokens=MAX_TOKENS_QUESTION,
)


def _named(who: str, text: str) -> list[str]:
    """The names in a turn. A short answer with a capital letter counts as a name."""
    is_name = who == "assistant" and len(text.split()) <= FEW_WORDS and any(map(str.isupper, text))
    return written_names(text) or ([text.strip(" .")] if is_name else [])
