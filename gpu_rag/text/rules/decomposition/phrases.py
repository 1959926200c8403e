"""Find the innermost noun phrase of a question whose referent must be found first, and where it ends.

It has one of four forms (N is a noun): a full relative clause ("the town that built the Halden Bridge", "the planet
after which uranium is named", "the country Marta Orlo is from"), a reduced one ("the ship built in Dundee"), an
of-phrase with a relational noun ("the director of Bread for Salt"), or a possessive ("Grey Port's director"). The
innermost phrase is the one that begins last. There is no parser: the rules use closed word classes, verb forms
(`phrases.toml`), and the predicate that the question's auxiliary still needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from gpu_rag.text.rules.extraction.entities import read_sentences
from gpu_rag.text.rules.extraction.lexicon import ADVERBS, PREPOSITIONS, is_verb
from gpu_rag.text.rules.extraction.tokens import MARK, NAME, NUMBER, Token
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
_ABSTRACT = _LISTS["abstract"]
_ABSTRACT_ENDINGS = ("ion", "ment", "ness", "ity", "ance", "ence", "ing", "ism", "th", "ship", "hood", "age", "s")
_AGENT_ENDINGS = ("er", "or", "ist", "ian", "eur", "ant")
PLURALS = _LISTS["plurals"]

BASE_VERBS = _LISTS["base_verbs"]
LATE_VERBS = _LISTS["late_verbs"]
COMPOUND_TAIL = word_set("birth death origin citizenship residence burial employment")
COMPOUND_HEAD = word_set("place city town country date state county village cause")


def is_person(noun: str) -> bool:
    """Whether a noun (lower case, singular) names a person: by a list, or by its ending (-er, -or, -ist)."""
    agent = len(noun) > 4 and noun.endswith(_AGENT_ENDINGS) and noun not in _NO_AGENTS
    return agent or noun in PEOPLE or noun in PLURALS


def is_agent(noun: str) -> bool:
    """Whether a noun is a verb of the lists with -er or -or ("discoverer")."""
    return noun.endswith(("er", "or")) and not BASE_VERBS.isdisjoint((noun[:-2], noun[:-1]))


def is_relational(noun: str) -> bool:
    """Whether "the NOUN of X" or "X's NOUN" names one thing or person that a question can ask about."""
    return is_person(noun) or noun in THINGS


def is_thing(noun: str) -> bool:
    """Whether a noun can name one thing with facts of its own: no event, quality, time or part."""
    return noun not in _ABSTRACT and not noun.endswith(_ABSTRACT_ENDINGS)


WORD_UNIT, NAME_UNIT, MARK_UNIT = range(3)
_MAX_PARENTHESIS = 8


class Unit(NamedTuple):
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
def units_of(text: str) -> tuple[Unit, ...]:
    """The units of a question, in order. Linear."""
    ((tokens, mentions),) = read_sentences(text, (0, len(text)))
    ends = {mention.first: mention.last for mention in mentions}
    units: list[Unit] = []
    i = 0
    while i < len(tokens):
        last = _name_end(tokens, i, ends)
        first, final = tokens[i], tokens[last - 1]
        kind = NAME_UNIT if last > i + 1 or i in ends or first.kind == NAME else WORD_UNIT
        if kind == WORD_UNIT and first.kind == MARK:
            kind = MARK_UNIT
        if i == 0 and last == 1 and i not in ends:  # a sentence opens with a capital
            kind = NAME_UNIT if first.possessive and first.low not in QUESTION_WORDS | FUNCTION_WORDS else WORD_UNIT
        possessive = final.possessive or (first.text == "#" and text[final.end : final.end + 2] in ("'s", "\u2019s"))
        units.append(Unit(text[first.start : final.end].casefold(), first.start, final.end, kind, possessive))
        i = last + 2 * (possessive and not final.possessive)
    return tuple(units)


def _name_end(tokens: Sequence[Token], i: int, ends: dict[int, int]) -> int:
    if tokens[i].text == "#" and i + 1 < len(tokens) and tokens[i + 1].kind == NUMBER:
        return i + 2
    last = ends.get(i, i + 1)
    if i > 0 and tokens[i].kind == NAME and tokens[i].low in FUNCTION_WORDS:  # a title: "On the Origin of Species"
        after = last + (last < len(tokens) and tokens[last].low in ("the", "a"))
        last = ends.get(after, last)
    if last + 1 < len(tokens) and tokens[last].text in ("'", "\u2019") and tokens[last + 1].kind == NAME:
        last = ends.get(last + 1, last + 2) if tokens[last].start == tokens[last - 1].end else last  # "de' Medici"
    return _behind_parenthesis(tokens, last) if i in ends or tokens[i].kind == NAME else last


def _behind_parenthesis(tokens: Sequence[Token], last: int) -> int:
    """The end of a short parenthesis after a name ("Jaws (1975 film)" is one name); else `last`."""
    if last < len(tokens) and tokens[last].text == "(":
        for i in range(last + 1, min(len(tokens), last + _MAX_PARENTHESIS)):
            if tokens[i].text == ")":
                return i + 1
    return last


def is_participle(low: str) -> bool:
    """Whether a verb's form can follow its noun: "the ship built in Dundee"."""
    return low.endswith(("ed", "ing", "en")) or low in ("built", "made", "born", "sung", "held", "led", "won", "known")


