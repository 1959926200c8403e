"""A question as the units that its decomposition looks at: names as one unit, "#1", words, numbers and marks."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.text.rules.decomposition.words import AUX, BASE_VERBS, FUNCTION_WORDS, LATE_VERBS, RELATIVES
from gpu_rag.text.rules.extraction.entities import find_mentions_in
from gpu_rag.text.rules.extraction.mentions import passage_words
from gpu_rag.text.rules.extraction.tokens import MARK, NAME, NUMBER, Token, tokenise
from gpu_rag.text.rules.extraction.verbs import is_verb

WORD_UNIT, NAME_UNIT, MARK_UNIT = range(3)
_MAX_PARENTHESIS = 8


@dataclass(frozen=True)
class Unit:
    """text[start:end] of the question. kind: a name (also "#1", a date, a quoted title), a mark, or a plain word.

    possessive: an 's follows. low: lower case.
    """

    low: str
    start: int
    end: int
    kind: int
    possessive: bool = False

    @property
    def is_name(self) -> bool:
        """A name, a date, or "#1"."""
        return self.kind == NAME_UNIT

    @property
    def is_word(self) -> bool:
        """A plain word that is no closed-class word."""
        return self.kind == WORD_UNIT and self.low not in FUNCTION_WORDS and self.low not in RELATIVES


def units_of(text: str) -> list[Unit]:
    """The units of a question, in order. Linear."""
    tokens = tokenise(text, 0, len(text))
    found = {m.first: m.last for m in find_mentions_in(text, tokens, passage_words("", [], [tokens]))}
    units: list[Unit] = []
    i = 0
    while i < len(tokens):
        last = _name_end(tokens, i, found)
        first, final = tokens[i], tokens[last - 1]
        kind = NAME_UNIT if last > i + 1 or i in found or first.kind == NAME else WORD_UNIT
        if kind == WORD_UNIT and first.kind == MARK:
            kind = MARK_UNIT
        if i == 0 and last == 1 and i not in found:  # a sentence opens with a capital
            kind = WORD_UNIT
        units.append(Unit(text[first.start : final.end].casefold(), first.start, final.end, kind, final.possessive))
        i = last
    return units


def _name_end(tokens: list[Token], i: int, found: dict[int, int]) -> int:
    if tokens[i].text == "#" and i + 1 < len(tokens) and tokens[i + 1].kind == NUMBER:
        return i + 2
    last = found.get(i, i + 1)
    if i > 0 and tokens[i].kind == NAME and tokens[i].low in FUNCTION_WORDS:  # a title: "On the Origin of Species"
        after = last + (last < len(tokens) and tokens[last].low in ("the", "a"))
        last = found.get(after, last)
    if last + 1 < len(tokens) and tokens[last].text in ("'", "\u2019") and tokens[last + 1].kind == NAME:
        last = found.get(last + 1, last + 2) if tokens[last].start == tokens[last - 1].end else last  # "de' Medici"
    return _behind_parenthesis(tokens, last) if i in found or tokens[i].kind == NAME else last


def _behind_parenthesis(tokens: list[Token], last: int) -> int:
    """Behind a short parenthesis that follows a name: "Jaws (1975 film)" is one name."""
    if last < len(tokens) and tokens[last].text == "(":
        for i in range(last + 1, min(len(tokens), last + _MAX_PARENTHESIS)):
            if tokens[i].text == ")":
                return i + 1
    return last


def is_aux(unit: Unit) -> bool:
    """Whether a unit is an auxiliary or a form of "to be"."""
    return unit.kind == WORD_UNIT and unit.low in AUX


def verb_at(units: list[Unit], i: int) -> bool:
    """Whether unit i is likely a verb, by lists of forms, the endings -ed and -ing, and the word before it."""
    unit = units[i]
    if unit.kind != WORD_UNIT:
        return False
    before = units[i - 1] if i else None
    plain = before is not None and before.kind == WORD_UNIT and before.low not in RELATIVES
    word_before = before.low if before is not None and plain else "x"
    return unit.low in LATE_VERBS or (unit.low not in FUNCTION_WORDS and is_verb(unit.low, word_before))


def base_verb_at(units: list[Unit], i: int) -> bool:
    """Whether unit i can be the verb that "did" waits for: a base form, not behind a determiner or preposition."""
    unit = units[i]
    if unit.kind != WORD_UNIT or unit.low not in BASE_VERBS or i == 0:
        return False
    before = units[i - 1]
    return before.is_name or before.kind == MARK_UNIT or before.low not in FUNCTION_WORDS
