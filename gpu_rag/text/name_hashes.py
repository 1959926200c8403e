"""Names as hashes of their prefixes: array operations alone find which spans of a text are one of millions of names.

A span is extended boundary by boundary while it is a prefix of a name. The hash of characters c_i .. c_(j-1) is
    h(i, j) = mix(sum of m(c_t) B^(t - i))  modulo 2^64, for an odd B and a mixed code m(c) of each character,
so prefix sums over the text give the hash of every span. A span with the hash of a name is also compared with the name
character by character, so a collision never becomes a mention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpu_rag.errors import BadInput

_BASE = 0x9E3779B97F4A7C15  # odd: it has an inverse modulo 2^64
_INVERSE = pow(_BASE, -1, 1 << 64)
_ODD = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
SEPARATOR = "\n"  # separates names, and texts; no folded text contains it


def _mixed(values: np.ndarray) -> np.ndarray:
    """Each u64 with its bits spread over all 64, one to one."""
    values = (values ^ (values >> _HALF)) * _ODD
    return (values ^ (values >> _HALF)) * _ODD


@lru_cache(maxsize=4)
def _powers(n: int, base: int) -> np.ndarray:
    """base^0, base^1, ... modulo 2^64: u64[n]."""
    powers = np.full(n, base, np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)


def codes_of(text: str) -> np.ndarray:
    """The code point of each character: u32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


