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
BATCH = {"cpu": 8, "cuda": 64}


class MeanPoolingEmbedder:
    """Unit vectors v = m / |m|, m the mean over a text's tokens of the encoder's last hidden states.

    Pooling and the maximal length come from the model's own sentence-transformers settings. Longer texts are cut
    there and counted in `n_truncated`. A batch is always 8 rows (64 on a GPU) of one padded length, a multiple of 16
    with at least one pad: a text's shape depends on itself alone, so its row is bit-equal alone or in any batch.
    Hidden states are in `dtype` (bfloat16 by default), pooling and scaling in float32.
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
        ids = self._token_ids(once)
        # one pad at least: a batch without any would be computed without a mask, by another kernel
        padded = [(len(row) // LENGTH_STEP + 1) * LENGTH_STEP for row in ids]
        size = BATCH[self._torch_device.type]
        return embed_batches(
            padded, size, self.dim, lambda rows, length: self._forward([ids[r] for r in rows], length, size), on_batch
        )[index]

    def _token_ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        plain = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # a lone surrogate has no bytes
        encoded = self._tokenizer(plain, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        limit = self.max_tokens - 2
        self.n_truncated += sum(len(row) > limit for row in encoded)
        return [[self._cls, *row[:limit], self._sep] for row in encoded]

    def _forward(self, ids: list[list[int]], length: int, size: int) -> np.ndarray:
        tokens = torch.full((size, length), self._pad, dtype=torch.long)
        mask = torch.zeros((size, length), dtype=torch.long)
        dummies = [[self._cls, self._sep]] * (size - len(ids))
        for row, text_ids in enumerate([*ids, *dummies]):
            tokens[row, : len(text_ids)] = torch.tensor(text_ids)
            mask[row, : len(text_ids)] = 1
        tokens, mask = tokens.to(self._torch_device), mask.to(self._torch_device)
        with torch.inference_mode():
            hidden = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
            keep = mask.unsqueeze(-1).float()
            mean = (hidden * keep).sum(1) / keep.sum(1)
            unit = torch.nn.functional.normalize(mean, dim=1)
        return unit[: len(ids)].cpu().numpy()


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
