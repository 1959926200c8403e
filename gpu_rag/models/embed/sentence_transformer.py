"""Embedder of any local sentence-transformers model, by folder or by its name in the local cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import ModelError, needing
from gpu_rag.models.device import check_device, choose_dtype, room_for, use_threads
from gpu_rag.models.embed.batches import NO_ROOM, embed_batches
from gpu_rag.models.embed.interface import OnBatch, distinct
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.pretrained import quiet_progress

CODE_VERSION = 2
TOKENS = {"cpu": 256, "cuda": 8192}  # tokens per batch, at least one text: enough to keep the device busy


class SentenceTransformerEmbedder:
    """Unit vectors of a sentence-transformers model, with its own pooling, prompts and length limit.

    A batch holds texts of one token count, as many as make 8,192 tokens on a GPU and 256 on a CPU, filled up with
    copies of its first text. So no text is ever padded, its shape depends on itself alone, and its row has the same
    bits alone or in any batch. Weights are in `dtype`: bfloat16 on a GPU that computes in it, float32 on a CPU; vectors
    are scaled in float32.
    """

    def __init__(self, name: str, *, device: str = "cpu", threads: int = 1, dtype: str = "auto"):
        """Load the model; nothing is downloaded. Raises MissingBackend, ModelError, BadInput."""
        torch_device = check_device(device)
        if name.startswith(("/", ".", "~")) and not Path(name).is_dir():  # before an import that may be missing
            raise _none_such(name)
        with needing(
            f"the embedder {name} needs sentence-transformers",
            "pip install 'gpu-rag[gpu]' or sentence-transformers, or use minilm",
        ):
            from sentence_transformers import SentenceTransformer
        folder = _local_folder(name)
        self.name, self.device, self.n_truncated, self.row_identical = name, device, 0, True
        self.content_hash = folder_hash(folder, CODE_VERSION)
        use_threads(torch_device, threads)
        try:
            with quiet_progress(), room_for(str(folder), NO_ROOM):
                self._model: Any = SentenceTransformer(str(folder), device=device, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            raise ModelError("the embedding model could not be loaded", given=f"{folder}: {error}") from error
        on_cpu = torch_device.type == "cpu"
        self.dtype = choose_dtype(torch_device, "float32" if on_cpu and dtype == "auto" else dtype)
        if self.dtype != torch.float32:
            self._model.to(self.dtype)
        self._tokens = TOKENS[torch_device.type]
        self.dim = int(self._encode([""], 1).shape[1])

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. Equal texts are computed once.

        on_batch(n_done) is called after each batch with the number of distinct texts finished. Raises ModelError when
        the device has no memory left for a batch.
        """
        unique, index = distinct(texts)
        counts = self._token_counts(unique)
        return embed_batches(
            counts,
            self._rows,
            self.dim,
            lambda rows, length: torch.from_numpy(self._encode([unique[r] for r in rows], self._rows(length))),
            on_batch,
        )[index]

    def _rows(self, length: int) -> int:
        """Rows per batch of texts with this number of tokens."""
        return max(1, self._tokens // max(length, 1))

    def _encode(self, texts: list[str], size: int) -> np.ndarray:
        """f32[n, D]: unit vectors of at most `size` texts, computed in a batch of exactly `size`."""
        vectors = self._model.encode(
            texts + texts[:1] * (size - len(texts)),
            batch_size=size,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=False,
        )
        rows = np.asarray(vectors[: len(texts)], dtype=np.float32)
        unit: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit

    def _token_counts(self, texts: list[str]) -> list[int]:
        if not texts:
            return []
        encoded = self._model.tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]
        limit = self._model.max_seq_length or max(len(row) for row in encoded)
        self.n_truncated += sum(len(row) > limit for row in encoded)
        return [min(len(row), limit) for row in encoded]


def _local_folder(name: str) -> Path:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download  # comes with sentence-transformers

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError) as error:
        raise _none_such(name) from error


def _none_such(name: str) -> ModelError:
    do = "give a model folder, or fetch the model first: gpu-rag never downloads while it runs"
    return ModelError("no such embedding model on this machine", given=name, do=do)
