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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.index.names import changed, normalised, one_array, rows_of
from gpu_rag.program.titles import BRACKET, telling_titles, without_brackets
from gpu_rag.program.walk import Listed, scaled
from gpu_rag.text.tokens import STOP_WORDS

COMMON = 0.1  # weight of a name without a capital in the question
_WORD = re.compile(r"[^\W_]+")


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
    """Rows by the words of their names, which a question is searched for. Memory: at most 44 bytes a name.

    names: N texts; rows: integers [N]. Rows of one name are found in the given order, each once. A name is known by a
    hash of 128 bits of its folded words; names are sorted by it.
    """

    def __init__(self, names: pa.Array | pa.ChunkedArray, rows: np.ndarray) -> None:
        keys = _folded(one_array(names))
        kept = np.flatnonzero(_say_something(keys))
        texts, rows = keys.take(pa.array(kept)).to_pylist(), rows[kept].astype(np.int64)
        hashes = _hashes(texts)
        order = np.lexsort((hashes[:, 0], hashes[:, 1]))
        hashes = hashes[order]
        first = np.append(True, (hashes[1:] != hashes[:-1]).any(1))[: len(hashes)]
        _, once = np.unique((np.cumsum(first) - 1) << 32 | rows[order], return_index=True)
        once.sort()
        self._low, self._high = np.ascontiguousarray(hashes[first].T)
        self._rows = rows[order][once]
        self._starts = np.append(np.searchsorted(once, np.flatnonzero(first)), len(once))
        begins = _hashes([text.partition(" ")[0] for text in texts])[:, 1]
        self._begins, at = np.unique(begins, return_inverse=True)  # first words, and the most words of a name after it
        self._longest = np.zeros(len(self._begins), np.int64)
        np.maximum.at(self._longest, at, [text.count(" ") + 1 for text in texts])

    def found(self, text: Words) -> list[tuple[tuple[int, ...], bool]]:
        """(rows, whether it has a capital) of each name in a text, in text order."""
        words, first = text.folded, 0
        if not words or not len(self._rows):
            return []
        at = _places(self._begins, _hashes(words)[:, 1])
        most = np.where(at >= 0, self._longest[at], 0)
        ends = np.minimum(np.arange(len(words)) + most, len(words)).tolist()
        spans = [(start, last) for start, end in enumerate(ends) for last in range(end, start, -1)]
        known = _hashes([" ".join(words[start:last]) for start, last in spans])
        key = _places(self._high, known[:, 1])
        key[self._low[key] != known[:, 0]] = -1
        found: list[tuple[tuple[int, ...], bool]] = []
        for span in np.flatnonzero(key >= 0).tolist():
            start, last = spans[span]
            if start >= first:
                rows = self._rows[self._starts[key[span]] : self._starts[key[span] + 1]]
                found.append((tuple(rows.tolist()), any(text.capital[start:last])))
                first = last
        return found


def _hashes(texts: Sequence[str]) -> np.ndarray:
    """u64[n, 2]: the low and high half of the hash of each text."""
    digests = b"".join([xxhash.xxh3_128_digest(text.encode()) for text in texts])
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)[:, ::-1]


def _places(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """i64: the place of each value among ascending values, at least one; -1 where it is not there."""
    at = np.searchsorted(known, wanted)
    at[at == len(known)] = 0
    return np.where(known[at] == wanted, at, -1)


def _folded(names: pa.LargeStringArray) -> pa.LargeStringArray:
    """The folded words of each name, joined by spaces: array operations for ASCII names, one by one for others."""
    keys = pc.utf8_trim_whitespace(pc.replace_substring_regex(pc.utf8_lower(names), "[^0-9a-z]+", " "))
    return changed(keys, names, pc.invert(pc.string_is_ascii(names)), lambda name: " ".join(words_of(name).folded))


_SILENT = f"^(?:(?:{'|'.join(map(re.escape, sorted(STOP_WORDS)))})(?: |$))*$"


def _say_something(keys: pa.LargeStringArray) -> np.ndarray:
    """Whether names are informative: not only stop words, not one or two letters, not a number below 1000."""
    least = pc.if_else(pc.utf8_is_digit(keys), 4, 3)
    told = pc.and_not(pc.greater_equal(pc.utf8_length(keys), least), pc.match_substring_regex(keys, _SILENT))
    return told.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


# --- entities --------------------------------------------------------------------------------------


def entity_names(index: Index) -> NameTable:
    """The index's entities by name, by name without a final bracket, and by aliases that belong to only one entity."""

    def load(index: Index) -> NameTable:
        names = one_array(index.entities["id"])
        profiles = tables.PROFILES.empty_table()  # older indexes have no profiles
        if "profiles.parquet" in index.manifest.stages["extraction"].files:
            profiles = index.table("extraction", "profiles.parquet", tables.PROFILES)
        named = rows_of(normalised(one_array(profiles["name"])), names)
        aliases = profiles["aliases"].combine_chunks()
        row = named[pc.list_parent_indices(aliases).to_numpy()]
        bracketed, short = without_brackets(names)
        more = one_array(pa.chunked_array([one_array(aliases.flatten()).filter(pa.array(row >= 0)), short]))
        also, rows = of_one(more, np.concatenate([row[row >= 0], bracketed]), names)
        return NameTable(pa.chunked_array([names, also]), np.concatenate([np.arange(len(names)), rows]))

    return index.loaded("names of entities", load)


def of_one(names: pa.Array, rows: np.ndarray, taken: pa.Array) -> tuple[pa.LargeStringArray, np.ndarray]:
    """The further names, normalised, that belong to only one row, and these rows. taken: the first names,
    normalised."""
    encoded = normalised(names).dictionary_encode()
    code = encoded.indices.to_numpy().astype(np.int64)
    pairs, first = np.unique(code << 32 | rows, return_index=True)
    alone = np.bincount(pairs >> 32, minlength=len(encoded.dictionary)) == 1
    alone &= ~pc.is_in(encoded.dictionary, value_set=taken).to_numpy(zero_copy_only=False)
    kept = np.sort(first[alone[pairs >> 32]])
    return encoded.dictionary.take(pa.array(code[kept])), rows[kept]


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
    """Passages by the words of their titles, in full and without a final bracket. titles: of all passages."""

    table: NameTable
    titles: pa.ChunkedArray

    def hints(self, passage: int) -> frozenset[str] | None:
        """The words in the final bracket of a passage's title; None if it has no bracket."""
        bracket = BRACKET.search(self.titles[passage].as_py())
        return frozenset(words_of(bracket[1]).folded) if bracket else None


def title_names(index: Index) -> Titles:
    """The titles of an index that at most MOST_PASSAGES passages share."""

    def load(index: Index) -> Titles:
        passages, titles = telling_titles(index)
        bracketed, short = without_brackets(titles)
        rows = np.concatenate([passages, passages[bracketed]])
        order = np.argsort(rows, kind="stable")
        names = one_array(pa.chunked_array([titles, short])).take(pa.array(order))
        return Titles(NameTable(names, rows[order]), index.passages["title"])

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
                hints = [titles.hints(row) for row in rows]
                fit = [(len(said & (words or set())), words is None) for words in hints]
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