class Spans:
    """Hashes of the spans between given positions of a text. codes: u32[n]; positions: ascending, 0 to n."""

    def __init__(self, codes: np.ndarray, positions: np.ndarray):
        size = 1 << max(codes.size, 1).bit_length()  # few distinct sizes, because powers are cached
        terms = _mixed(codes.astype(np.uint64) + np.uint64(1)) * _powers(size, _BASE)[: codes.size]
        sums = np.zeros(codes.size + 1, np.uint64)
        np.cumsum(terms, out=sums[1:])
        self._sums, self._scale = sums[positions], _powers(size, _INVERSE)[np.minimum(positions, size - 1)]

    def hashes(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The hash from position number `first` to position number `last`: u64."""
        return _mixed((self._sums[last] - self._sums[first]) * self._scale[first])


@dataclass(frozen=True)
class Hits:
    """Spans that are names. name: i64, number of the distinct name; first, last: position numbers."""

    name: np.ndarray
    first: np.ndarray
    last: np.ndarray


class NameHashes:
    """A table of distinct names. Memory: 4 bytes a character, and 16 bytes for each distinct prefix that ends at a
    boundary.

    Built block by block with `add`, then `close`.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, names: Sequence[str], boundaries: Callable[[str], np.ndarray]) -> np.ndarray:
        """Add names without line breaks. boundaries(text): bool[len + 1], positions where a name may begin, end or be
        cut; true beside a line break. Returns one u64 hash for each name; `close` verifies the hashes by characters."""
        text = SEPARATOR.join(names)
        codes, boundary = codes_of(text), boundaries(text)
        lengths = np.array([len(name) for name in names], np.int64)
        ends = np.cumsum(lengths + len(SEPARATOR)) - len(SEPARATOR)
        starts = ends - lengths
        if not starts.size:
            return np.zeros(0, np.uint64)
        positions = np.flatnonzero(boundary)
        spans = Spans(codes, positions)
        first, last = np.searchsorted(positions, starts), np.searchsorted(positions, ends)
        whole = spans.hashes(first, last)
        _, once = np.unique(whole, return_index=True)
        owner = np.searchsorted(starts, positions, side="left") - 1  # the name that begins before a position
        inside = np.flatnonzero((owner >= 0) & (positions <= ends[np.maximum(owner, 0)]))
        prefixes = np.unique(spans.hashes(first[owner[inside]], inside))
        lengths = (ends - starts)[once]
        self._blocks.append((prefixes, whole[once], lengths, codes[_ragged(starts[once], lengths)]))
        return whole

    def close(self) -> None:
        """Make the table ready for search. Raises BadInput if two names have the same hash."""
        empty = np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint32)
        parts = list(zip(*(self._blocks or [empty])))
        self._blocks = []
        self._prefixes = np.unique(np.concatenate(parts[0]))
        hashes, lengths, codes = (np.concatenate(part) for part in parts[1:])
        starts = np.cumsum(lengths) - lengths
        self.hashes, once, same = np.unique(hashes, return_index=True, return_inverse=True)
        _refuse_collisions(codes, starts, lengths, once[same])
        self._lengths, self._starts, self._codes = lengths[once], starts[once], codes
        self._name = np.full(len(self._prefixes), -1, np.int32)
        self._name[np.searchsorted(self._prefixes, self.hashes)] = np.arange(len(self.hashes), dtype=np.int32)
        bits = max(len(self._prefixes).bit_length(), 1)
        self._shift = np.uint64(64 - bits)
        edges = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self._bucket = np.append(np.searchsorted(self._prefixes, edges), len(self._prefixes)).astype(np.int32)

    def find(self, codes: np.ndarray, positions: np.ndarray) -> Hits:
        """All spans between two positions of a text that are names, in no order."""
        spans, first = Spans(codes, positions), np.arange(len(positions))
        names, firsts, lasts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        step = 0
        while first.size:
            step += 1
            first = first[first + step < len(positions)]
            row = self._rows(spans.hashes(first, first + step))
            first, row = first[row >= 0], row[row >= 0]
            name = self._name[row]
            is_name = name >= 0
            names.append(name[is_name].astype(np.int64))
            firsts.append(first[is_name])
            lasts.append(first[is_name] + step)
        name, begin, end = (np.concatenate(part) for part in (names, firsts, lasts))
        same = self._equal(codes, positions[begin], positions[end], name)
        return Hits(name[same], begin[same], end[same])

    def _rows(self, hashes: np.ndarray) -> np.ndarray:
        """The row of each hash among the prefixes, i64; -1 if it is not there."""
        bucket = (hashes >> self._shift).astype(np.int64)
        row, end = self._bucket[bucket].astype(np.int64), self._bucket[bucket + 1]
        rows = np.full(len(hashes), -1, np.int64)
        open_ = np.flatnonzero(row < end)
        while open_.size:
            prefix, wanted = self._prefixes[row[open_]], hashes[open_]
            rows[open_[prefix == wanted]] = row[open_[prefix == wanted]]
            open_ = open_[prefix < wanted]
            row[open_] += 1
            open_ = open_[row[open_] < end[open_]]
        return rows

    def _equal(self, codes: np.ndarray, start: np.ndarray, end: np.ndarray, name: np.ndarray) -> np.ndarray:
        """Whether codes[start:end] are the characters of the name: bool."""
        same = self._lengths[name] == end - start
        rows = np.flatnonzero(same)
        lengths = (end - start)[rows]
        differs = codes[_ragged(start[rows], lengths)] != self._codes[_ragged(self._starts[name[rows]], lengths)]
        same[np.repeat(rows, lengths)[differs]] = False
        return same


def _ragged(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The concatenation of start, start + 1, ... for each run."""
    total = int(lengths.sum())
    return np.arange(total) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)


def _refuse_collisions(codes: np.ndarray, starts: np.ndarray, lengths: np.ndarray, same_as: np.ndarray) -> None:
    """Raise BadInput if a name differs from the name that has its hash."""
    rows = np.flatnonzero(same_as != np.arange(len(same_as)))
    wrong = np.flatnonzero(lengths[rows] != lengths[same_as[rows]])
    if not wrong.size:
        n = lengths[rows]
        differs = codes[_ragged(starts[rows], n)] != codes[_ragged(starts[same_as[rows]], n)]
        wrong = np.repeat(np.arange(len(rows)), n)[differs]
    if wrong.size:
        pair = rows[wrong[0]], same_as[rows[wrong[0]]]
        texts = [codes[starts[i] : starts[i] + lengths[i]].tobytes().decode("utf-32-le", "replace") for i in pair]
        raise BadInput("two names have one hash", given=texts, expected="different hashes", do="leave one of them out")
