"""The quadratic part of HopRAG's edge merging: every out-question is compared with every in-question."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from gpu_rag.graph.join import hybrid_argmax
from gpu_rag.types import Ragged

_LEFT, _RIGHT, _WORDS, _VOCABULARY = 1024, 4096, 3, 10_000


def merging_seconds(counts: Mapping[str, int], ratio: float, exact_limit: int, dim: int, threads: int) -> float:
    """Seconds to compare the questions of a corpus; 0 where candidates are compared alone, which is linear.

    counts: those of the stage `hop_questions` on the sample; ratio: passages of the corpus for one of the sample.
    """
    n_in, n_out = (counts[f"hop_{side}_questions"] * ratio for side in ("in", "out"))
    return 0.0 if max(n_in, n_out) > exact_limit else n_in * n_out / _pairs_per_second(dim, threads)


def _pairs_per_second(dim: int, threads: int) -> float:
    """Pairs that the join compares a second on this machine, measured on drawn questions of three words."""
    generator = np.random.default_rng(0)
    sides = []
    for n in (_LEFT, _RIGHT):
        vectors = generator.standard_normal((n, dim))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        words = torch.from_numpy(generator.integers(0, _VOCABULARY, n * _WORDS))
        sides.append((torch.from_numpy(vectors.astype(np.float16)), Ragged(words, torch.arange(n + 1) * _WORDS)))
    (left, left_words), (right, right_words) = sides
    hybrid_argmax(left[:1], Ragged(left_words.values[:_WORDS], left_words.offsets[:2]), right, right_words)  # compiles
    started = time.perf_counter()
    hybrid_argmax(left, left_words, right, right_words, threads=threads)
    return _LEFT * _RIGHT / (time.perf_counter() - started)
