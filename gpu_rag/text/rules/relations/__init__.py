"""Words that say a relation, in a question and in the relation's own name.

A unit is a word, or a phrase of the table `phrases.toml`: its stem and the groups that it belongs to. Two units say the
same where their stems are equal or where they share a group ("treated", "indication"); one says the other the other way
round where their groups are inverse ("father" of the relation "children"). A unit of a marked group ("should not",
"off-label") turns a question round.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpu_rag.text.tokens import STOP_WORDS, tokenize

SAME, ALIKE, INVERSE = 1.0, 0.9, 0.85  # how well one unit says another
_WORD = re.compile(r"#|[^\W_]+(?:['’][^\W_]+)*")
_WINDOW = 4  # words of a phrase at most
_EMPTY = frozenset({"name", "list", "give", "tell", "find", "identify", "show", "please", "thing", "one", "people"})


@dataclass(frozen=True)
class Unit:
    """A word or phrase at place `at` of a text, in words; width: how many words it is."""

    stem: str
    groups: frozenset[str]
    at: int = 0
    width: int = 1

    @property
    def marked(self) -> bool:
        """Whether it turns a question round."""
        return bool(self.groups & _table().marked)


@dataclass(frozen=True)
class _Table:
    phrases: dict[tuple[str, ...], frozenset[str]]
    inverse: dict[str, str]
    marked: frozenset[str]
    speaks_of: dict[str, str]


@cache
def _table() -> _Table:
    rows = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text("utf-8"))
    phrases: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for group, says in rows["groups"].items():
        for phrase in says:
            phrases[tuple(map(_stem, words_of(phrase)))].add(group)
    pairs = [tuple(pair) for pair in rows["inverse"]]
    inverse = {a: b for one, other in pairs for a, b in ((one, other), (other, one))}
    return _Table(
        {key: frozenset(groups) for key, groups in phrases.items()},
        inverse,
        frozenset(rows["marked"]),
        rows["speaks_of"],
    )


def words_of(text: str) -> list[str]:
    """The words of a text in small letters; "#" is one."""
    return _WORD.findall(text.casefold())


@cache
def _stem(word: str) -> str:
    """The stem of a word; a stop word is its own."""
    return (tokenize(word) or [word])[0]


def units_of(text: str) -> list[Unit]:
    """The units of a text, in order: phrases of the table first where they are longer, stop words left out.

    >>> [(unit.stem, sorted(unit.groups)) for unit in units_of("Who was it written by?")]
    [('written', ['write'])]
    """
    stems, table = [_stem(word) for word in words_of(text)], _table()
    words = words_of(text)
    found, at = [], 0
    while at < len(stems):
        width = next((n for n in range(_WINDOW, 0, -1) if tuple(stems[at : at + n]) in table.phrases), 0)
        if width:
            key = tuple(stems[at : at + width])
            found.append(Unit(" ".join(key), table.phrases[key], at, width))
        elif len(words[at]) > 1 and words[at] not in STOP_WORDS and words[at] not in _EMPTY:
            found.append(Unit(stems[at], frozenset(), at))
        at += max(width, 1)
    return found


def says(cue: Unit, unit: Unit) -> float:
    """How well a unit of a question says one of a relation's name."""
    return SAME if cue.stem == unit.stem else ALIKE if cue.groups & unit.groups else 0.0


def spoken_of(units: Sequence[Unit]) -> frozenset[str]:
    """The groups whose words say no relation of their own beside these units: "given" beside "should not be"."""
    return frozenset(of for unit in units for group in unit.groups if (of := _table().speaks_of.get(group)))


def inverses(unit: Unit) -> frozenset[str]:
    """The groups that say a unit the other way round."""
    return frozenset(other for group in unit.groups if (other := _table().inverse.get(group)) is not None)


def says_inverse(cue: Unit, unit: Unit) -> float:
    """How well a unit of a question says one of a relation's name the other way round."""
    return INVERSE if cue.groups & inverses(unit) else 0.0


def has_direction(units: Sequence[Unit]) -> bool:
    """Whether a relation of these units has an inverse, so that its own words mean one direction of it."""
    return any(group in _table().inverse for unit in units for group in unit.groups)
