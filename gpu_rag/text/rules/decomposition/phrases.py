"""Find the innermost noun phrase of a question whose referent must be found first, and where it ends.

It has one of four forms (N is a noun): a full relative clause ("the town that built the Halden Bridge", "the planet
after which uranium is named", "the country Marta Orlo is from"), a reduced one ("the ship built in Dundee"), an
of-phrase with a relational noun ("the director of Bread for Salt"), or a possessive ("Grey Port's director"). The
innermost phrase is the one that begins last. There is no parser: the rules use closed word classes, verb forms
(`phrases.toml`), and the predicate that the question's auxiliary still needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpu_rag.text.rules.extraction.entities import find_mentions_in
from gpu_rag.text.rules.extraction.lexicon import ADVERBS, PREPOSITIONS, is_verb
from gpu_rag.text.rules.extraction.tokens import MARK, NAME, NUMBER, Token, passage_words, tokenise
from gpu_rag.text.sentences import word_lists, word_set

_LISTS = word_lists(Path(__file__).with_suffix(".toml"))

QUESTION_WORDS = _LISTS["question_words"]
AUX = _LISTS["aux"]
COPULAS = word_set("is are was were")
RELATIVES = word_set("who whom whose which that where when")

FUNCTION_WORDS = _LISTS["function_words"]
PEOPLE = _LISTS["people"]
THINGS = _LISTS["things"]
APPOSITIVE = _LISTS["appositive"]
_NO_AGENTS = _LISTS["no_agents"]
_AGENT_ENDINGS = ("er", "or", "ist", "ian", "eur", "ant")
_NO_ANTS = _LISTS["no_ants"]
PLURALS = _LISTS["plurals"]

BASE_VERBS = _LISTS["base_verbs"]
LATE_VERBS = _LISTS["late_verbs"]
REDUCED_AFTER = _LISTS["reduced_after"]
COMPOUND_TAIL = word_set("birth death origin citizenship residence burial employment")
COMPOUND_HEAD = _LISTS["compound_head"]

_AGENT_EXCEPTIONS = _NO_AGENTS | _NO_ANTS


def is_person(noun: str) -> bool:
    """Whether a noun (lower case, singular) names a person: by a list, or by its ending (-er, -or, -ist)."""
    if noun in PEOPLE or noun in PLURALS:
        return True
    return len(noun) > 4 and noun.endswith(_AGENT_ENDINGS) and noun not in _AGENT_EXCEPTIONS


def is_relational(noun: str) -> bool:
    """Whether "the NOUN of X" or "X's NOUN" names one thing or person that a question can ask about."""
    return is_person(noun) or noun in THINGS


WORD_UNIT, NAME_UNIT, MARK_UNIT = range(3)
_MAX_PARENTHESIS = 8


@dataclass(frozen=True)
class Unit:
    """text[start:end] of the question. kind: a name (also "#1", a date, a quoted title), a mark, or a plain word.

    possessive: 's follows; low: the text in lower case.
    """

    low: str
    start: int
    end: int
    kind: int
    possessive: bool = False

    @property
    def is_name(self) -> bool:
        """Whether this is a name, a date, or "#1"."""
        return self.kind == NAME_UNIT

    @property
    def is_word(self) -> bool:
        """Whether this is a plain word outside the closed classes."""
        return self.kind == WORD_UNIT and self.low not in FUNCTION_WORDS and self.low not in RELATIVES


@lru_cache(maxsize=8)  # the same question is read several times
def units_of(text: str) -> list[Unit]:
    """The units of a question, in order. Read only: the list is cached. Linear."""
    tokens = tokenise(text, 0, len(text))
    ends = {m.first: m.last for m in find_mentions_in(text, tokens, passage_words("", [], [tokens]))}
    units: list[Unit] = []
    i = 0
    while i < len(tokens):
        last = _name_end(tokens, i, ends)
        first, final = tokens[i], tokens[last - 1]
        kind = NAME_UNIT if last > i + 1 or i in ends or first.kind == NAME else WORD_UNIT
        if kind == WORD_UNIT and first.kind == MARK:
            kind = MARK_UNIT
        if i == 0 and last == 1 and i not in ends:  # a sentence opens with a capital
            kind = WORD_UNIT
        units.append(Unit(text[first.start : final.end].casefold(), first.start, final.end, kind, final.possessive))
        i = last
    return units


def _name_end(tokens: list[Token], i: int, ends: dict[int, int]) -> int:
    if tokens[i].text == "#" and i + 1 < len(tokens) and tokens[i + 1].kind == NUMBER:
        return i + 2
    last = ends.get(i, i + 1)
    if i > 0 and tokens[i].kind == NAME and tokens[i].low in FUNCTION_WORDS:  # a title: "On the Origin of Species"
        after = last + (last < len(tokens) and tokens[last].low in ("the", "a"))
        last = ends.get(after, last)
    if last + 1 < len(tokens) and tokens[last].text in ("'", "\u2019") and tokens[last + 1].kind == NAME:
        last = ends.get(last + 1, last + 2) if tokens[last].start == tokens[last - 1].end else last  # "de' Medici"
    return _behind_parenthesis(tokens, last) if i in ends or tokens[i].kind == NAME else last


def _behind_parenthesis(tokens: list[Token], last: int) -> int:
    """The end of a short parenthesis after a name ("Jaws (1975 film)" is one name); else `last`."""
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
    """Whether unit i can be the verb that "did" needs: a base form, not after a determiner or preposition."""
    unit = units[i]
    if unit.kind != WORD_UNIT or unit.low not in BASE_VERBS or i == 0:
        return False
    before = units[i - 1]
    return before.is_name or before.kind == MARK_UNIT or before.low not in FUNCTION_WORDS


# --- phrases of units ------------------------------------------------------------------------------------

RELATIVE, REDUCED, OF_PHRASE, POSSESSIVE = "relative clause", "reduced relative clause", "of-phrase", "possessive"
_MAX_HEAD_UNITS = 6
_DO = frozenset({"did", "does", "do"})
_OBJECT_BEFORE = (PREPOSITIONS | {"and", "or"}) - {"than", "like"}


@dataclass(frozen=True)
class Described:
    """text[start:end] is a noun phrase; head: its noun, lower case; kind: one of the four forms."""

    kind: str
    start: int
    end: int
    head: str


def innermost(text: str) -> Described | None:
    """The phrase to find first in a question; None if the question asks for one thing only."""
    units = units_of(text)
    for i in reversed(range(len(units))):
        parts = _Reader(units, i).read()
        if parts is not None:
            kind, first, last, head = parts
            return Described(kind, units[first].start, units[last - 1].end, head)
    return None


Found = tuple[str, int, int, str]


class _Reader:
    """A reader of the phrase that begins at one unit. Positions are unit numbers; ends are exclusive."""

    def __init__(self, units: list[Unit], first: int):
        self.units, self.first, self.n = units, first, len(units)
        while self.n and units[self.n - 1].kind == MARK_UNIT:
            self.n -= 1
        self.aux = self._open_auxiliary()
        self.base_awaited = self._awaits_base_form()

    def read(self) -> Found | None:
        """(kind, first, last, head) of the phrase, or None."""
        unit = self.units[self.first]
        if unit.is_name and unit.possessive:
            return self._possessive()
        if unit.kind != WORD_UNIT or unit.low != "the":
            return None
        heads = self._head_end()
        if heads is None:
            return None
        return self._relative(heads) or self._contact(heads) or self._reduced(heads) or self._of(heads)

    # --- position ---

    def _open_auxiliary(self) -> str:
        """The question's auxiliary that still needs its predicate after the phrase, or ""."""
        for i in reversed(range(self.first)):
            unit = self.units[i]
            if is_aux(unit):
                subject = self.units[i + 1]
                inverted = subject.is_name or subject.low in ("the", "a", "an", "both")
                asks_what = unit.low in COPULAS and i > 0 and self.units[i - 1].low in ("who", "what")
                return unit.low if inverted and not asks_what else ""
            if unit.kind == MARK_UNIT or unit.low in RELATIVES:
                return ""
            if verb_at(self.units, i) or base_verb_at(self.units, i):
                return ""
        return ""

    def _awaits_base_form(self) -> bool:
        """Whether a "did" before the phrase has no verb yet."""
        for i in reversed(range(self.first)):
            if base_verb_at(self.units, i):
                return False
            if self.units[i].kind == WORD_UNIT and self.units[i].low in _DO:
                return True
        return False

    def _complete(self, last: int) -> bool:
        """Whether a phrase that ends at `last` leaves a predicate for the auxiliary."""
        rest = self.n - last
        if self.aux in _DO:
            return rest > 0
        if self.aux in COPULAS:
            return rest > 0 or self.units[0].low in ("who", "what", "which", "where", "when", "in")
        return True

    # --- the parts ---

    def _head_end(self) -> int | None:
        """The end of "the ADJECTIVE* NOUN" if its last unit is a plain word; else None."""
        i, end = self.first + 1, None
        while i < min(self.n, self.first + 1 + _MAX_HEAD_UNITS):
            unit = self.units[i]
            if unit.is_word and not is_aux(unit) and not (end is not None and self._is_verb(i)):
                end = i + 1
            elif not (unit.is_name and not unit.possessive and end is None):
                break
            i += 1
        if end is None and i == self.first + 2 < self.n and self.units[i].low in RELATIVES:
            end = i  # "the Dane who"
        if end is not None and self.units[end - 1].low in COMPOUND_HEAD and self._has_tail(end):
            return end + 2
        return end

    def _has_tail(self, at: int) -> bool:
        """Whether "of birth" or the like begins at `at`: "the city of birth" is one noun."""
        return at + 1 < self.n and self.units[at].low == "of" and self.units[at + 1].low in COMPOUND_TAIL

    def _is_verb(self, i: int) -> bool:
        return verb_at(self.units, i) or (self.base_awaited and base_verb_at(self.units, i))

    def _is_adverb(self, i: int) -> bool:
        low = self.units[i].low
        return self.units[i].kind == WORD_UNIT and (low in ADVERBS or (len(low) > 4 and low.endswith("ly")))

    def _relative(self, head: int) -> Found | None:
        start = head
        if start < self.n and self.units[start].low in PREPOSITIONS and self.units[start].low != "of":
            start += 1
        if start >= self.n or self.units[start].kind != WORD_UNIT or self.units[start].low not in RELATIVES:
            return None
        if start > head and self.units[start].low not in ("which", "whom", "whose"):
            return None
        return self._made(RELATIVE, self._clause_end(start + 1), head)

    def _contact(self, head: int) -> Found | None:
        """Read "the country Marta Orlo is from": a name directly after the noun, then a verb."""
        if head + 1 >= self.n or not self.units[head].is_name or self.units[head].possessive:
            return None
        if self.first and self.units[self.first - 1].low in RELATIVES:
            return None  # "the city where the winter games Zed won ...": the subject of that clause
        return self._made(RELATIVE, self._clause_end(head), head) if verb_at(self.units, head + 1) else None

    def _reduced(self, head: int) -> Found | None:
        start = head
        while start < self.n and self._is_adverb(start):
            start += 1
        before = self.units[self.first - 1] if self.first else None
        as_object = before is not None and (before.low in _OBJECT_BEFORE or self._is_verb(self.first - 1))
        if not as_object or start + 1 >= self.n or is_aux(self.units[start]) or not self._is_verb(start):
            return None
        low, following = self.units[start].low, self.units[start + 1]
        participle = low.endswith(("ed", "ing", "en")) or low in ("built", "made", "born", "sung", "held", "led", "won")
        if not participle or not (following.is_name or following.low in REDUCED_AFTER or low.endswith("ing")):
            return None
        return self._made(REDUCED, self._complement_end(start + 1), head)

    def _of(self, head: int) -> Found | None:
        noun = self.units[head - 1].low
        compound = noun in COMPOUND_TAIL
        if head + 1 >= self.n or self.units[head].low != "of" or not (compound or is_relational(noun)):
            return None
        if noun in APPOSITIVE and self.units[head + 1].is_name:
            return None
        end = self._noun_phrase_end(head + 1)
        if end is not None and end < self.n and self.units[end].low in RELATIVES:
            return None
        if end is None or (noun in APPOSITIVE and not any(u.is_name for u in self.units[head + 1 : end])):
            return None
        return self._made(OF_PHRASE, end, head)

    def _possessive(self) -> Found | None:
        """Read "Grey Port's main director": the words up to the first relational noun."""
        place = self.first + 1
        while place < min(self.n, self.first + 4) and self.units[place].is_word and not is_aux(self.units[place]):
            low = self.units[place].low
            if low in COMPOUND_HEAD and self._has_tail(place + 1):
                return self._made(POSSESSIVE, place + 3, place + 1)
            if is_relational(low):
                more = place + 1 < self.n and self.units[place + 1].is_word and is_relational(self.units[place + 1].low)
                return self._made(POSSESSIVE, place + 1 + more, place + 1 + more)
            place += 1
        return None

    def _made(self, kind: str, last: int | None, head: int) -> Found | None:
        if last is None or not self._complete(last):
            return None
        noun = self.units[head - 1].low
        if noun in COMPOUND_TAIL:
            noun = self.units[head - 3].low if head >= 3 else noun
        return kind, self._apposed() if kind == POSSESSIVE else self.first, last, noun

    def _apposed(self) -> int:
        """The first unit of an owner: "Anna Vole, Duchess of Lorn's mother", "the Rovers' captain"."""
        first = self.first
        if first >= 2 and self._within_name(first - 1):
            first -= 2
        return first - 1 if first and self.units[first - 1].low == "the" else first

    # --- ends ---

    def _clause_end(self, at: int) -> int | None:
        """The end of a clause that begins at `at`, after its verb group and complement; None if it has no verb."""
        i = at
        while i < self.n and (not verb_at(self.units, i) or self.units[i - 1].low == "to"):
            if self.units[i].kind == MARK_UNIT and not self._within_name(i):
                return None
            i += 1
        if i >= self.n:
            return None
        while i < self.n and (is_aux(self.units[i]) or self._is_adverb(i)):
            i += 1
        if i < self.n and verb_at(self.units, i):
            i += 1
        return self._complement_end(i)

    def _within_name(self, i: int) -> bool:
        """Whether mark i is the comma of "Kerling, Lorn"."""
        return self.units[i].low == "," and self.units[i - 1].is_name and i + 1 < self.n and self.units[i + 1].is_name

    def _complement_end(self, at: int) -> int:
        """The end of objects and adverbials: the next verb, comma, or predicate of the auxiliary."""
        i = at
        while i < self.n:
            unit, before = self.units[i], self.units[i - 1]
            joined = before.low in ("to", "and", "or")
            if unit.kind == MARK_UNIT and unit.low in ",;:":
                return i
            if unit.kind == WORD_UNIT and unit.low in RELATIVES:
                return self._clause_end(i + 1) or i
            if not joined and self._is_verb(i):
                return i
            if self.base_awaited and self._is_adverb(i) and i + 1 < self.n and base_verb_at(self.units, i + 1):
                return i  # "the painter whose brother founded Loss | ever marry"
            if self.aux in COPULAS and unit.low in ("a", "an") and i == at and before.low not in PREPOSITIONS:
                return i  # "was the man who ... is named | an organist"
            i += 1
        return self.n

    def _noun_phrase_end(self, at: int) -> int | None:
        """The end of the object of "of": words up to a name with its small words, else a definite phrase, or None."""
        i, words = at, 0
        while i < self.n and not self.units[i].is_name:
            unit = self.units[i]
            if unit.kind == MARK_UNIT or is_aux(unit) or self._is_verb(i):
                break
            if unit.low in FUNCTION_WORDS and unit.low not in ("the", "of", "a", "an"):
                break
            words += unit.is_word
            i += 1
        if i < self.n and self.units[i].is_name:
            return None if self.units[i].possessive else self._name_end(i + 1)
        return i if words and self.units[at].low == "the" and i > at + 1 else None

    def _name_end(self, at: int) -> int:
        """The end of a name with small words ("Così fan tutte") and further names ("Kerling, Lorn" is two)."""
        i = at
        while i < self.n:
            unit = self.units[i]
            if unit.low in ("for", "with") and i + 1 < self.n and self.units[i + 1].is_name:
                i += 2  # "Bread for Salt"
            elif unit.possessive or is_aux(unit) or self._is_adverb(i) or self._is_verb(i):
                break
            elif unit.is_name or unit.is_word:
                i += 1
            else:
                break
        if i == self.n and i > at and self.base_awaited:
            return i - 1  # the last word is the verb that "did" waits for
        return i
