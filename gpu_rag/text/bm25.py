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
from typing import Any

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
        arrays: dict[str, np.ndarray] = {
            "data": np.ascontiguousarray(engine.scores["data"], dtype=np.float32),
            "indices": np.ascontiguousarray(engine.scores["indices"], dtype=np.int32),
            "indptr": np.ascontiguousarray(engine.scores["indptr"], dtype=np.int64),
        }
        return cls(vocabulary, arrays, len(tokens), k1, b)

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
        from safetensors.numpy import save_file

        vocabulary = {
            "format": _FORMAT,
            "tokens_version": TOKENS_VERSION,
            "n": self.n,
            "k1": self.k1,
            "b": self.b,
            "tokens": list(self.vocabulary),
        }
        text = json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / VOCABULARY_FILE).write_bytes(text.encode("utf-8"))
            save_file(self._arrays, folder / ARRAYS_FILE)
        except OSError as error:
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
            vocabulary = json.loads((folder / VOCABULARY_FILE).read_bytes())
            arrays = load_file(folder / ARRAYS_FILE)
        except (OSError, ValueError, SafetensorError) as error:
            raise IndexCorrupt(
                "the BM25 index cannot be read", given=f"{folder}: {error}", do="build the index again"
            ) from error
        tokens, n, k1, b = _check_vocabulary(vocabulary, folder)
        _check_arrays(arrays, len(tokens), n, folder)
        return cls({token: i for i, token in enumerate(tokens)}, arrays, n, k1, b)


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


def _check_vocabulary(vocabulary: object, folder: Path) -> tuple[list[str], int, float, float]:
    """(tokens, n, k1, b) out of bm25.json."""
    if not isinstance(vocabulary, dict):
        raise IndexCorrupt("the BM25 vocabulary is no JSON object", given=folder / VOCABULARY_FILE)
    found = (vocabulary.get("format"), vocabulary.get("tokens_version"))
    if found != (_FORMAT, TOKENS_VERSION):
        raise IndexMismatch(
            "the BM25 index is of another version",
            given=f"format and tokens_version {found} in {folder}",
            expected=(_FORMAT, TOKENS_VERSION),
            do="build the index again",
        )
    tokens, n, k1, b = (vocabulary.get(key) for key in ("tokens", "n", "k1", "b"))
    if not (isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)):
        raise IndexCorrupt("the BM25 tokens are no list of strings", given=folder / VOCABULARY_FILE)
    if not (isinstance(n, int) and n >= 0 and isinstance(k1, (int, float)) and isinstance(b, (int, float))):
        raise IndexCorrupt("the BM25 parameters are unreadable", given=f"n={n}, k1={k1}, b={b} in {folder}")
    if tokens != sorted(set(tokens)):
        raise IndexCorrupt("the BM25 tokens are not sorted or not unique", given=folder / VOCABULARY_FILE)
    return tokens, n, float(k1), float(b)


def _check_arrays(arrays: dict[str, np.ndarray], n_tokens: int, n: int, folder: Path) -> None:
    """Raise IndexCorrupt unless the postings fit the vocabulary and the number of passages."""
    expected = {"data": np.dtype(np.float32), "indices": np.dtype(np.int32), "indptr": np.dtype(np.int64)}
    found = {name: array.dtype for name, array in arrays.items()}
    if found != expected:
        raise IndexCorrupt("the BM25 arrays are not those of this format", given=f"{found} in {folder}")
    data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
    if indptr.shape != (n_tokens + 1,) or data.ndim != 1 or data.shape != indices.shape:
        raise IndexCorrupt("the BM25 arrays do not fit the vocabulary", given=f"{n_tokens} tokens in {folder}")
    if indptr[0] != 0 or indptr[-1] != data.size or (np.diff(indptr) < 0).any():
        raise IndexCorrupt("the BM25 postings are not in order", given=folder / ARRAYS_FILE)
    if data.size and (indices.min() < 0 or indices.max() >= n or not np.isfinite(data).all() or data.min() < 0):
        raise IndexCorrupt("the BM25 postings hold a passage or a score out of range", given=folder / ARRAYS_FILE)
