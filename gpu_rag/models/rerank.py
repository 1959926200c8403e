"""Cross-encoder that scores a question and a text together, from a local folder only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import ModelError
from gpu_rag.models.device import check_device, use_threads
from gpu_rag.models.embed.batches import NO_ROOM, embed_batches
from gpu_rag.models.embed.interface import distinct
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.pretrained import load_model, load_tokenizer

CODE_VERSION = 1
BATCH = {"cpu": 8, "cuda": 64}
MAX_PAIR_TOKENS = 512  # tokens of a pair, if the model allows as many


class CrossEncoder:
    """A transformers folder for sequence classification, as sentence-transformers saves its cross-encoders.

    With one class its logit is the score; with two, the second logit minus the first. If a pair is too long, the end of
    its longer text is cut. A batch has pairs of one length, filled up with the first: a score has the same bits in any
    batch. name, content_hash: as for an embedder.
    """

    def __init__(self, folder: str, *, device: str = "cpu", threads: int = 1):
        """Load the model; downloads nothing and runs no code of the folder. Raises ModelError, MissingBackend."""
        path, self._device = Path(folder).expanduser(), check_device(device)
        if not path.is_dir():
            do = "give the folder of a cross-encoder: gpu-rag never downloads while it runs"
            raise ModelError("no such reranker on this machine", given=folder, expected="a model folder", do=do)
        self.name, self.content_hash = folder, folder_hash(path, CODE_VERSION)
        use_threads(self._device, threads)
        self._tokenizer: Any = load_tokenizer(path)
        kind, options = "AutoModelForSequenceClassification", {"dtype": torch.float32}
        self._model: Any = load_model("reranker", kind, path, self._device, NO_ROOM, **options)
        config = self._model.config
        if config.num_labels not in (1, 2):
            given = f"{folder}: {config.num_labels} classes"
            raise ModelError("the model is not a reranker", given=given, expected="one or two classes")
        positions = getattr(config, "max_position_embeddings", MAX_PAIR_TOKENS)
        if "roberta" in config.model_type:  # its positions start after the padding index
            positions -= (config.pad_token_id or 0) + 1
        self._max_tokens = min(MAX_PAIR_TOKENS, positions, self._tokenizer.model_max_length)
        self._size = BATCH[self._device.type]

    def scores(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """f32[n]: score of each (question, text); equal pairs are computed once."""
        if not pairs:
            return np.zeros(0, np.float32)
        unique, index = distinct(pairs)
        questions, texts = map(list, zip(*unique))
        tokens = self._tokenizer(questions, texts, truncation=True, max_length=self._max_tokens)
        rows = [{name: values[i] for name, values in tokens.items()} for i in range(len(unique))]
        lengths = [len(row["input_ids"]) for row in rows]
        scored = embed_batches(
            lengths, lambda _: self._size, 1, lambda places, _: self._batch([rows[i] for i in places]), None
        )
        return scored[index, 0]

    def _batch(self, rows: list[dict[str, list[int]]]) -> torch.Tensor:
        filled = rows + rows[:1] * (self._size - len(rows))
        columns = {name: torch.tensor([row[name] for row in filled], device=self._device) for name in rows[0]}
        with torch.inference_mode():
            logits = self._model(**columns).logits.float()
        scores = logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0)
        differences: torch.Tensor = scores[: len(rows), None]
        return differences