def is_aux(unit: Unit) -> bool:
    """Whether a unit is an auxiliary or a form of "to be"."""
    return unit.kind == WORD_UNIT and unit.low in AUX


def verb_at(units: Sequence[Unit], i: int) -> bool:
    """Whether unit i is likely a verb, by lists of forms, the endings -ed and -ing, and the word before it."""
    unit = units[i]
    if unit.kind != WORD_UNIT:
        return False
    before = units[i - 1] if i else None
    plain = before is not None and before.kind == WORD_UNIT and before.low not in RELATIVES
    word_before = before.low if before is not None and plain else "x"
    return unit.low in LATE_VERBS or (unit.low not in FUNCTION_WORDS and is_verb(unit.low, word_before))


def base_verb_at(units: Sequence[Unit], i: int) -> bool:
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
_ROLE_BEFORE = word_set("become becomes became becoming")
_OBJECT_BEFORE = (PREPOSITIONS | {"and", "or"}) - {"than", "like"}


@dataclass(frozen=True)
class Described:
    """text[start:end] is a noun phrase; head: its noun, lower case; kind: one of the four forms.

    within: offsets of a predicate inside the phrase that is not part of it: "the man (born) who built it".
    """

    kind: str
    start: int
    end: int
    head: str
    within: tuple[int, int]


def innermost(text: str) -> Described | None:
    """The phrase to find first in a question; None if the question asks for one thing only."""
    units = units_of(text)
    begins = (i for i in reversed(range(len(units))) if units[i].possessive or units[i].low == "the")
    return next((phrase for i in begins if (phrase := _Reader(units, i).read())), None)


PAST = Unit("", 0, 0, MARK_UNIT)  # stands after a question (and so before it), so that no position is outside


