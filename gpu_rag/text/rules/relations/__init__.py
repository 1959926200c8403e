"""Words that express a relation, in a question and in the relation's own name.

A unit is a word, or a phrase from `phrases.toml`, with its stem and its groups. Two units match if their stems are
equal or if they share a group ("treated", "indication"). They match in the inverse direction if their groups are
inverse ("father" and the relation "children"). A unit of a marked group ("should not", "off-label") reverses the
meaning of a question.
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

SAME, ALIKE, INVERSE = 1.0, 0.9, 0.85  # match scores of two units
_WORD = re.compile(r"#|[^\W_]+(?:['’][^\W_]+)*")
_WINDOW = 4  # maximum words of a phrase
_EMPTY = frozenset({"name", "list", "give", "tell", "find", "identify", "show", "please", "thing", "one", "people"})


@dataclass(frozen=True)
class Unit:
    """A word or phrase. at: its position in the text, in words; width: its number of words."""

    stem: str
    groups: frozenset[str]
    at: int = 0
    width: int = 1

    @property
    def marked(self) -> bool:
        """Whether the unit reverses the meaning of a question."""
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
    """The words of a text in lower case; "#" is a word."""
    return _WORD.findall(text.casefold())


@cache
def _stem(word: str) -> str:
    """The stem of a word; a stop word is its own stem."""
    return (tokenize(word) or [word])[0]


def units_of(text: str) -> list[Unit]:
    """The units of a text, in order, without stop words. The longest phrase of the table is taken first.

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
    """Score how well a unit of a question matches a unit of a relation's name."""
    return SAME if cue.stem == unit.stem else ALIKE if cue.groups & unit.groups else 0.0


def spoken_of(units: Sequence[Unit]) -> frozenset[str]:
    """The groups whose words express no relation beside these units: "given" beside "should not be"."""
    return frozenset(of for unit in units for group in unit.groups if (of := _table().speaks_of.get(group)))


def inverses(unit: Unit) -> frozenset[str]:
    """The groups that express a unit in the inverse direction."""
    return frozenset(other for group in unit.groups if (other := _table().inverse.get(group)) is not None)


def says_inverse(cue: Unit, unit: Unit) -> float:
    """Score how well a unit of a question matches a unit of a relation's name in the inverse direction."""
    return INVERSE if cue.groups & inverses(unit) else 0.0


def has_direction(units: Sequence[Unit]) -> bool:
    """Whether a relation with these units has an inverse, so that its own words mean one direction of it."""
    return any(group in _table().inverse for unit in units for group in unit.groups)
