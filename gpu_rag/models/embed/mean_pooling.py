"""A BERT-like encoder with mean pooling, through plain transformers: the packaged MiniLM and models shaped like it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gpu_rag.errors import BadInput, ModelError
from gpu_rag.models.device import check_device, choose_dtype, pack_linear_layers, use_threads
from gpu_rag.models.embed.batches import NO_ROOM, embed_batches
from gpu_rag.models.embed.interface import OnBatch, distinct
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.pretrained import load_model, load_tokenizer

CODE_VERSION = 1
LENGTH_STEP = 16
CPU_ROWS = 8
GPU_TOKENS = 1 << 15  # of a batch, pads included: enough to fill a GPU


class MeanPoolingEmbedder:
    """Unit vectors v = m / |m|, m the mean over a text's tokens of the encoder's last hidden states.

    Pooling and the maximal length come from the model's own sentence-transformers settings. Longer texts are cut there
    and counted in `n_truncated`. A batch has one padded length, a multiple of 16 with at least one pad, and always 8
    rows, on a GPU as many as make 32,768 tokens: a text's shape depends on itself alone, so its row is bit-equal alone
    or in any batch. On a GPU the host waits once a call: batches are copied from pinned memory while others are
    computed, and vectors leave the device together. Hidden states are in `dtype` (bfloat16 by default), pooling and
    scaling in float32.
    """

    def __init__(self, folder: Path, *, name: str, device: str = "cpu", threads: int = 1, dtype: str = "auto"):
        """Load the model in `folder`. Raises MissingBackend, ModelError, BadInput."""
        self._torch_device = check_device(device)
        self.name, self.device, self.n_truncated, self.row_identical = name, device, 0, True
        self.dtype = choose_dtype(self._torch_device, dtype)
        self.max_tokens = _max_tokens(folder)
        self.content_hash = folder_hash(folder, CODE_VERSION, {"pooling": "mean", "max_tokens": self.max_tokens})
        use_threads(self._torch_device, threads)
        self._tokenizer = load_tokenizer(folder)
        self._model = load_model("embedding", "AutoModel", folder, self._torch_device, NO_ROOM, dtype=self.dtype)
        self._cls, self._sep, self._pad = (
            int(self._tokenizer.convert_tokens_to_ids(t))
            for t in (self._tokenizer.cls_token, self._tokenizer.sep_token, self._tokenizer.pad_token)
        )
        pack_linear_layers(self._model)
        self.dim = int(self._model.config.hidden_size)

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. Equal texts are computed once.

        on_batch(n_done) is called after each batch with the number of distinct texts finished. Raises ModelError when
        the device has no memory left for a batch.
        """
        once, index = distinct(texts)
        return self.embed_ids(self.token_ids(once), on_batch)[index]

    def embed_ids(self, ids: Sequence[Sequence[int]], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D] of texts as `token_ids` gives them."""
        # one pad at least: a batch without any would be computed without a mask, by another kernel
        padded = [(len(row) // LENGTH_STEP + 1) * LENGTH_STEP for row in ids]
        return embed_batches(
            padded, self._rows, self.dim, lambda rows, length: self._forward([ids[r] for r in rows], length), on_batch
        )

    def _rows(self, length: int) -> int:
        """Rows of a batch of texts of that padded length."""
        return CPU_ROWS if self._torch_device.type == "cpu" else max(CPU_ROWS, GPU_TOKENS // length)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, cut at the model's limit, with the marks of beginning and end."""
        if not texts:
            return []
        plain = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # a lone surrogate has no bytes
        encoded = self._tokenizer(plain, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        limit = self.max_tokens - 2
        self.n_truncated += sum(len(row) > limit for row in encoded)
        return [[self._cls, *row[:limit], self._sep] for row in encoded]

    def _forward(self, ids: Sequence[Sequence[int]], length: int) -> torch.Tensor:
        """f32[n, D] on the device: the unit vectors of one batch, which is filled up with empty texts."""
        rows = self._rows(length)
        tokens = np.full((rows, length), self._pad, np.int64)
        sizes = np.full(rows, 2, np.int64)
        sizes[: len(ids)] = [len(row) for row in ids]
        tokens[len(ids) :, :2] = self._cls, self._sep
        places = np.arange(length) < sizes[:, None]
        tokens[: len(ids)][places[: len(ids)]] = [token for row in ids for token in row]
        on_device, mask = self._sent(tokens), self._sent(places.astype(np.int64))
        with torch.inference_mode():
            hidden = self._model(input_ids=on_device, attention_mask=mask).last_hidden_state.float()
            keep = mask.unsqueeze(-1).float()
            mean = (hidden * keep).sum(1) / keep.sum(1)
            return torch.nn.functional.normalize(mean, dim=1)[: len(ids)]

    def _sent(self, array: np.ndarray) -> torch.Tensor:
        """The array on the device; torch keeps the pinned memory until it is copied, so nobody waits."""
        tensor = torch.from_numpy(array)
        if self._torch_device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._torch_device, non_blocking=True)


def _max_tokens(folder: Path) -> int:
    """The model's own limit, after checking that its pooling is the one computed here."""
    try:
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
        limit = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError("no sentence-transformers settings beside the model", given=f"{folder}: {error}") from error
    modes = sorted(k for k, v in pooling.items() if k.startswith("pooling_mode_") and v)
    if modes != ["pooling_mode_mean_tokens"]:
        raise BadInput("unsupported pooling", given=modes, expected="pooling_mode_mean_tokens alone")
    return int(limit)