class _Reader:
    """A reader of the phrase that begins at one unit. Positions are unit numbers; ends are exclusive."""

    def __init__(self, units: Sequence[Unit], first: int):
        self.first, self.n = first, len(units)
        while self.n and units[self.n - 1].kind == MARK_UNIT:
            self.n -= 1
        self.units = [*units, *[PAST] * 4]

    def read(self) -> Described | None:
        """The phrase, or None."""
        unit = self.units[self.first]
        if unit.is_name and unit.possessive:
            return self._possessive()
        head = self._head_end() if unit.kind == WORD_UNIT and unit.low == "the" else None
        if head is None:
            return None
        clause = self._behind(head) or self._relative(head) or self._contact(head) or self._reduced(head)
        return clause or self._of(head)

    # --- position ---

    @cached_property
    def base_awaited(self) -> bool:
        """Whether a form of "do" before the phrase needs a base form."""
        return any(unit.low in _DO for unit in self.units[: self.first])

    @cached_property
    def aux(self) -> str:
        """The question's auxiliary that still needs its predicate after the phrase, or ""."""
        for i in reversed(range(min(self.first, self.n))):
            unit = self.units[i]
            if is_aux(unit):
                inverted = self.units[i + 1].is_name or self.units[i + 1].low in ("the", "a", "an", "both")
                asks_what = unit.low in COPULAS and self.units[i - 1].low in ("who", "what")
                return unit.low if inverted and not asks_what else ""
            verb = verb_at(self.units, i) or base_verb_at(self.units, i)
            if verb or unit.kind == MARK_UNIT or unit.low in RELATIVES:
                break
        return ""

    def _complete(self, last: int) -> bool:
        """Whether a phrase that ends at `last` leaves a predicate: for the auxiliary, or as the sentence's subject."""
        if self.first == 0:
            topic = self.units[last].kind == MARK_UNIT and self.units[last + 1].low in QUESTION_WORDS
            return self._is_verb(last) or self._is_adverb(last) or topic
        asked = self.aux in COPULAS and any(unit.low in QUESTION_WORDS for unit in self.units[: self.first])
        return self.n > last or asked or self.aux not in COPULAS | _DO

    # --- the parts ---

    def _head_end(self) -> int | None:
        """The end of "the ADJECTIVE* NOUN" if its last unit is a plain word; else None."""
        i, end = self.first + 1, None
        while i < self.first + 1 + _MAX_HEAD_UNITS:
            unit = self.units[i]
            if unit.is_word and not is_aux(unit) and not (end is not None and self._modifies(i)):
                end = i + 1
            elif not (unit.is_name and not unit.possessive and end is None):
                break
            i += 1
        if end is None and i == self.first + 2 and self.units[i].low in RELATIVES - {"when"}:
            return i  # "the Dane who"
        return end if end is None or not self._has_tail(end) else end + 2

    def _modifies(self, i: int) -> bool:
        """Whether unit i is a verb after its noun: "founded", or the participle of "the airline serving Kerling"."""
        follows = self.units[i + 1]
        active = follows.is_name or follows.low in RELATIVES | {"the", "a", "an"}
        return self._is_verb(i) or (active and len(self.units[i].low) > 4 and self.units[i].low.endswith("ing"))

    def _has_tail(self, start: int) -> bool:
        """Whether "of birth" or the like begins at `start`: "the city of birth" is one noun."""
        compound = self.units[start - 1].low in COMPOUND_HEAD and self.units[start + 1].low in COMPOUND_TAIL
        return compound and self.units[start].low == "of"

    def _is_verb(self, i: int) -> bool:
        return verb_at(self.units, i) or (self.base_awaited and base_verb_at(self.units, i))

    def _is_adverb(self, i: int) -> bool:
        low = self.units[i].low
        return self.units[i].kind == WORD_UNIT and (low in ADVERBS or (len(low) > 4 and low.endswith("ly")))

    def _relative(self, head: int) -> Described | None:
        start = self._clause_start(head)
        return None if start is None else self._made(RELATIVE, self._clause_end(start), head)

    def _clause_start(self, head: int) -> int | None:
        """The first word of a relative clause, after the pronoun (and preposition) at `head`; None if there is none."""
        low = self.units[head].low
        behind = low in PREPOSITIONS and low != "of" and self.units[head + 1].low in ("which", "whom", "whose")
        return head + 1 + behind if behind or low in RELATIVES else None

    def _behind(self, head: int) -> Described | None:
        """Read "was the man born who built it": the clause follows the predicate, to the end of the question."""
        start = self._clause_start(head + 1) if self.aux and is_aux(self.units[self.first - 1]) else None
        if start is None or not self._modifies(head) or self._clause_end(start) != self.n:
            return None
        return self._described(RELATIVE, self.first, self.n, self.units[head - 1].low, (head - 1, head))

    def _contact(self, head: int) -> Described | None:
        """Read "the country Marta Orlo is from": a name directly after the noun, then a verb."""
        name, verb = self.units[head], self.units[head + 1]
        if not name.is_name or name.possessive or verb.low in _DO or not self.units[head - 1].low.isalpha():
            return None
        if self.units[self.first - 1].low in RELATIVES or not verb_at(self.units, head + 1):
            return None  # "the city where the winter games Zed won ...": the subject of that clause
        return self._made(RELATIVE, self._clause_end(head), head)

    def _reduced(self, head: int) -> Described | None:
        start = head
        while self._is_adverb(start):
            start += 1
        low, following = self.units[start].low, self.units[start + 1]
        as_object = self.units[self.first - 1].low in _OBJECT_BEFORE or self._is_verb(self.first - 1)
        if not (as_object or following.low == "by") or is_aux(self.units[start]) or not self._modifies(start):
            return None
        named = low in ("called", "named", "known") and (following.is_name or following.low == "as")
        preposition = following.low in PREPOSITIONS and start + 2 < self.n
        if named or not is_participle(low) or not (following.is_name or preposition or low.endswith("ing")):
            return None
        return self._made(REDUCED, self._complement_end(start + 1), head)

    def _of(self, head: int) -> Described | None:
        noun, object_ = self.units[head - 1].low, self.units[head + 1]
        answer = object_.low[:1] == "#"
        relational = noun in COMPOUND_TAIL or is_relational(noun) or (answer and is_thing(noun))
        if self.units[head].low != "of" or not relational or (noun in APPOSITIVE and object_.is_name and not answer):
            return None
        end = self._noun_phrase_end(head + 1)
        if end is None and is_agent(noun) and object_.is_word and (head + 2 == self.n or self._is_verb(head + 2)):
            end = head + 2  # "the discoverer of helium"
        if end is None or self.units[end].low in RELATIVES - {"when"}:
            return None
        if self.units[end].low == "in" and self.units[end + 1].low.isdigit() and self._is_verb(end + 2):
            end += 2  # "the winner of the Ves Race in 2004 trained"
        if noun in APPOSITIVE and not any(u.is_name for u in self.units[head + 1 : end]):
            return None
        return self._made(OF_PHRASE, end, head)

    def _possessive(self) -> Described | None:
        """Read "Grey Port's main director": the words up to the first relational noun, else to any thing's."""
        for end in range(self.first + 2, self.first + 5):
            unit, after = self.units[end - 1], self.units[end]
            if self._has_tail(end):
                return self._made(POSSESSIVE, end + 2, end)  # "Anna Vole's place of birth"
            if unit.is_word and is_relational(unit.low) and not unit.possessive:
                end += after.is_word and is_relational(after.low)
                return self._made(POSSESSIVE, end, end)
            if not unit.is_word or not unit.low.isalpha() or self._is_verb(end - 1):
                break
            if unit.possessive:
                return self._made(POSSESSIVE, end, end)  # "Anna Vole's ox's weight"
            if not (after.is_word or after.is_name) or self._is_verb(end):
                thing = end < self.first + 4 and is_thing(unit.low) and not self._is_adverb(end - 1)
                return self._made(POSSESSIVE, end, end) if thing else None
        return None

    def _made(self, kind: str, last: int | None, head: int) -> Described | None:
        """The phrase up to `last`; None if the question then has no predicate, or it is a role: "become a ..."."""
        if last is None or not self._complete(last):
            return None
        noun, before = self.units[head - 1].low, self.units[last - 1]
        if noun in COMPOUND_TAIL:
            noun = self.units[head - 3].low if head >= 3 else noun
        first = self._apposed() if kind == POSSESSIVE else self.first
        asks = self.units[last].low in ("what", "how") and (self._is_verb(last - 1) or before.low in PREPOSITIONS)
        if kind in (RELATIVE, REDUCED) and (asks or not self._has_verb_outside(last)):
            return None
        if kind in (OF_PHRASE, POSSESSIVE) and self.units[first - 1].low in _ROLE_BEFORE and is_person(noun):
            return None
        return self._described(kind, first, last, noun, (last - 1, last - 1))

    def _described(self, kind: str, first: int, last: int, noun: str, within: tuple[int, int]) -> Described:
        start, end = (self.units[i].end for i in within)
        return Described(kind, self.units[first].start, self.units[last - 1].end, noun, (start, end))

    def _has_verb_outside(self, last: int) -> bool:
        """Whether a statement keeps a verb when the phrase up to `last` is taken out."""
        opens = self.units[0].low in BASE_VERBS | QUESTION_WORDS or self.units[0].possessive
        outside = (*range(self.first), *range(last, self.n))
        return opens or any(self._is_verb(i) or self.units[i].low.endswith("ing") for i in outside)

    def _apposed(self) -> int:
        """The first unit of an owner: "Anna Vole, Duchess of Lorn's mother", "the Rovers' captain"."""
        first = self.first - 2 if self._within_name(self.first - 1) else self.first
        return first - (self.units[first - 1].low == "the")

    # --- ends ---

    def _clause_end(self, start: int) -> int | None:
        """The end of a clause that begins at `start`, after its verb group and complement; None if it has no verb."""
        i, subject = start + self.units[start].is_name, self.units[start]
        while self._is_adverb(i):
            i += 1
        by_place = subject.is_name or not (
            self.units[start - 1].low in ("whose", "where", "when") or self.units[start - 2].low in PREPOSITIONS
        )
        unlisted = by_place and not subject.possessive and self.units[i].is_word and not self._is_verb(i + 1)
        if not unlisted or verb_at(self.units, i):  # else "that manages ...", "that Marta Orlo manages"
            i = start
            while not verb_at(self.units, i) or self.units[i - 1].low == "to":
                if self.units[i].kind == MARK_UNIT and not self._within_name(i):
                    return None
                i += 1
            while is_aux(self.units[i]) or self._is_adverb(i):
                i += 1
            unlisted = verb_at(self.units, i)
        return self._complement_end(i + unlisted)

    def _within_name(self, i: int) -> bool:
        """Whether mark i is the comma of "Kerling, Lorn"."""
        return self.units[i].low == "," and self.units[i - 1].is_name and self.units[i + 1].is_name

    def _complement_end(self, start: int) -> int:
        """The end of objects and adverbials: the next verb, comma, or predicate of the auxiliary."""
        for i in range(start, self.n):
            unit, before = self.units[i], self.units[i - 1]
            called = unit.low in ("called", "named") and before.is_word and not self._is_verb(i - 1)
            joined = before.low in ("to", "and", "or")
            quoted = self.units[i + 1].low[:1] in ('"', "\u201c") and self.units[i + 1].is_name
            if unit.low in ("what", "how") or (unit.kind == MARK_UNIT and unit.low in ",;:" and not quoted):
                return i
            if unit.low in RELATIVES and not (unit.low == "that" and before.low in PREPOSITIONS):
                return self._clause_end(i + 1) or i
            if not joined and self._is_verb(i) and not called:
                return i
            if self.base_awaited and self._is_adverb(i) and base_verb_at(self.units, i + 1):
                return i  # "the painter whose brother founded Loss | ever marry"
            predicate = before.low not in PREPOSITIONS and not before.low.endswith("ing")
            if self.aux in COPULAS and unit.low in ("a", "an") and i == start and predicate:
                return i  # "was the man who ... is named | an organist"
        return max(start, self.n)

    def _noun_phrase_end(self, start: int) -> int | None:
        """The end of the object of "of": words up to a name with its small words, else a definite phrase, or None."""
        i, words = start, 0
        while not self.units[i].is_name:
            unit = self.units[i]
            closed = unit.low in FUNCTION_WORDS and unit.low not in ("the", "of", "a", "an")
            if closed or unit.kind == MARK_UNIT or is_aux(unit) or self._is_verb(i):
                break
            words += unit.is_word
            i += 1
        if self.units[i].is_name:
            return None if self._owns(i) else self._name_end(i + 1)
        return i if words and self.units[start].low == "the" and i > start + 1 else None

    def _owns(self, i: int) -> bool:
        """Whether unit i owns what follows: no part of a name ("Rogues' Regiment")."""
        return self.units[i].possessive and not self.units[i + 1].is_name

    def _name_end(self, start: int) -> int:
        """The end of a name with small words ("Così fan tutte") and further names ("Kerling, Lorn" is two)."""
        i = start
        while i < self.n:
            unit = self.units[i]
            if unit.low in ("for", "with") and self.units[i + 1].is_name:
                i += 2  # "Bread for Salt"
            elif self._owns(i) or is_aux(unit) or self._is_adverb(i) or self._is_verb(i):
                break
            elif unit.is_name or unit.is_word:
                i += 1
            else:
                break
        return i - (i == self.n and i > start and self.base_awaited)  # the last word is the verb that "did" waits for
