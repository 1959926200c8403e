"""Texts to unit vectors. `load_embedder` picks by name; every embedder keeps to the `Embedder` protocol."""

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


def load_embedder(name: str, device: str = "cpu", threads: int = 1) -> Embedder:
    """The embedder called `name`.

    "minilm": the packaged MiniLM; "hash": hashed words and character trigrams, for tests and tiny runs; anything
    else: a sentence-transformers model, as a folder or as a name that is already in the local Hugging Face cache.
    threads: CPU threads of torch, a setting of the whole process; the hashing embedder ignores device and threads.
    Raises MissingBackend, ModelError, BadInput.
    """
    if name == "hash":
        from gpu_rag.models.embed.hashing import HashEmbedder

        return HashEmbedder()
    if name == "minilm":
        from gpu_rag.models.embed.mean_pooling import MeanPoolingEmbedder
        from gpu_rag.models.packaged import packaged_embedder_folder

        return MeanPoolingEmbedder(packaged_embedder_folder(), name=name, device=device, threads=threads)
    from gpu_rag.models.embed.sentence_transformer import SentenceTransformerEmbedder

    return SentenceTransformerEmbedder(name, device=device, threads=threads)
