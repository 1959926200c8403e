"""BM25 over passages: built in streams, and scored from the counts of words. Order, ties and files are exact.

Formula (Lucene's variant), for a query token t, a passage d of |d| tokens, mean length L, df passages that have t:
    score(t, d) = ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * |d| / L))
A token that the query has twice counts twice. Source: Robertson and Zaragoza, "The Probabilistic Relevance
Framework: BM25 and Beyond" (2009), with the idf of Apache Lucene, which is never negative.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, repeat
from operator import lt
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa

from gpu_rag.errors import BadInput, IndexCorrupt, IndexMismatch, StorageError
from gpu_rag.text.language import ENGLISH, language_among
from gpu_rag.text.tokens import TOKENS_VERSION, stems, stop_words, words_of

ARRAYS_FILE = "bm25.safetensors"
VOCABULARY_FILE = "bm25.json.zst"
_FORMAT = 3
_BLOCK = 2048  # texts whose tokens are in memory as Python objects at once


def _query_tokens(query: str, *languages: str) -> tuple[str, ...]:
    """The tokens of a query over texts in some languages, in its order, with repeats."""
    return tuple(token for tokens in _tokens_of_words(query, *languages) for token in tokens)


@lru_cache(maxsize=1 << 12)  # a question is searched for in several tables, and by several methods
def _tokens_of_words(query: str, *languages: str) -> tuple[tuple[str, ...], ...]:
    """The tokens of each word of a query, without stop words: different ones in the order of the languages."""
    own = language_among(query, languages)
    words = [word for word in words_of(query) if word not in stop_words(own)]
    return tuple(tuple(dict.fromkeys(tokens)) for tokens in zip(*(stems(words, language) for language in languages)))


class Bm25:
    """A BM25 index of N passages, in memory. Build it with `Bm25.build`, or read a saved one with `Bm25.load`.

    Passage ids are positions in the given texts. The index is immutable after building, so threads may share it. A
    query loses the stop words of the likeliest of the index's languages.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        arrays: dict[str, np.ndarray],
        n: int,
        k1: float,
        b: float,
        languages: Sequence[str] = (ENGLISH,),
        whole: Whole | None = None,
    ):
        """tokens: V, sorted; arrays: frequency u8|u16|u32[P], indices i32[P], indptr i64[V+1], one list of (passage,
        how often it has the token) for each token, passages ascending, and lengths u8|u16|u32[N], of the passages in
        tokens; n: number of passages; languages: languages of the passages, the commonest first. whole: statistics of
        the words, by default of these passages."""
        self.tokens, self.arrays, self.n, self.k1, self.b, self.languages = tokens, arrays, n, k1, b, languages
        self._whole = whole or Whole(n, np.diff(arrays["indptr"]), arrays["lengths"].mean() if n else 0.0)
        self._longer = k1 * ((1 - b) + b * arrays["lengths"] / max(self._whole.length, 1e-9))  # f64[N]

    @classmethod
    def build(
        cls,
        texts: Iterable[str],
        k1: float = 1.2,
        b: float = 0.75,
        languages: Sequence[str] = (ENGLISH,),
        language_of_each: Iterable[str] | None = None,
    ) -> Bm25:
        """Index `texts` (N passages; N = 0 and passages without tokens are allowed). They are read once, in blocks.

        languages: ISO 639 codes, the commonest first; language_of_each: one of them for each text, the first if absent.
        k1: > 0, how soon repeated words stop counting; b: 0..1, how strongly long passages are discounted.
        Deterministic: token ids follow the sorted tokens. Memory: 40 bytes for each posting, and the vocabulary. Raises
        BadInput for k1 or b out of range.
        """
        each = repeat(languages[0]) if language_of_each is None else language_of_each
        return cls.of(count_words(texts, languages=each), k1, b, languages)

    @classmethod
    def of(cls, counts: Counts, k1: float = 1.2, b: float = 0.75, languages: Sequence[str] = (ENGLISH,)) -> Bm25:
        """The index of passages whose tokens are counted. Raises BadInput as `build`."""
        if not (0 < k1 < float("inf") and 0 <= b <= 1):
            raise BadInput(
                "BM25 parameters are out of range", given=f"k1={k1}, b={b}", expected="k1 > 0 and 0 <= b <= 1"
            )
        lengths = np.bincount(counts.indices, counts.frequency, counts.n).astype(np.int64)
        arrays = {"frequency": narrow(counts.frequency), "indices": counts.indices, "indptr": counts.indptr}
        return cls(counts.tokens, {**arrays, "lengths": narrow(lengths)}, counts.n, k1, b, languages)

    @property
    def counts(self) -> Counts:
        """The counts that it was made of."""
        frequency = self.arrays["frequency"].astype(np.int32)
        return Counts(self.tokens, self.arrays["indices"], frequency, self.arrays["indptr"], self.n)

    def part(self, rows: np.ndarray) -> Bm25:
        """The index of some passages (ascending rows) with the word statistics of all, so that scores do not change."""
        number = np.full(self.n, -1, np.int32)
        number[rows] = np.arange(len(rows), dtype=np.int32)
        indices = number[self.arrays["indices"]]
        stays = indices >= 0
        n_before = np.concatenate([[0], np.cumsum(stays)]).astype(np.int64)
        indptr = n_before[self.arrays["indptr"]]
        arrays = {"frequency": self.arrays["frequency"][stays], "indices": indices[stays], "indptr": indptr}
        arrays["lengths"] = self.arrays["lengths"][rows]
        return Bm25(self.tokens, arrays, len(rows), self.k1, self.b, self.languages, self._whole)

    def scores(self, query: str) -> np.ndarray:
        """The score of every passage for `query`: f32[N], >= 0; 0 if no token is shared."""
        scores = np.zeros(self.n, np.float32)
        for token in self.ids(query):
            passages, part = self.postings(token)
            scores[passages] += part
        return scores

    def postings(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """(passages i32, ascending, that have a token; what it adds to the score of each: f32)."""
        part = self._part_of(token)
        passages, frequency = self.arrays["indices"][part], self.arrays["frequency"][part]
        return passages, self._added(self._whole.idf(token), passages, frequency)

    def _part_of(self, token: int) -> slice:
        return slice(*self.arrays["indptr"][token : token + 2])

    def all_scores(self) -> np.ndarray:
        """The part of each posting in the score of its passage: f32[P]. Memory: 16 bytes a posting."""
        counts, frequency = np.diff(self.arrays["indptr"]), self.arrays["frequency"]
        idf = np.array([self._whole.idf(token) for token in range(len(counts))], np.float32)
        return self._added(np.repeat(idf, counts), self.arrays["indices"], frequency)

    def _added(self, idf: np.ndarray | np.float32, passages: np.ndarray, frequency: np.ndarray) -> np.ndarray:
        """f32: the part of tokens, each so often in its passage, in the scores of these passages."""
        scores: np.ndarray = idf * (frequency / (self._longer[passages] + frequency))
        return scores.astype(np.float32)

    def parts(self, query: str, rows: np.ndarray) -> np.ndarray:
        """The share of each known token of `query` in the scores of the passages `rows`, i64[R]: f32[tokens, R]. The
        tokens are in the order of `ids`."""
        ids = self.ids(query)
        parts = np.zeros((len(ids), len(rows)), np.float32)
        for part, token in zip(parts, ids):
            place = self._places(token, rows)
            has = place >= 0
            frequency = self.arrays["frequency"][self._part_of(token)][place[has]]
            part[has] = self._added(self._whole.idf(token), rows[has], frequency)
        return parts

    def _places(self, token: int, rows: np.ndarray) -> np.ndarray:
        """i64[R]: the place of each passage among those that have a token, -1 for one that has it not."""
        holders = self.arrays["indices"][self._part_of(token)]
        if not len(holders):  # a filtered index keeps all tokens, also without passages
            return np.full(len(rows), -1)
        place = np.searchsorted(holders, rows.astype(holders.dtype)).clip(max=len(holders) - 1)  # else it copies all
        return np.where(holders[place] == rows, place, -1)

    def ids(self, query: str) -> list[int]:
        """Ids of the tokens of a query that the index knows, in the order of the query, with repeats.

        A word stands for its token in each language of the index: a name is stemmed as its passage is.
        """
        return self._known(_query_tokens(query, *self.languages))

    def _known(self, tokens: Iterable[str]) -> list[int]:
        places = ((bisect_left(self.tokens, token), token) for token in tokens)
        return [place for place, token in places if place < len(self.tokens) and self.tokens[place] == token]

    def coverage(self, query: str, rows: np.ndarray) -> np.ndarray:
        """The share of the words of `query` that the passages `rows`, i64[R], hold: f64[R], from 0 to 1.

        A word weighs the idf of its commonest token, once; a word that no passage has, which may be misspelt, weighs
        most.
        """
        held, total = np.zeros(len(rows)), 0.0
        for tokens in dict.fromkeys(_tokens_of_words(query, *self.languages)):
            known = self._known(tokens)
            weight = float(min(map(self._whole.idf, known), default=self._whole.idf_of(0)))
            total += weight
            held += weight * np.any([self._places(token, rows) >= 0 for token in known], axis=0)
        return held / total if total else held

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best k passages of each of B queries: ids i32[B, k] and scores f32[B, k].

        Sorted by (-score, id), exactly, also if ties cross position k; only scores > 0; padded with -1 / -inf. A query
        alone gives the same bits as in any batch. Memory: one f32[N] at a time. Raises BadInput for k < 1.
        """
        if k < 1:
            raise BadInput("k is the number of results of a query", given=f"k={k}", expected=">= 1")
        ids = np.full((len(queries), k), -1, dtype=np.int32)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        for row, query in enumerate(queries):
            dense = self.scores(query)
            best = _best(dense, k)
            ids[row, : best.size] = best
            scores[row, : best.size] = dense[best]
        return ids, scores

    def save(self, folder: Path) -> None:
        """Write bm25.safetensors and bm25.json.zst into `folder`; create it if missing. The same index gives the
        same bytes.

        Raises StorageError if the disk refuses.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        languages = [] if list(self.languages) == [ENGLISH] else list(self.languages)
        saved = _Saved(_FORMAT, TOKENS_VERSION, self.n, self.k1, self.b, list(self.tokens), languages)
        text = json.dumps(msgspec.to_builtins(saved), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            packed = pa.Codec("zstd", compression_level=6).compress(text.encode("utf-8"), asbytes=True)
            (folder / VOCABULARY_FILE).write_bytes(packed)
            stored = {name: array for name, array in self.arrays.items() if name != "indptr"}
            save_file({**stored, "counts": narrow(np.diff(self.arrays["indptr"]))}, folder / ARRAYS_FILE)
        except (OSError, SafetensorError) as error:
            raise StorageError("the BM25 index cannot be written", given=f"{folder}: {error}") from error

    @classmethod
    def load(cls, folder: Path, read: Callable[[Path], dict[str, np.ndarray]] | None = None) -> Bm25:
        """Read a saved index. No pickle. read: reads or maps the file of arrays.

        Raises IndexCorrupt if a file is missing or contradicts the other; IndexMismatch if the index was made with
        another format or another tokenizer.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            with pa.CompressedInputStream(pa.OSFile(str(folder / VOCABULARY_FILE)), "zstd") as file:
                saved = msgspec.json.decode(file.read(), type=_Saved)
            arrays = (read or load_file)(folder / ARRAYS_FILE)
        except (OSError, ValueError, msgspec.DecodeError, SafetensorError) as error:
            raise IndexCorrupt(
                "the BM25 index cannot be read", given=f"{folder}: {error}", do="build the index again"
            ) from error
        versions = (saved.format, saved.tokens_version)
        if versions != (_FORMAT, TOKENS_VERSION):
            given, expected = f"format and tokens_version {versions} in {folder}", (_FORMAT, TOKENS_VERSION)
            raise IndexMismatch(
                "the BM25 index has another version", given=given, expected=expected, do="build the index again"
            )
        if problem := _problem(saved, arrays):
            raise IndexCorrupt("the BM25 index cannot be used", given=f"{problem} in {folder}")
        arrays["indptr"] = np.append(0, np.cumsum(arrays.pop("counts"), dtype=np.int64))
        return cls(saved.tokens, arrays, saved.n, saved.k1, saved.b, saved.languages or (ENGLISH,))


def narrow(numbers: np.ndarray) -> np.ndarray:
    """Numbers from 0 on in the smallest unsigned type that holds the largest."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


@dataclass(frozen=True)
class Whole:
    """Statistics of words. n: passages; counts: i64[V], the number of passages that have each token;
    length: the mean length of a passage in tokens."""

    n: int
    counts: np.ndarray
    length: float

    def idf(self, token: int) -> np.float32:
        """The weight of a token: the rarer, the higher."""
        return self.idf_of(int(self.counts[token]))

    def idf_of(self, have: int) -> np.float32:
        """The weight of a token that so many passages have."""
        return np.float32(math.log(1 + (self.n - have + 0.5) / (have + 0.5)))


@dataclass(frozen=True)
class Counts:
    """The count of each token in each of n passages. tokens: V, sorted; indices, frequency: i32[P], the passages
    of each token, ascending, and how often each has it; indptr: i64[V+1], the first posting of each token."""

    tokens: Sequence[str]
    indices: np.ndarray
    frequency: np.ndarray
    indptr: np.ndarray
    n: int


def count_words(
    texts: Iterable[str],
    earlier: Counts | None = None,
    rows: np.ndarray | None = None,
    languages: Iterable[str] | None = None,
) -> Counts:
    """Count the tokens of N passages.

    texts: texts of the passages to count, read once in blocks; languages: languages of each of them, English if None.
    earlier, rows: counts of M other passages, and i64[N], the row in them that stands for each passage, ascending
    without repeats; -1 for the passages in `texts`, all if None.
    """
    tokens = [] if earlier is None else earlier.tokens
    numbers = {token: number for number, token in enumerate(tokens)}
    parts, n = _counted(texts, repeat(ENGLISH) if languages is None else languages, numbers)
    if earlier is not None and rows is not None:
        parts[1], n = np.flatnonzero(rows < 0)[parts[1]], len(rows)
        new_row = np.full(earlier.n, -1, np.int32)
        new_row[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        passage = new_row[earlier.indices]
        token = np.repeat(np.arange(len(tokens), dtype=np.int32), np.diff(earlier.indptr))
        kept = np.stack([token, passage, earlier.frequency])[:, passage >= 0]
        parts = np.concatenate([kept, parts], 1)
    df, names = np.bincount(parts[0], minlength=len(numbers)), [*numbers]
    # passages may have taken tokens with them; the earlier tokens are sorted, so that this is a merge
    number = np.array(sorted(np.flatnonzero(df).tolist(), key=names.__getitem__), np.int64)
    used = [names[token] for token in number.tolist()]
    rank = np.empty(len(numbers), np.int32)
    rank[number] = np.arange(len(used))
    order = np.argsort(rank[parts[0]].astype(np.int64) << 32 | parts[1], kind="stable")  # fast: mostly sorted
    passage, frequency = parts[1][order], parts[2][order]
    return Counts(used, passage, frequency, np.append(0, np.cumsum(df[number])), n)


def _counted(texts: Iterable[str], languages: Iterable[str], numbers: dict[str, int]) -> tuple[np.ndarray, int]:
    """Postings i32[3, P] of (token, passage, frequency), and the number of passages. numbers: {token: its number}; new
    tokens are added in the order of first use."""
    number_of: dict[str, dict[str, int]] = {}  # {language: {word: its token}}, so that each word is stemmed once
    parts, first = [np.zeros((3, 0), np.int32)], 0
    texts, languages = iter(texts), iter(languages)
    while block := [words_of(text) for text in islice(texts, _BLOCK)]:
        language_of = list(islice(languages, len(block)))
        for language in dict.fromkeys(language_of):
            known = number_of.setdefault(language, dict.fromkeys(stop_words(language), -1))
            own = (words for words, its in zip(block, language_of) if its == language)
            new = [word for word in dict.fromkeys(chain.from_iterable(own)) if word not in known]
            tokens = stems(new, language)
            known.update((word, numbers.setdefault(token, len(numbers))) for word, token in zip(new, tokens))
        of_text = (map(number_of[its].__getitem__, words) for words, its in zip(block, language_of))
        ids = np.fromiter(chain.from_iterable(of_text), np.int64)
        row = np.repeat(np.arange(len(block)), [len(words) for words in block])[ids >= 0]
        keys, counts = np.unique(row << 32 | ids[ids >= 0], return_counts=True)
        parts.append(np.stack([keys & 0xFFFFFFFF, (keys >> 32) + first, counts]).astype(np.int32))
        first += len(block)
    return np.concatenate(parts, 1), first


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the best k positive scores, by (-score, position)."""
    candidates = np.flatnonzero(scores > 0)
    if candidates.size > k:
        # All ties with the k-th score stay candidates, so that the smaller ids win.
        kth = np.partition(scores[candidates], candidates.size - k)[candidates.size - k]
        candidates = candidates[scores[candidates] >= kth]
    return candidates[np.argsort(-scores[candidates], kind="stable")][:k]


class _Saved(msgspec.Struct, omit_defaults=True):
    """The contents of bm25.json.zst. languages: empty for English alone."""

    format: int
    tokens_version: int
    n: Annotated[int, msgspec.Meta(ge=0)]
    k1: float
    b: float
    tokens: list[str]
    languages: list[str] = []


def _problem(saved: _Saved, arrays: dict[str, np.ndarray]) -> str:
    """The first contradiction in a saved index, or ""."""
    if not all(map(lt, saved.tokens, islice(saved.tokens, 1, None))):
        return "tokens that are not sorted or not unique"
    kinds = {name: array.dtype for name, array in arrays.items()}
    if kinds.pop("indices", None) != np.int32 or sorted(kinds) != ["counts", "frequency", "lengths"]:
        return "arrays of another format"
    if any(kind.kind != "u" for kind in kinds.values()) or any(array.ndim != 1 for array in arrays.values()):
        return "arrays of another format"
    frequency, indices, counts, lengths = (arrays[name] for name in ("frequency", "indices", "counts", "lengths"))
    if len(counts) != len(saved.tokens) or frequency.shape != indices.shape or int(counts.sum()) != len(indices):
        return f"arrays that do not fit the vocabulary of {len(saved.tokens)} tokens"
    if len(lengths) != saved.n or int(lengths.sum()) != int(frequency.sum()):
        return "lengths that do not fit the passages"
    if len(indices) and (indices.min() < 0 or indices.max() >= saved.n or frequency.min() < 1):
        return "a passage or a count out of range"
    return ""
