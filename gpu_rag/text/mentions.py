"""Find known names in texts: all of them by hashed spans, with offsets; or the longest ones in a question.

Names match whole words, in any case.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol

import numpy as np

from gpu_rag.text.name_hashes import SEPARATOR, NameHashes, codes_of
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.tokens import SINGLE_CHARACTER_SCRIPTS, STOP_WORDS

_BLOCK_CHARS = 1 << 18
_BLOCK_NAMES = 1 << 16
_ASCII_WORD = re.compile(r"[a-z0-9_]+")
_NOT_ASCII = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")  # with the character before it, which may have a mark


@dataclass(frozen=True)
class Mentions:
    """T mentions, sorted by (text, start, end, name).

    name, text: i32[T], positions in the given names and texts; start, end: i32[T], the mention is
    `texts[text][start:end]`, in characters.
    """

    name: np.ndarray
    text: np.ndarray
    start: np.ndarray
    end: np.ndarray


def ascii_words(texts: Iterable[str]) -> Iterator[list[str]]:
    """The runs of a-z, 0-9 and "_" in each text, after folding. A text in ASCII has all runs of a name that occurs in
    it, and any text has all runs of a name in ASCII that occurs in it."""
    return (_ASCII_WORD.findall(_fold(text).text) for text in texts)


class MentionFinder:
    """A table of `names`, made once; see `NameHashes` for its memory. Names are read once, in blocks."""

    def __init__(self, names: Iterable[str]):
        self._table, names = NameHashes(), iter(names)
        hashes, members, n = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)], 0
        while block := list(itertools.islice(names, _BLOCK_NAMES)):
            folds = [_fold(name).text.strip(" ") for name in block]
            rows = [row for row, folded in enumerate(folds) if any(map(str.isalnum, folded))]
            hashes.append(self._table.add([folds[row] for row in rows], _word_starts))
            members.append(np.array(rows, np.int32) + n)
            n += len(block)
        self._table.close()
        key = np.searchsorted(self._table.hashes, np.concatenate(hashes))
        self._members = np.concatenate(members)[np.argsort(key, kind="stable")]
        self._sizes = np.bincount(key, minlength=len(self._table.hashes))
        self._starts = np.cumsum(self._sizes) - self._sizes

    def find(self, texts: Sequence[str]) -> Mentions:
        """All whole-word occurrences of all names in `texts`; overlapping ones are all kept. Deterministic.

        Both sides are compared after NFKC, casefold and collapsing white space. Names that become equal are each
        reported. A name without a letter or digit has no mention.

        >>> found = MentionFinder(["york", "new york"]).find(["In New  York."])
        >>> list(zip(found.name.tolist(), found.start.tolist(), found.end.tolist()))
        [(1, 3, 12), (0, 8, 12)]
        """
        empty = np.zeros(0, dtype=np.int32)
        parts = [(empty, empty, empty, empty)]
        if self._members.size:
            parts.extend(self._find_block(first, block) for first, block in _blocks(texts))
        name, text, start, end = (np.concatenate(column) for column in zip(*parts))
        order = np.lexsort((name, end, start, text))
        return Mentions(name[order], text[order], start[order], end[order])

    def _find_block(self, first: int, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(name, text, start, end) of the mentions in `texts`; `first` is the number of the first text."""
        folds = [_fold(text) for text in texts]
        joined = SEPARATOR.join(fold.text for fold in folds)
        positions = np.flatnonzero(_word_starts(joined))
        hits = self._table.find(codes_of(joined), positions)
        key, start, end = hits.name, positions[hits.first], positions[hits.last]

        lengths = np.array([len(fold.text) for fold in folds], dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths + len(SEPARATOR))])
        text = np.searchsorted(offsets, start, side="right") - 1
        start, end = start - offsets[text], end - offsets[text]
        start, end, keep = _to_original(folds, text, start, end)
        key, text, start, end = key[keep], text[keep], start[keep], end[keep]

        times = self._sizes[key]  # names that fold to one key
        within = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        name = self._members[np.repeat(self._starts[key], times) + within]
        spread = [np.repeat(column, times).astype(np.int32) for column in (text + first, start, end)]
        return name, spread[0], spread[1], spread[2]


