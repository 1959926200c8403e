"""Tables of names to find in a text. A name is known by a hash of its folded words; arrays can be mapped from a file.

Names and texts are compared word by word, without case, accents and punctuation, so that "Bluetooth's" matches
Bluetooth and "12-Mile" matches "12- Mile". At each word the longest name counts, and the words in it are skipped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gpu_rag.index.names import changed, normalised, one_array
from gpu_rag.index.tables import narrow, starts_of
from gpu_rag.text.tokens import SINGLE_CHARACTER_SCRIPTS, STOP_WORDS

NAMES = "names.safetensors"  # the file of a table in a stage
_WORD = re.compile(rf"[{SINGLE_CHARACTER_SCRIPTS}]|[^\W_{SINGLE_CHARACTER_SCRIPTS}]+")
_BLOCK = 1 << 16  # names hashed at a time


@dataclass(frozen=True)
class Words:
    """The folded words of a text, and which of them begin with a capital or a digit. All count as capitalised if no
    word after the first has a capital."""

    folded: list[str]
    capital: list[bool]


def words_of(text: str) -> Words:
    """The words of a text: runs of letters and digits, and each character of a script without spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        for mark in filter(unicodedata.combining, {*text}):
            text = text.replace(mark, "")
    words = _WORD.findall(text)
    cased = any(word[0].isupper() for word in words[1:])
    return Words([word.casefold() for word in words], [not (cased and word[0].islower()) for word in words])


class NameTable:
    """Rows by the words of their names, to find these names in a question. Made by `of`, or from the arrays of a file.

    Names are known by hashes of 64 bits of their folded words; two of 10^7 names share one with a probability of 3e-6.
    arrays: keys: u64[K], these hashes, ascending; counts: u8|u16|u32[K], the number of rows of each; rows: i32[R], of
    all names in turn; begins: u64[W], hashes of first words, ascending; longest: u8|u16[W], the most words of a name
    that begins so. At most 22 bytes a name, and 8 in memory.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = dict(arrays)
        self._keys, counts, self._rows, self._begins, self._longest = (arrays[name] for name in ARRAYS)
        self._starts = starts_of(counts)

    @classmethod
    def of(cls, names: pa.Array | pa.ChunkedArray, rows: np.ndarray) -> NameTable:
        """The table of N names and their rows, integers [N]. Rows of one name are found in the given order, each
        once. Names that say nothing, such as stop words, are left out."""
        keys = _folded(one_array(names))
        kept = np.flatnonzero(_are_telling(keys))
        keys, rows = keys.take(pa.array(kept)), rows[kept].astype(np.int64)
        hashes, begins, counts = (np.concatenate(part) for part in zip(_NONE, *_hashed(keys)))
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        first = np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]
        _, once = np.unique((np.cumsum(first) - 1) << 32 | rows[order], return_index=True)
        once.sort()
        starts = np.append(np.searchsorted(once, np.flatnonzero(first)), len(once))
        begins, group = np.unique(begins, return_inverse=True)
        longest = np.zeros(len(begins), np.int32)
        np.maximum.at(longest, group, counts)
        rows = rows[order][once].astype(np.int32)
        arrays = hashes[first], narrow(np.diff(starts)), rows, begins, narrow(longest)
        return cls(dict(zip(ARRAYS, arrays)))

    def names_in(self, texts: Sequence[Words]) -> list[list[tuple[tuple[int, ...], bool]]]:
        """(rows, whether it has a capital) of each name in each text, in text order."""
        names: list[list[tuple[tuple[int, ...], bool]]] = [[] for _ in texts]
        words = [word for text in texts for word in text.folded]
        if not words or not len(self._rows):
            return names
        sizes = np.array([len(text.folded) for text in texts])
        text_of, ends = np.repeat(np.arange(len(texts)), sizes), np.repeat(np.cumsum(sizes), sizes)
        place = _places(self._begins, _hashes(words))
        longest = np.where(place >= 0, np.minimum(self._longest[place], ends - np.arange(len(words))), 0).tolist()
        spans = [(start, last) for start, size in enumerate(longest) for last in range(start + size, start, -1)]
        key = _places(self._keys, _hashes([" ".join(words[start:last]) for start, last in spans]))
        capital, first = [is_capital for text in texts for is_capital in text.capital], 0
        for span in np.flatnonzero(key >= 0).tolist():
            start, last = spans[span]
            if start >= first:
                rows = self._rows[self._starts[key[span]] : self._starts[key[span] + 1]]
                names[text_of[start]].append((tuple(rows.tolist()), any(capital[start:last])))
                first = last
        return names


ARRAYS = ("keys", "counts", "rows", "begins", "longest")
_NONE = tuple(np.zeros(0, kind) for kind in (np.uint64, np.uint64, np.int32))


def _hashed(keys: pa.LargeStringArray) -> Iterator[tuple[np.ndarray, ...]]:
    """(the hash of each key, the hash of its first word, the number of its words), a block of keys at a time."""
    for start in range(0, len(keys), _BLOCK):
        block = keys.slice(start, _BLOCK)
        first = pc.list_element(pc.split_pattern(block, " ", max_splits=1), 0).dictionary_encode()
        begins = _hashes(first.dictionary.to_pylist())[first.indices.to_numpy()]
        yield _hashes(block.to_pylist()), begins, pc.count_substring(block, " ").to_numpy().astype(np.int32) + 1


def _hashes(texts: Sequence[str]) -> np.ndarray:
    """u64[n]: the hash of each text."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, texts)), np.uint64, len(texts))


def _places(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """i64: the place of each value among ascending values, at least one; -1 where it is not there."""
    place = np.searchsorted(known, wanted)
    place[place == len(known)] = 0
    return np.where(known[place] == wanted, place, -1)


def _folded(names: pa.LargeStringArray) -> pa.LargeStringArray:
    """The folded words of each name, joined by spaces: array operations for ASCII names, one by one for others."""
    keys = pc.utf8_lower(names)
    odd = pc.match_substring_regex(keys, "[^0-9a-z ]|^ |  | $")
    plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(keys.filter(odd), "[^0-9a-z]+", " "))
    keys = pc.replace_with_mask(keys, odd, plain)
    return changed(keys, names, pc.invert(pc.string_is_ascii(names)), lambda name: " ".join(words_of(name).folded))


_SILENT = f"^(?:(?:{'|'.join(map(re.escape, sorted(STOP_WORDS)))})(?: |$))*$"


def _are_telling(keys: pa.LargeStringArray) -> np.ndarray:
    """Whether names are informative: not only stop words, not one or two letters, not a number below 1000."""
    least = pc.if_else(pc.utf8_is_digit(keys), 4, 3)
    informative = pc.and_not(pc.greater_equal(pc.utf8_length(keys), least), pc.match_substring_regex(keys, _SILENT))
    return informative.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


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
