"""Part a question into a statement and what is asked about a thing that the statement leaves open.

Two forms are read. A statement may stand before its question, which has a pronoun: "Ann wrote a book; who read it?"
is "Ann wrote which book?", then "Who read #0?", where "#0" is the answer to the first. Or the question word stands in
place, in a clause of that thing: "Ann wrote a book that won what?".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, takewhile

from gpu_rag.text.rules.decomposition import phrases
from gpu_rag.text.rules.decomposition.phrases import COPULAS, PEOPLE, QUESTION_WORDS, RELATIVES, Unit, units_of
from gpu_rag.text.rules.extraction.lexicon import PLACE_PREPOSITIONS, PREPOSITIONS
from gpu_rag.text.sentences import split_sentences, word_set

_OPEN = {"someone": "who", "somebody": "who", "something": "what"}
_PERSONAL = word_set("he him his she her")
_NEUTER = word_set("it its there")
_PLURAL = word_set("they them their")
_OWNERS = word_set("his her its their")
_BREAK = re.compile(r"(?:[;:\u2013\u2014]|,?\s(?:and|but)(?=\s))\s+(?:(?:and|but)\s+)?")
_TIMES = word_set("year month day date decade century")
_ASKING = QUESTION_WORDS | phrases.AUX
_OPENING, _CLOSED = _ASKING | {"if"}, _ASKING | phrases.FUNCTION_WORDS


def plain(text: str) -> str:
    """The question with what it leaves out: "whoever built it" is "the person who built it"; also chains of nouns."""
    is_usual = text.endswith("?") and text[-2:-1].isalnum()  # its last unit is the mark; it is read once
    units = units_of(text)[:-1] if is_usual else units_of(text.rstrip(" .!?"))
    chain = list(takewhile(lambda unit: unit.is_word and phrases.is_relational(unit.low), reversed(units)))
    if 1 < len(chain) < len(units) and not any(unit.low in _CLOSED for unit in units):
        word, name = "Who" if phrases.is_person(chain[0].low) else "What", text[: units[-len(chain) - 1].end]
        return f"{word} is {''.join(f'the {unit.low} of ' for unit in chain)}{name}?"
    for i, unit in reversed(list(enumerate(units[:-1]))):
        if unit.low not in ("whoever", "what", "where"):
            continue
        before, after = units[i - 1], units[i + 1]
        inner = any(other.low in QUESTION_WORDS for other in units[: max(i - 1, 0)])
        inner = inner and (after.is_name or after.low in ("the", "a", "an"))
        position = phrases.is_aux(before) or before.low in PREPOSITIONS
        new = "the person who" if unit.low == "whoever" else ""
        if inner and unit.low == "what" and position:
            new = "the thing that"
        elif inner and unit.low == "where":
            verb = before.low in phrases.BASE_VERBS or phrases.verb_at(units, i - 1)
            new = "the place where" if position else "in the place where" if verb else ""
        text = f"{text[: unit.start]}{new or text[unit.start : unit.end]}{text[unit.end :]}"
    return text


def parted(text: str) -> tuple[str, str] | None:
    """(the statement as a question, the question with "#0" for its answer); None if a question is not of this kind."""
    return _before(text) or _in_place(text)


def _before(text: str) -> tuple[str, str] | None:
    """Read a statement and the question after it."""
    sentences = [(end, start, True) for (_, end), (start, _) in pairwise(split_sentences(text))]
    breaks = [(match.start(), match.end(), False) for match in _BREAK.finditer(text)]
    for end, start, whole in (*reversed(sentences), *breaks):
        statement, question = text[:end].rstrip(" .!?"), text[start:]
        in_place = whole and any(unit.low in QUESTION_WORDS for unit in units_of(question))
        if not _asks(statement) and (in_place or _asks(question)):
            units = units_of(statement)
            for first, last in reversed(_open_phrases(units)):
                answer = _resolved(question, units[last - 1].low)
                if answer is not None:
                    return _opened(statement, units[first], units[last - 1].end), answer
    return None


def _in_place(text: str) -> tuple[str, str] | None:
    """Read a statement in which a phrase has a clause with the question word."""
    units = [*units_of(text), *[phrases.PAST] * 3]
    for first, last in () if _asks(text) else _open_phrases(units, definite=True):
        rest = _clause(text, units, first, last)
        begins = any(phrases.verb_at(units, i) for i in range(first))
        if rest is not None and begins and not any(unit.low in QUESTION_WORDS for unit in units[:first]):
            end = units[last - 1].end
            return _opened(text[:end], units[first], end), rest
    return None


def _clause(text: str, units: Sequence[Unit], first: int, last: int) -> str | None:
    """The clause after units[first:last] as a question about "#0"; None if it is none, or has no question word."""
    low, following, after = units[last].low, units[last + 1], text[units[last].end :]
    asked = [i for i in range(last, len(units)) if units[i].low in QUESTION_WORDS]
    later = any(i > last + (low != "where") for i in asked) or (low in RELATIVES and len(split_sentences(text)) > 1)
    if low in PREPOSITIONS and following.low in ("which", "whom") and later:
        return f"{low.capitalize()} #0{text[following.end :]}"
    if low in PREPOSITIONS and last + 1 in asked:
        placed = units[first - 1].low in PLACE_PREPOSITIONS and units[last + 2].low not in _TIMES
        near = units[first].low != "the" and (low == "of" or placed)
        return f"#0 has{after}" if low == "with" else f"#0 is {low}{after}" if near else None
    if low in RELATIVES and later:
        return f"In #0{after}" if low == "where" else f"#0's{after}" if low == "whose" else f"#0{after}"
    verb = last + low.endswith("ly")
    active = units[verb].low.endswith("ing") and not phrases.is_aux(units[verb])
    follows = PREPOSITIONS | {"where", "when", "how"}
    if asked and phrases.is_participle(units[verb].low) and (active or units[verb + 1].low in follows):
        return f"#0 {'is' if active else 'was'}{text[units[last - 1].end :]}"
    return None


def _asks(text: str) -> bool:
    """Whether a text opens like a question: by its word, a preposition and its word, or an auxiliary."""
    first, second = [*(unit.low for unit in units_of(text)[:2]), "", ""][:2]
    return first in _OPENING or (first in PREPOSITIONS and second in QUESTION_WORDS)


def _open_phrases(units: Sequence[Unit], *, definite: bool = False) -> list[tuple[int, int]]:
    """The phrases "a NOUN", "someone"; also "the NOUN", after another word, if `definite`."""
    spans: list[tuple[int, int]] = []
    for i, unit in enumerate(units):
        last = i + 1
        if unit.low in ("a", "an") or (definite and i and unit.low == "the"):
            for unit, after in pairwise((*units[last:], units[-1])):
                ends = last > i + 1 and (phrases.verb_at(units, last) or unit.low.endswith("ly"))
                if ends or not (unit.is_word or (unit.is_name and after.is_word)):
                    break
                last += 1
        if (last > i + 1 or unit.low in _OPEN) and not (i and units[i - 1].low in COPULAS):  # "Jaws is a film": itself
            spans.append((i, last))
    return spans


def _opened(statement: str, first: Unit, end: int) -> str:
    """The question that a statement answers: "a town" becomes "which town"."""
    new = _OPEN.get(first.low, "which")
    return f"{statement[: first.start]}{new if first.start else new.capitalize()}{statement[first.end :]}?"


def _resolved(question: str, noun: str) -> str | None:
    """The question with "#0" for the pronouns (or "that NOUN") that can stand for a noun; None if it has none."""
    units, new_text = units_of(question), question
    person = phrases.is_person(noun) or noun in ("someone", "somebody")
    pronouns = _PLURAL | (_PERSONAL if person else _NEUTER) | (frozenset() if noun in PEOPLE else _NEUTER)
    for before, unit, after in reversed(list(zip([units[0], *units], units, [*units[1:], units[-1]]))):
        end, new = unit.end, "#0"
        if unit.low in ("that", "this", "the") and after.low == noun:
            end = after.end
        elif unit.low not in pronouns or (unit.low == "there" and before.low in COPULAS):  # "how many are there"
            continue
        elif unit.low in _OWNERS and after.is_word:
            new = "#0's"
        elif unit.low == "there" and before.low not in PREPOSITIONS:
            new = "in #0"
        new_text = f"{new_text[: unit.start]}{new}{new_text[end:]}"
    return None if new_text == question else new_text[0].upper() + new_text[1:]
