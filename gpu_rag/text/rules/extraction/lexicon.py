"""Word classes and word lists of English (`lexicon.toml`), and rules that recognise verbs by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_rag.text.sentences import word_lists, word_set

_LISTS = word_lists(Path(__file__).with_suffix(".toml"))

DETERMINERS = _LISTS["determiners"]
PRONOUNS = _LISTS["pronouns"]
SUBJECT_PRONOUNS = word_set("he she it they")
POSSESSIVES = word_set("his her its their")
PREPOSITIONS = _LISTS["prepositions"]
PLACE_PREPOSITIONS = _LISTS["place_prepositions"]
AUXILIARIES = _LISTS["auxiliaries"]
COPULAS = word_set("is are was were")
CONJUNCTIONS = word_set("and or but nor yet plus &")
RELATIVES = _LISTS["relatives"]
CLAUSE_PRONOUNS = word_set("who whom which whose that where")
ADVERBS = _LISTS["adverbs"]
SUBORDINATORS = _LISTS["subordinators"]
LEADING = _LISTS["leading"]
# These words are never part of a name when they open a sentence.
OPENERS = DETERMINERS | PRONOUNS | PREPOSITIONS | AUXILIARIES | CONJUNCTIONS | RELATIVES | ADVERBS | _LISTS["openers"]
COMMON = _LISTS["common"]
MONTHS = _LISTS["months"]
SCALES = word_set("hundred thousand million billion trillion crore lakh")
UNITS = _LISTS["units"]
ERAS = word_set("bc bce ad ce")
INNER = _LISTS["inner"]
HEADS = _LISTS["heads"]
DATED_HEADS = _LISTS["dated_heads"]
JOINED_POSSESSIVES = _LISTS["joined_possessives"]
SUFFIXES = _LISTS["suffixes"]
DIRECTIONS = _LISTS["directions"]
GENERAL_LAST = _LISTS["general_last"]
ANAPHORS = _LISTS["anaphors"]
RANKS = _LISTS["ranks"]
HONORIFICS = _LISTS["honorifics"]
FIELD_HEADS = _LISTS["field_heads"]
NUMBERED = _LISTS["numbered"]
# Countries with two names; and words that end the name of a line between two places.
PAIRS = frozenset({("trinidad", "tobago"), ("bosnia", "herzegovina"), ("antigua", "barbuda"), ("kitts", "nevis")}) | {
    ("serbia", "montenegro"),
    ("newfoundland", "labrador"),
}
PAIR_ENDS = word_set("railway railroad canal line turnpike")
ORIGINS = _LISTS["origins"]
ORIGIN_ENDINGS = ("ian", "ean", "ish", "ese", "ican")
NOT_ORIGINS = _LISTS["not_origins"]
# Nouns for a single owner's place or day: they make "Bernie's Diner" one name.
OWNED = GENERAL_LAST | _LISTS["owned"]


_IRREGULAR = _LISTS["irregular"]
_PRESENT = _LISTS["present"]
_NOT_ED = _LISTS["not_ed"]
_NOUN_ING = _LISTS["noun_ing"]
_BARE_AFTER = _LISTS["bare_after"]


def is_verb(low: str, before: str) -> bool:
    """Whether the word `low` (lower case) is likely a verb, given the word `before` it ("" at the start of a phrase).

    An -ed form after a determiner ("the renovated hall") is an adjective. An -ing form counts only at the start of a
    phrase, or after punctuation or a conjunction ("band, consisting of").
    """
    if low in AUXILIARIES:
        return True
    if before in DETERMINERS:
        return False
    if low in _IRREGULAR or low in _PRESENT:
        return True
    if len(low) > 4 and low.endswith("ed"):
        return low not in _NOT_ED and "-" not in low and before not in _ADJECTIVE_BEFORE
    if len(low) > 4 and low.endswith("ing"):
        return low not in _NOUN_ING and "-" not in low and (before in _PHRASE_START or before in AUXILIARIES)
    return before in _BARE_AFTER and low.isalpha() and low not in PREPOSITIONS and low not in DETERMINERS


_ADJECTIVE_BEFORE = word_set("very most more of newly highly")
_PHRASE_START = frozenset({"", ",", ";", "and", "or", "(", "-", "--", "–", "—", "while", "by", "then"})


def first_verb(lows: Sequence[str]) -> int:
    """Index of the first verb among the words `lows` (lower case), or -1."""
    before = ""
    for i, low in enumerate(lows):
        if is_verb(low, before):
            return i
        before = low
    return -1
