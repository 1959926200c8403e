"""An embedder without a model: signed feature hashing of words and character trigrams."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

from gpu_rag.models.embed.interface import OnBatch
from gpu_rag.models.fingerprint import text_hash

CODE_VERSION = 1
DIM = 256
TRIGRAM_WEIGHT = 0.5
TEXTS_AT_ONCE = 128  # bounds memory

_WORD = re.compile(r"\w+", re.UNICODE)


class HashEmbedder:
    """Deterministic vectors of 256 dimensions from spelling alone: no weights, no training, equal on every machine.

    v = sum over distinct words w of (1 + ln tf_w) * (e(w) + 0.5 / sqrt(n_w) * sum over its n_w trigrams e(t)), scaled
    to length 1. e(x) is one signed unit at blake2b(x) mod 256 (feature hashing, Weinberger et al. 2009); trigrams are
    taken from "^word$". Words are casefolded. A text without words gets the vector of the empty word. Texts that share
    words or word parts are near each other; meaning plays no role.
    """

    def __init__(self) -> None:
        self.name = "hash"
        self.content_hash = text_hash("hash embedder", CODE_VERSION, DIM, TRIGRAM_WEIGHT)
        self.dim = DIM
        self.device = "cpu"
        self.n_truncated = 0
        self.row_identical = True

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, 256], row i the unit vector of texts[i]. Each is computed on its own."""
        vectors = np.empty((len(texts), DIM), dtype=np.float32)
        for first in range(0, len(texts), TEXTS_AT_ONCE):
            block = texts[first : first + TEXTS_AT_ONCE]
            vectors[first : first + len(block)] = _unit_vectors(block)
            if on_batch is not None:
                on_batch(first + len(block))
        return vectors


def _unit_vectors(texts: Sequence[str]) -> np.ndarray:
    """f64[n, 256], the unit vector of each text. The terms of a sum are added in the order of the text's words."""
    counted = [_counts(_WORD.findall(text.casefold()) or [""]) for text in texts]
    number = {word: i for i, word in enumerate(dict.fromkeys(chain.from_iterable(counted)))}
    words = np.fromiter(map(number.__getitem__, chain.from_iterable(counted)), np.int64)
    counts = np.fromiter(chain.from_iterable(map(dict.values, counted)), np.int64, len(words))
    tf = np.array([0.0, *(1.0 + math.log(n) for n in range(1, int(counts.max()) + 1))])[counts]
    row = np.repeat(np.arange(len(texts)), [*map(len, counted)])
    places, weights = zip(*map(_word_features, number))
    ends = np.cumsum([*map(len, places)])
    sizes = np.diff(ends, prepend=0)[words]
    feature = np.arange(sizes.sum()) + np.repeat(ends[words] - np.cumsum(sizes), sizes)
    cells = np.repeat(row, sizes) * DIM + np.concatenate(places)[feature]
    terms = np.repeat(tf, sizes) * np.concatenate(weights)[feature]
    sums = np.bincount(cells, terms, len(texts) * DIM).reshape(-1, DIM)
    norms = np.array([math.sqrt(float(vector @ vector)) for vector in sums])
    for empty in np.flatnonzero(norms == 0.0):  # signed features may cancel exactly: use the empty word, as for no text
        sums[empty], norms[empty] = _unit_vectors([""])[0], 1.0
    return sums / norms[:, None]  # type: ignore[no-any-return]


def _counts(words: list[str]) -> dict[str, int]:
    once = dict.fromkeys(words, 1)
    return once if len(once) == len(words) else Counter(words)


@lru_cache(maxsize=1 << 16)
def _word_features(word: str) -> tuple[np.ndarray, np.ndarray]:
    """Dimensions (no duplicates) and weights of one word."""
    weights: dict[int, float] = {}
    marked = f"^{word}$"
    trigrams = [marked[i : i + 3] for i in range(len(marked) - 2)]
    scale = TRIGRAM_WEIGHT / math.sqrt(len(trigrams)) if trigrams else 0.0
    place, sign = _signed_unit("w" + word)
    weights[place] = sign
    for place, sign in map(_of_trigram, trigrams):
        weights[place] = weights.get(place, 0.0) + sign * scale
    return np.fromiter(weights.keys(), dtype=np.intp), np.fromiter(weights.values(), dtype=np.float64)


def _signed_unit(feature: str) -> tuple[int, float]:
    """e(feature): its dimension, and 1 or -1."""
    number = int.from_bytes(hashlib.blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return (number >> 1) % DIM, 1.0 if number & 1 else -1.0


@lru_cache(maxsize=1 << 16)  # new words are made of known trigrams
def _of_trigram(trigram: str) -> tuple[int, float]:
    return _signed_unit("t" + trigram)
