"""BM25 over passages: bm25s indexes and scores, this file keeps order, ties and files exact.

Formula (Lucene's variant), for a query token t, a passage d of |d| tokens, mean length L, df passages that have t:
    score(t, d) = ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * |d| / L))
A token that the query has twice counts twice. Source: Robertson and Zaragoza, "The Probabilistic Relevance
Framework: BM25 and Beyond" (2009), with the idf of Apache Lucene, which is never negative.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from gpu_rag.errors import BadInput, IndexCorrupt, IndexMismatch, StorageError
from gpu_rag.text.tokens import TOKENS_VERSION, tokenize

ARRAYS_FILE = "bm25.safetensors"
VOCABULARY_FILE = "bm25.json"
_FORMAT = 1


class Bm25:
    """A BM25 index of N passages, in memory. Build it with `Bm25.build`, or `Bm25.load` what `save` wrote.

    Passage ids are positions in the texts given. Immutable after building, so threads may share it.
    """

    def __init__(self, vocabulary: dict[str, int], arrays: dict[str, np.ndarray], n: int, k1: float, b: float):
        """vocabulary: token -> id in [0, V); arrays: data f32[P], indices i32[P], indptr i64[V+1], one list of
        (passage, score) for each token, passages ascending; n: number of passages."""
        self.vocabulary, self.n, self.k1, self.b = vocabulary, n, k1, b
        self._arrays = arrays
        self._engine = _engine(k1, b)
        self._engine.scores = {**arrays, "num_docs": n}
        self._engine.nonoccurrence_array = None

    @classmethod
    def build(cls, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> Bm25:
        """Index `texts` (N passages; N = 0 and passages without any token are allowed).

        k1: > 0, how soon repeated words stop counting; b: 0..1, how much long passages are discounted.
        Deterministic: token ids follow the sorted tokens. Raises BadInput for k1 or b out of range.
        """
        if not (0 < k1 < float("inf") and 0 <= b <= 1):
            raise BadInput(
                "BM25 parameters are out of range", given=f"k1={k1}, b={b}", expected="k1 > 0 and 0 <= b <= 1"
            )
        tokens = [tokenize(text) for text in texts]
        vocabulary = {token: i for i, token in enumerate(sorted(set().union(*tokens)))}
        if not vocabulary:  # bm25s divides by the mean length
            return cls(vocabulary, _no_postings(), len(tokens), k1, b)
        engine = _engine(k1, b)
        ids = [[vocabulary[token] for token in row] for row in tokens]
        engine.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        arrays = {name: np.ascontiguousarray(engine.scores[name], a.dtype) for name, a in _no_postings().items()}
        return cls(vocabulary, arrays, len(tokens), k1, b)

    def part(self, rows: np.ndarray) -> Bm25:
        """The index of some passages, ascending rows, with the word statistics of all: scores stay as they are."""
        number = np.full(self.n, -1, np.int32)
        number[rows] = np.arange(len(rows), dtype=np.int32)
        indices = number[self._arrays["indices"]]
        stays = indices >= 0
        n_before = np.concatenate([[0], np.cumsum(stays)]).astype(np.int64)
        indptr = n_before[self._arrays["indptr"]]
        arrays = {"data": self._arrays["data"][stays], "indices": indices[stays], "indptr": indptr}
        return Bm25(self.vocabulary, arrays, len(rows), self.k1, self.b)

    def scores(self, query: str) -> np.ndarray:
        """The score of every passage for `query`: f32[N], >= 0; 0 where no token is shared."""
        ids = [self.vocabulary[token] for token in tokenize(query) if token in self.vocabulary]
        if not ids:
            return np.zeros(self.n, dtype=np.float32)
        return self._engine.get_scores_from_ids(ids)

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best k passages of each of B queries: ids i32[B, k] and scores f32[B, k].

        Sorted by (-score, id), exactly, also where ties cross position k; only scores > 0; padded with -1 / -inf.
        A query alone gives the same bits as in any batch. Memory: one f32[N] at a time. Raises BadInput for k < 1.
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
        """Write bm25.safetensors and bm25.json into `folder`, made where missing. The same index gives the same bytes.

        Raises StorageError when the disk refuses.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        saved = _Saved(_FORMAT, TOKENS_VERSION, self.n, self.k1, self.b, list(self.vocabulary))
        text = json.dumps(msgspec.to_builtins(saved), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / VOCABULARY_FILE).write_bytes(text.encode("utf-8"))
            save_file(self._arrays, folder / ARRAYS_FILE)
        except (OSError, SafetensorError) as error:
            raise StorageError("the BM25 index cannot be written", given=f"{folder}: {error}") from error

    @classmethod
    def load(cls, folder: Path) -> Bm25:
        """Read what `save` wrote. No pickle.

        Raises IndexCorrupt when a file is missing or contradicts the other, IndexMismatch when the index was made with
        another format or another tokenizer.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            saved = msgspec.json.decode((folder / VOCABULARY_FILE).read_bytes(), type=_Saved)
            arrays = load_file(folder / ARRAYS_FILE)
        except (OSError, ValueError, msgspec.DecodeError, SafetensorError) as error:
            raise IndexCorrupt(
                "the BM25 index cannot be read", given=f"{folder}: {error}", do="build the index again"
            ) from error
        found = (saved.format, saved.tokens_version)
        if found != (_FORMAT, TOKENS_VERSION):
            given, expected = f"format and tokens_version {found} in {folder}", (_FORMAT, TOKENS_VERSION)
            raise IndexMismatch(
                "the BM25 index is of another version", given=given, expected=expected, do="build the index again"
            )
        if problem := _problem(saved, arrays):
            raise IndexCorrupt("the BM25 index cannot be used", given=f"{problem} in {folder}")
        return cls({token: i for i, token in enumerate(saved.tokens)}, arrays, saved.n, saved.k1, saved.b)


def _engine(k1: float, b: float) -> Any:
    # Imported here: it pulls numba in where that is installed, which commands without search should not wait for.
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # the package sets DEBUG, which any root handler would print
    return bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float32", int_dtype="int32", backend="numpy")


def _no_postings() -> dict[str, np.ndarray]:
    return {"data": np.zeros(0, np.float32), "indices": np.zeros(0, np.int32), "indptr": np.zeros(1, np.int64)}


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the best k positive scores, by (-score, position)."""
    found = np.flatnonzero(scores > 0)
    if found.size > k:
        # All that tie with the k-th stay candidates, so that the smaller ids win.
        kth = np.partition(scores[found], found.size - k)[found.size - k]
        found = found[scores[found] >= kth]
    return found[np.argsort(-scores[found], kind="stable")][:k]


class _Saved(msgspec.Struct):
    """The contents of bm25.json."""

    format: int
    tokens_version: int
    n: Annotated[int, msgspec.Meta(ge=0)]
    k1: float
    b: float
    tokens: list[str]


def _problem(saved: _Saved, arrays: dict[str, np.ndarray]) -> str:
    """A part of a saved index that contradicts the others, "" where there is none."""
    if saved.tokens != sorted(set(saved.tokens)):
        return "tokens that are not sorted or not unique"
    if {name: array.dtype for name, array in arrays.items()} != {name: a.dtype for name, a in _no_postings().items()}:
        return "arrays that are not those of this format"
    data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
    if indptr.shape != (len(saved.tokens) + 1,) or data.ndim != 1 or data.shape != indices.shape:
        return f"arrays that do not fit the vocabulary of {len(saved.tokens)} tokens"
    if indptr[0] != 0 or indptr[-1] != data.size or (np.diff(indptr) < 0).any():
        return "postings that are not in order"
    if data.size and (indices.min() < 0 or indices.max() >= saved.n or not np.isfinite(data).all() or data.min() < 0):
        return "a passage or a score out of range"
    return ""
