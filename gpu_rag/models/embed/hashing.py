"""An embedder without a model: signed feature hashing of words and character trigrams."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gpu_rag.models.embed.interface import OnBatch
from gpu_rag.models.fingerprint import text_hash

CODE_VERSION = 1
DIM = 256
TRIGRAM_WEIGHT = 0.5
PROGRESS_EVERY = 256

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
        for row, text in enumerate(texts):
            vectors[row] = _vector(text)
            if on_batch is not None and ((row + 1) % PROGRESS_EVERY == 0 or row + 1 == len(texts)):
                on_batch(row + 1)
        return vectors


def _vector(text: str) -> np.ndarray:
    counts = Counter(_WORD.findall(text.casefold())) or Counter([""])
    vector = np.zeros(DIM)
    for word, count in counts.items():
        places, weights = _word_features(word)
        vector[places] += (1.0 + math.log(count)) * weights
    norm = math.sqrt(float(vector @ vector))
    if norm == 0.0:  # signed features may cancel exactly: use the empty word, as for an empty text
        return _vector("")
    return vector / norm


@lru_cache(maxsize=1 << 16)
def _word_features(word: str) -> tuple[np.ndarray, np.ndarray]:
    """Dimensions (no duplicates) and weights of one word."""
    weights: dict[int, float] = {}
    marked = f"^{word}$"
    trigrams = [marked[i : i + 3] for i in range(len(marked) - 2)]
    scale = TRIGRAM_WEIGHT / math.sqrt(len(trigrams)) if trigrams else 0.0
    for feature, weight in [("w" + word, 1.0), *(("t" + t, scale) for t in trigrams)]:
        number = int.from_bytes(
            hashlib.blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
        )
        place = (number >> 1) % DIM
        weights[place] = weights.get(place, 0.0) + (weight if number & 1 else -weight)
    return np.fromiter(weights.keys(), dtype=np.intp), np.fromiter(weights.values(), dtype=np.float64)