_WITHOUT_SPACES = (("\u3040", "\u30ff"), ("\u3400", "\u9fff"))  # kana and Han


def _joins(character: str) -> bool:
    """Whether a character joins a word: letters, digits, marks, "_"; not Han and kana, written without spaces."""
    if any(first <= character <= last for first, last in _WITHOUT_SPACES):
        return False
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


@cache
def _joined_table(limit: int) -> np.ndarray:
    """Whether each code point joins a word: bool[limit]."""
    joined = np.char.isalnum(np.arange(limit, dtype=np.uint32).view("U1"))
    others = np.flatnonzero(~joined)
    joined[others] = [kind[0] == "M" for kind in map(unicodedata.category, map(chr, others.tolist()))]
    joined[ord("_")] = True
    for first, last in _WITHOUT_SPACES:
        joined[ord(first) : ord(last) + 1] = False
    return joined


def _are_joined(codes: np.ndarray) -> np.ndarray:
    """Whether each code point joins a word. The rare ones from 0x10000 on are looked up one by one."""
    limit = 0x3000 if codes.max(initial=0) < 0x3000 else 0x10000
    joined: np.ndarray = _joined_table(limit)[np.minimum(codes, limit - 1)]
    rare = np.flatnonzero(codes >= limit)
    joined[rare] = [_joins(chr(code)) for code in codes[rare].tolist()]
    return joined


def _word_starts(text: str) -> np.ndarray:
    """bool[len + 1]: whether a word may begin or end before each character; not between two characters that join."""
    codes = codes_of(text)
    joined = _are_joined(codes)
    boundary = np.ones(codes.size + 1, dtype=bool)
    boundary[1:-1] = ~(joined[1:] & joined[:-1])
    return boundary


# --- folding, with original offsets ------------------------------------------------------------------


@dataclass(frozen=True)
class _Folded:
    """A folded text. Character i comes from original[start[i]:end[i]]; None: from original[i:i+1]."""

    text: str
    start: np.ndarray | None = None
    end: np.ndarray | None = None


def _fold(text: str) -> _Folded:
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        folded = text.casefold()
        # casefold never shortens a character, so none was expanded; none may join a following mark now
        if len(folded) == len(text) and (text.isascii() or unicodedata.is_normalized("NFKC", folded)):
            return _collapse_spaces(_Folded(folded))
    return _collapse_spaces(_fold_clusters(text))


def _collapse_spaces(folded: _Folded) -> _Folded:
    """Replace each run of white space by one " "."""
    words = folded.text.split()
    n_single = folded.text.count(" ")
    if len(words) == n_single + 1 and sum(map(len, words)) + n_single == len(folded.text):
        return folded
    codes = codes_of(folded.text).copy()
    space = np.isin(codes, _spaces())
    codes[space] = ord(" ")
    keep = np.ones(codes.size, dtype=bool)
    keep[1:] = ~(space[1:] & space[:-1])
    first = np.flatnonzero(keep)
    last = np.append(first[1:], codes.size) - 1
    text = codes[keep].tobytes().decode("utf-32-le", "surrogatepass")
    if folded.start is None or folded.end is None:
        return _Folded(text, first, last + 1)
    return _Folded(text, folded.start[first], folded.end[last])


@cache
def _spaces() -> np.ndarray:
    return np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)


def _fold_clusters(text: str) -> _Folded:
    """Fold each base character together with its marks, and record the original offsets."""
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    done = 0
    for span in _NOT_ASCII.finditer(text):
        pieces.append(text[done : span.start()].casefold())
        starts.extend(range(done, span.start()))
        ends.extend(range(done + 1, span.start() + 1))
        for start, end in _clusters(text, *span.span()):
            piece = _fold_cluster(text[start:end])
            pieces.append(piece)
            starts.extend([start] * len(piece))
            ends.extend([end] * len(piece))
        done = span.end()
    pieces.append(text[done:].casefold())
    starts.extend(range(done, len(text)))
    ends.extend(range(done + 1, len(text) + 1))
    return _Folded("".join(pieces), np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))


