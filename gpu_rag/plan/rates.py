"""Rates of this machine: full batches of texts through the embedder, and products of vectors."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import torch

from gpu_rag.graph.nearest import nearest
from gpu_rag.models.embed.interface import Embedder

N_LENGTHS = 8
COPIES = {"cpu": 8, "cuda": 64}  # rows of equal length that fill an embedder's batch
ENOUGH_TEXTS = 256  # so many fill their batches by themselves
_QUERIES, TILE = 128, 65536


def embed_seconds(embedder: Embedder, texts: Sequence[str], s: float, n: int, block: int) -> float:
    """Seconds to embed n texts like the sample `texts`, which took s seconds, in blocks of `block`.

    Batches hold texts of one length, and a small sample leaves them half empty. So texts of eight lengths are embedded
    in full batches too (copies with their words rotated: other texts of equal length): c seconds a text. What the
    sample took above c a text is the price of unfilled batches, which every block pays: c n + (s - c n_texts) n_blocks.
    """
    if not texts or n <= 0:
        return 0.0
    each = _full_batch_seconds(embedder, texts) if len(texts) < ENOUGH_TEXTS else None
    if each is None or n <= len(texts):
        return s * n / len(texts)
    return each * n + max(0.0, s - each * len(texts)) * math.ceil(n / block)


def _full_batch_seconds(embedder: Embedder, texts: Sequence[str]) -> float | None:
    """Seconds a text in full batches; None for texts of so few words that rotating them gives too few others."""
    copies = COPIES.get(embedder.device.split(":")[0], 1)
    by_length = sorted((text.split() for text in texts), key=len)
    chosen = [by_length[int((i + 0.5) * len(by_length) / N_LENGTHS)] for i in range(N_LENGTHS)]
    if len(chosen[0]) < copies:
        return None
    rows = [" ".join(words[turn:] + words[:turn]) for words in chosen for turn in range(copies)]
    started = time.perf_counter()
    embedder.embed(rows)
    return (time.perf_counter() - started) / len(rows)


def pairs_per_second(n: int, dim: int, k: int, seed: int) -> float:
    """Pairs of n names that are compared a second, by the search that links synonyms: D products each, and the best k.

    Measured on 128 names against min(n, 65,536) random vectors, a tile of the search.
    """
    generator = np.random.default_rng(seed)
    base = generator.standard_normal((max(min(n, TILE), 1), dim), np.float32)
    base /= np.linalg.norm(base, axis=1, keepdims=True)
    stored = torch.from_numpy(base.astype(np.float16))
    queries = stored[:_QUERIES].float()
    nearest(queries, stored, min(k, len(base)))  # the first call warms up
    started = time.perf_counter()
    nearest(queries, stored, min(k, len(base)))
    return len(queries) * len(base) / max(time.perf_counter() - started, 1e-9)
