"""Names in questions: the entities and passages that a question names, found in the same way for every method.

Questions and names are compared word by word, without case, accents and punctuation, so that "Bluetooth's" matches
Bluetooth and "12-Mile" matches "12- Mile". At each word the longest name counts, and the words in it are skipped.
  m(e) = g / passages that name e, for the entities that the question names, scaled to sum to 1; g is COMMON if the
         question writes the name without a capital, else 1: "the spouse" says little, however rare it is
  t(p) = the passages whose titles the question names, a title's share divided among its passages, scaled to sum to 1
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.program.titles import MOST_PASSAGES
from gpu_rag.program.walk import Listed, scaled
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.tokens import STOP_WORDS

COMMON = 0.1  # weight of a name without a capital in the question
_WORD = re.compile(r"[^\W_]+")
_BRACKET = re.compile(r"\s*\(([^()]*)\)\s*$")


@dataclass(frozen=True)
class Words:
    """The folded words of a text, and which of them begin with a capital or a digit. All count as capitalised if no
    word after the first has a capital."""

    folded: list[str]
    capital: list[bool]


def words_of(text: str) -> Words:
    """The words of a text: runs of letters and digits."""
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    words = _WORD.findall(text)
    cased = any(word[0].isupper() for word in words[1:])
    return Words([word.casefold() for word in words], [not (cased and word[0].islower()) for word in words])


class NameTable:
    """A look-up of rows by the words of their names."""

    def __init__(self, names: Iterable[tuple[str, int]]) -> None:
        found: dict[str, dict[int, None]] = defaultdict(dict)
        self._longest: dict[str, int] = {}
        for name, row in names:
            words = words_of(name).folded
            if _says_something(words):
                found[" ".join(words)][row] = None
                self._longest[words[0]] = max(len(words), self._longest.get(words[0], 0))
        self._rows = {key: tuple(rows) for key, rows in found.items()}

    def found(self, text: Words) -> list[tuple[tuple[int, ...], bool]]:
        """(rows, whether it has a capital) of each name in a text, in text order."""
        words, first = text.folded, 0
        found: list[tuple[tuple[int, ...], bool]] = []
        while first < len(words):
            most = self._longest.get(words[first], 0)
            for last in range(min(len(words), first + most), first, -1):
                rows = self._rows.get(" ".join(words[first:last]))
                if rows is not None:
                    found.append((rows, any(text.capital[first:last])))
                    first = last - 1
                    break
            first += 1
        return found


def _says_something(words: Sequence[str]) -> bool:
    """Whether a name is informative: not only stop words, not one or two letters, not a number below 1000."""
    text = " ".join(words)
    return len(text) >= (4 if text.isdigit() else 3) and any(word not in STOP_WORDS for word in words)


# --- entities --------------------------------------------------------------------------------------


def entity_names(index: Index) -> NameTable:
    """The index's entities by name, by name without a final bracket, and by aliases that belong to only one entity."""

    def load(index: Index) -> NameTable:
        rows = index.entity_rows
        path = index.folder("extraction") / "profiles.parquet"  # older indexes have no profiles
        profiles = tables.read_table(path, tables.PROFILES) if path.exists() else tables.PROFILES.empty_table()
        named = (rows.get(normalise_name(name)) for name in profiles["name"].to_pylist())
        aliases = zip(named, profiles["aliases"].to_pylist())
        more = [(alias, row) for row, found in aliases if row is not None for alias in found]
        plain = [(short, row) for name, row in rows.items() if (short := _BRACKET.sub("", name)) != name]
        return NameTable([*rows.items(), *of_one(more + plain, rows)])

    return index.loaded("names of entities", load)


def of_one(names: Iterable[tuple[str, int]], taken: Container[str]) -> Iterator[tuple[str, int]]:
    """The further names that belong to only one row. taken: the first names, normalised."""
    rows: dict[str, set[int]] = defaultdict(set)
    for name, row in names:
        rows[normalise_name(name)].add(row)
    return ((name, row) for name, (row, *others) in rows.items() if not others and name not in taken)


def entity_seeds(table: NameTable, texts: Sequence[Words], counts: np.ndarray) -> list[dict[int, float]]:
    """Unscaled m of each text. counts: i64[N], the number of passages of each entity."""
    found = []
    for text in texts:
        weights: dict[int, float] = {}
        for rows, capital in table.found(text):
            for row in rows:
                weight = (1.0 if capital else COMMON) / (len(rows) * max(int(counts[row]), 1))
                weights[row] = max(weight, weights.get(row, 0.0))
        found.append(weights)
    return found


# --- titles ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Titles:
    """Passages by the words of their titles, whole and without a final bracket. hints: words in these brackets."""

    table: NameTable
    hints: dict[int, frozenset[str]]


def title_names(index: Index) -> Titles:
    """The titles of an index that at most MOST_PASSAGES passages share."""

    def load(index: Index) -> Titles:
        titles = index.passages["title"].to_pylist()
        shared = Counter(titles)
        names, hints = [], {}
        for passage, title in enumerate(titles):
            if title and shared[title] <= MOST_PASSAGES:
                names.append((title, passage))
                if bracket := _BRACKET.search(title):
                    names.append((title[: bracket.start()], passage))
                    hints[passage] = frozenset(words_of(bracket[1]).folded)
        return Titles(NameTable(names), hints)

    return index.loaded("names of titles", load)


def title_seeds(titles: Titles, texts: Sequence[Words]) -> list[dict[int, float]]:
    """Unscaled t of each text, for titles that it writes with a capital. Among titles that differ only in brackets,
    those whose bracket shares most words with the question count; if none shares any, those without a bracket."""
    found = []
    for text in texts:
        weights: dict[int, float] = {}
        for rows, capital in titles.table.found(text):
            if not capital:
                continue
            if len(rows) > 1:
                said = set(text.folded)
                fit = [(len(said & titles.hints.get(row, set())), row not in titles.hints) for row in rows]
                rows = tuple(row for row, of in zip(rows, fit) if of == max(fit))
            weights.update(dict.fromkeys(rows, 1 / len(rows)))
        found.append(weights)
    return found


def spread(lists: Sequence[Mapping[int, float]]) -> Listed:
    """The weights of each list, scaled to sum to 1 per row, and their rows; rows are padded with the first entry."""
    width = max(map(len, lists), default=0)
    rows, weights = np.zeros((len(lists), width), np.int64), np.zeros((len(lists), width))
    for row, weight, found in zip(rows, weights, lists):
        if found:
            row[:], row[: len(found)], weight[: len(found)] = next(iter(found)), list(found), list(found.values())
    return rows, scaled(weights)