@lru_cache(maxsize=65536)
def _fold_cluster(cluster: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", cluster).casefold())


def _clusters(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The spans of base characters with their marks in text[start:stop]."""
    for i in range(start + 1, stop):
        c = text[i]
        if c < "\u0300" or not (unicodedata.combining(c) or "\u1160" <= c <= "\u11ff"):  # or a Hangul vowel or final
            yield start, i
            start = i
    yield start, stop


def _to_original(
    folds: Sequence[_Folded], text: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets in the original texts, and whether each span has whole characters (not the 2 of a folded 1/2)."""
    start, end, keep = start.copy(), end.copy(), np.ones(start.size, dtype=bool)
    for number in np.unique(text).tolist():
        fold = folds[number]
        if fold.start is None or fold.end is None:
            continue
        rows = np.flatnonzero(text == number)
        first, last = start[rows], end[rows] - 1
        before, after = np.maximum(first - 1, 0), np.minimum(last + 1, fold.start.size - 1)
        cut_start = (first > 0) & (fold.start[before] == fold.start[first])
        cut_end = (last + 1 < fold.start.size) & (fold.start[after] == fold.start[last])
        keep[rows] = ~(cut_start | cut_end)
        start[rows], end[rows] = fold.start[first], fold.end[last]
    return start, end, keep


def _blocks(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Groups of consecutive texts of about 256 kB each, with the number of the first text."""
    first = n_chars = 0
    for i, text in enumerate(texts):
        n_chars += len(text)
        if n_chars >= _BLOCK_CHARS:
            yield first, texts[first : i + 1]
            first, n_chars = i + 1, 0
    if first < len(texts):
        yield first, texts[first:]


MAX_WORDS = 8
_LETTER = rf"[^\W{SINGLE_CHARACTER_SCRIPTS}]"
_WORD = re.compile(rf"[{SINGLE_CHARACTER_SCRIPTS}]|{_LETTER}+(?:['’.\-&]{_LETTER}+)*")
_POSSESSIVE = re.compile(r"['’]s$")


class Ascending(Protocol):
    """Distinct texts in ascending order."""

    def first_from(self, text: str) -> tuple[int, str]:
        """(place, text) of the first of them that is not before `text`; (their number, "") if there is none."""
        ...


def mentioned_names(text: str, known: Ascending) -> list[int]:
    """The places in `known`, normalised names, of those that occur in `text`, ascending.

    At each word the longest name of at most MAX_WORDS words is taken, and the words inside it are skipped. A possessive
    's at its end is ignored. Names of stop words only, of digits only, or of one or two letters never count. Each
    character of a script without spaces is a word, and two of them are a name.
    """
    flat = normalise_name(text)
    words = [match.span() for match in _WORD.finditer(flat)]
    places: set[int] = set()
    first = 0
    while first < len(words):
        length, place = _longest(flat, words[first : first + MAX_WORDS], known)
        if length:
            places.add(place)
        first += max(length, 1)
    return sorted(places)


def _longest(flat: str, words: list[tuple[int, int]], known: Ascending) -> tuple[int, int]:
    """(number of words, place) of the longest name that begins at the first word; (0, 0) if none does."""
    best = 0, 0
    for length, (_, end) in enumerate(words, 1):
        span = flat[words[0][0] : end]
        next_name = known.first_from(span)
        owner = _POSSESSIVE.sub("", span)
        of_owner = next_name if owner == span else known.first_from(owner)
        for name, (place, same) in ((span, next_name), (owner, of_owner)):
            if same == name and _says_something(name):
                best = length, place
                break
        if not next_name[1].startswith(span):  # no longer name begins so
            break
    return best


def _says_something(name: str) -> bool:
    words = _WORD.findall(name)
    if (len(name) < 3 and len(words) < 2) or name.replace(" ", "").isdigit():
        return False
    return any(word not in STOP_WORDS for word in words)
