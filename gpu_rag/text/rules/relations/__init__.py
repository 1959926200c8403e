"""Words that express a relation, in a question and in the relation's own name.

A unit is a word, or a phrase from `phrases.toml`, with its stem and its groups. Two units match if their stems are
equal or if they share a group ("treated", "indication"). A unit of a marked group ("should not", "off-label") reverses
the meaning of a question. The sides of a relation, and so its direction, are read by `direction`; "not", "or", numbers
and dates by `operators`.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from gpu_rag.text.tokens import STOP_WORDS, tokenize

SAME, ALIKE = 1.0, 0.9  # match scores of two units
_WORD = re.compile(r"#|[^\W_]+(?:['’][^\W_]+)*")
_DENYING_PREFIXES = ("contra", "counter", "anti", "non", "un", "dis")
_DENYING_WORDS = frozenset({"not", "no", "never", "non", "without", "absent", "lack", "lacks"})
_AGENT = re.compile(r"(\w{4,})[eo]r")  # "founder"
_NO_AGENTS = frozenset({"former", "number", "member", "order", "quarter"})
_WINDOW = 4  # maximum words of a phrase
_MIN_FORM = 4  # letters of an irregular form at the end of a compound
ASKS_FOR = frozenset({"name", "list", "give", "tell", "find", "identify", "show", "count"})
_EMPTY = ASKS_FOR | {"please", "thing", "one", "people"}


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
    converse: dict[str, str]
    irregular: dict[str, str]


@cache
def _table() -> _Table:
    rows = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text("utf-8"))
    phrases: dict[tuple[str, ...], set[str]] = defaultdict(set)
    verbs = (line.split() for line in rows["irregular"])
    irregular = {form: verb for verb, *forms in verbs for form in forms}
    for group, says in rows["groups"].items():
        for phrase in says:
            phrases[tuple(_stem(_base(word, irregular)) for word in words_of(phrase))].add(group)
    return _Table(
        {key: frozenset(groups) for key, groups in phrases.items()},
        _both_ways(rows["inverse"]),
        frozenset(rows["marked"]),
        rows["speaks_of"],
        _both_ways(rows["converse"]),
        irregular,
    )


def _both_ways(pairs: Sequence[Sequence[str]]) -> dict[str, str]:
    """Each element of a pair, mapped to the other."""
    return {key: value for first, second in pairs for key, value in ((first, second), (second, first))}


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; "#" is a word."""
    return _WORD.findall(text.casefold())


@lru_cache(1 << 16)
def base_of(word: str) -> str:
    """The verb of an irregular form ("teach" of "taught", "ghostwrite" of "ghostwrote"); any other word unchanged."""
    return _base(word, _table().irregular)


def _base(word: str, irregular: Mapping[str, str]) -> str:
    """`base_of` by a table; the verb of a compound changes as the verb alone."""
    cuts = (i for i in range(len(word) - _MIN_FORM + 1) if i != 1 and word[i:] in irregular)
    cut = next(cuts, None)
    return irregular.get(word, word) if cut is None else word[:cut] + irregular[word[cut:]]


@lru_cache(1 << 16)
def stem_of(word: str) -> str:
    """The stem of a word; a stop word is its own stem. The forms of a verb and the noun for its agent have one stem.

    >>> {stem_of(word) for word in ("taught", "teaches", "teacher")}, stem_of("former")
    ({'teach'}, 'former')
    """
    return _stem(base_of(word))


def _stem(word: str) -> str:
    """The stem of a regular form."""
    stem = (tokenize(word) or [word])[0]
    agent = _AGENT.fullmatch(stem)
    if agent is None or stem in _NO_AGENTS:
        return stem
    double = agent[1][-1] == agent[1][-2] and agent[1][-1] not in "ls"  # "winner"
    return agent[1][: -1 if double else None]


def units_of(text: str) -> list[Unit]:
    """The units of a text, in order, without stop words. The longest phrase of the table is taken first.

    >>> [(unit.stem, sorted(unit.groups)) for unit in units_of("Who was it written by?")]
    [('written', ['write'])]
    """
    stems, table = [stem_of(word) for word in words_of(text)], _table()
    words = words_of(text)
    units, i = [], 0
    while i < len(stems):
        width = next(
            (n for n in range(min(_WINDOW, len(stems) - i), 0, -1) if tuple(stems[i : i + n]) in table.phrases), 0
        )
        if width:
            key = tuple(stems[i : i + width])
            stem = " ".join(key[:-1] if key[-1] == "by" else key)  # "influenced by" says the same verb
            units.append(Unit(stem, table.phrases[key], i, width))
        elif len(words[i]) > 1 and words[i] not in STOP_WORDS and words[i] not in _EMPTY:
            units.append(Unit(stems[i], frozenset(), i))
        i += max(width, 1)
    return units


def says(cue: Unit, unit: Unit) -> float:
    """Score how well a unit of a question matches a unit of a relation's name."""
    return SAME if cue.stem == unit.stem else ALIKE if cue.groups & unit.groups else 0.0


def converse_of(groups: Collection[str]) -> frozenset[str]:
    """The groups that state the same fact from the other side, such as lending for borrowing."""
    converse = _table().converse
    return frozenset(converse[group] for group in groups if group in converse)


def says_inverse(cue: Unit, unit: Unit) -> bool:
    """Whether a unit of a question says the inverse of a unit of a text: "father" and "daughter of"."""
    table = _table()
    return any(table.inverse.get(group) in cue.groups for group in unit.groups)


def spoken_of(units: Sequence[Unit]) -> frozenset[str]:
    """The groups whose words express no relation beside these units: "given" beside "should not be"."""
    return frozenset(spoken for unit in units for group in unit.groups if (spoken := _table().speaks_of.get(group)))


@dataclass(frozen=True)
class Denial:
    """The name of a relation that denies another one. by: stems and groups that say so, empty for "not"; denied: stems
    and groups of the denied relation."""

    by: frozenset[str]
    denied: frozenset[str]


def denial_of(label: str, stems: Collection[str]) -> Denial | None:
    """Whether the name of a relation denies another one. stems: stems of the names of all relations of the graph.

    A name denies if a unit of it is a stem of the graph behind a prefix ("contraindication", "disliked by"), if one of
    its words does ("phenotype absent"), or if a marked unit speaks of another group ("off-label use").
    """
    units, by, denied = units_of(label), set[str](), set[str]()
    for unit in units:
        for prefix in _DENYING_PREFIXES:
            if unit.stem.startswith(prefix) and unit.stem.removeprefix(prefix) in stems:
                by.add(unit.stem)
                denied.add(unit.stem.removeprefix(prefix))
    for group in (group for unit in units for group in unit.groups):
        if (spoken := _table().speaks_of.get(group)) is not None:
            by.add(group)
            denied.add(spoken)
    denying = {stem_of(word) for word in words_of(label) if word in _DENYING_WORDS}
    if denying:
        by |= denying & {unit.stem for unit in units}
        denied |= {key for unit in units if unit.stem not in denying for key in (unit.stem, *unit.groups)}
    return Denial(frozenset(by), frozenset(denied)) if denied else None
