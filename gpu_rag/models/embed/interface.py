"""What every embedder offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

OnBatch = Callable[[int], None]
NO_ROOM = "leave the GPU more room (vllm.gpu_memory_utilization), or --set models.device=cpu"


class Embedder(Protocol):
    """Texts to unit vectors.

    name: what was asked for; content_hash: sha256 of what determines the vectors (weights, tokenizer, pooling, code
    version); dim: D; device: torch's name of it; n_truncated: texts cut so far at the model's length;
    row_identical: a row is bit-equal alone or in any batch, on one machine and device.
    """

    name: str
    content_hash: str
    dim: int
    device: str
    n_truncated: int
    row_identical: bool

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. `on_batch(n_done)` is called as rows are finished."""
        ...
