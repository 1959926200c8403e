"""A BERT encoder with mean pooling: the packaged MiniLM and E5, and models shaped like them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, groupby
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from gpu_rag.errors import BadInput, ModelError
from gpu_rag.models.device import check_device, choose_dtype, room_for, use_threads
from gpu_rag.models.embed.attention import attention, attention_into
from gpu_rag.models.embed.batches import NO_ROOM, embed_batches, pieces_by_length
from gpu_rag.models.embed.bert import TILE, BertEncoder
from gpu_rag.models.embed.interface import OnBatch, Parts, gathered
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.pretrained import needing_transformers

CODE_VERSION = 3
CPU_TOKENS = 4096  # tokens computed together: more is no faster
GPU_TOKENS = 1 << 15  # tokens per batch, padding included: enough to fill a GPU
CPU_PIECE_CHARS = 1 << 16  # characters that a thread computes together: some seconds of work
GPU_PIECE_CHARS = 1 << 21  # characters tokenized together for a GPU: large, for few padded batches and few waits
CENTRE = "centre.f32"  # f32[D]; not in the content hash, since its rounding differs by machine
AHEAD = 2  # pieces that are tokenized while a GPU computes another, a thread each
LENGTH_STEP = 8  # padded lengths on a GPU are multiples of this

Ids = Sequence[Sequence[int]]


class MeanPoolingEmbedder:
    """Unit vectors v = m / |m|, where m is the mean of the encoder's last hidden states over a text's tokens.

    Pooling, a prefix and the maximal length come from the model's own sentence-transformers settings. Longer texts are
    cut there and counted in `n_truncated`. If there is a centre c beside the model, the vector is (v - c) / |v - c|. A
    text's row has the same bits alone or in any batch:
    - on a CPU texts lie end to end, without padding: each matrix product has 128 tokens of any texts, and attention
      sees each text by itself (see `BertEncoder`);
    - on a GPU a batch has one padded length, a multiple of 8, and as many rows as make 32,768 tokens. The host waits
      once per piece of the texts: batches are copied from pinned memory while others are computed.
    On a CPU `workers` threads compute a piece of the texts each, for a GPU threads tokenize the next pieces. Hidden
    states are in `dtype` (bfloat16 if the processor computes in it), pooling and scaling in float32.
    """

    def __init__(
        self, folder: Path, *, name: str, device: str = "cpu", threads: int = 1, workers: int = 1, dtype: str = "auto"
    ):
        """Load the model in `folder`. threads: of torch, in each worker. Raises MissingBackend, ModelError,
        BadInput."""
        self._torch_device = check_device(device)
        self.name, self.device, self.n_truncated, self.row_identical, self.workers = name, device, 0, True, workers
        self.dtype = choose_dtype(self._torch_device, dtype)
        self.max_tokens, self._prefix, self._centre = _settings(folder)
        self._counting = Lock()  # guards `n_truncated`, which threads count
        centred = {} if self._centre is None else {"centred": True}
        settings = {"pooling": "mean", "max_tokens": self.max_tokens, **centred}
        self.content_hash = folder_hash(folder, CODE_VERSION, settings)
        use_threads(self._torch_device, threads)
        self._tokenizer = _tokenizer(folder)
        self._model = BertEncoder(folder, self._torch_device, self.dtype, NO_ROOM)
        self._cls, self._sep, self._pad = _special_tokens(self._tokenizer)
        self.dim = self._model.dim

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. Equal texts are computed once.

        on_batch(n_done) is called after each piece with the number of distinct texts finished. Raises ModelError when
        the device has no memory left for a batch.
        """
        return gathered(texts, self.dim, self.parts, on_batch)

    def parts(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> Parts:
        """(rows, f32[len(rows), D]) of distinct texts, one piece of similar lengths at a time, shortest first."""
        on_cpu, n_done, waiting = self._torch_device.type == "cpu", 0, deque[Future[Any]]()
        pieces = pieces_by_length(texts, CPU_PIECE_CHARS if on_cpu else GPU_PIECE_CHARS)
        ahead, n_threads = (self.workers, self.workers) if on_cpu else (AHEAD, AHEAD)
        threads = ThreadPoolExecutor(n_threads, "embedder")

        def prepared(piece: list[int]) -> Any:
            ids = self.token_ids([texts[row] for row in piece])
            return self.embed_ids(ids) if on_cpu else ids

        try:
            for number, rows in enumerate(pieces):
                for piece in pieces[number + len(waiting) : number + 1 + ahead]:
                    waiting.append(threads.submit(prepared, piece))
                made = waiting.popleft().result()
                yield rows, made if on_cpu else self.embed_ids(made)
                n_done += len(rows)
                if on_batch is not None:
                    on_batch(n_done)
        finally:
            threads.shutdown(cancel_futures=True)

    def embed_ids(self, ids: Ids) -> np.ndarray:
        """f32[n, D] of texts as token ids from `token_ids`."""
        if self._torch_device.type == "cpu":
            return self._end_to_end(ids)
        padded = [min(-(-len(row) // LENGTH_STEP) * LENGTH_STEP, self.max_tokens) for row in ids]
        return embed_batches(
            padded, _gpu_rows, self.dim, lambda rows, length: self._padded([ids[r] for r in rows], length)
        )

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, cut at the model's limit, with start and end tokens."""
        # a lone surrogate has no bytes
        plain = [self._prefix + text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        limit = self.max_tokens - 2
        encoded = [row.ids for row in self._tokenizer.encode_batch_fast(plain, add_special_tokens=False)]
        with self._counting:
            self.n_truncated += sum(len(row) > limit for row in encoded)
        return [[self._cls, *row[:limit], self._sep] for row in encoded]

    # --- on a CPU: texts end to end ---

    def _end_to_end(self, ids: Ids) -> np.ndarray:
        vectors = np.zeros((len(ids), self.dim), dtype=np.float32)
        for rows in _runs(ids):
            with room_for(f"{len(rows)} texts of up to {len(ids[rows[-1]])} tokens", NO_ROOM):
                vectors[rows] = self._unpadded([ids[row] for row in rows]).numpy()
        return vectors

    def _unpadded(self, ids: Ids) -> torch.Tensor:
        """f32[n, D]: unit vectors of texts sorted by length; the last tile is filled up."""
        groups, n_tokens = [], 0  # (first token, texts, tokens per text)
        for length, rows in groupby(map(len, ids)):
            n_rows = len(list(rows))
            groups.append((n_tokens, n_rows, length))
            n_tokens += n_rows * length
        filled = -(-n_tokens // TILE) * TILE
        tokens, places = np.full(filled, self._pad, np.int64), np.zeros(filled, np.int64)
        tokens[:n_tokens] = np.fromiter(chain.from_iterable(ids), np.int64, n_tokens)
        for first, n_rows, length in groups:
            places[first : first + n_rows * length] = np.tile(np.arange(length), n_rows)

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            mixed = torch.zeros_like(qkv[:, 0])
            for first, n_rows, length in groups:
                rows, of_text = slice(first, first + n_rows * length), (n_rows, length)
                attention_into(mixed[rows].unflatten(0, of_text), qkv[rows].unflatten(0, of_text))
            return mixed

        with torch.inference_mode():
            hidden = self._model(torch.from_numpy(tokens), torch.from_numpy(places), attend).float()
            means = [
                hidden[first : first + n_rows * length].unflatten(0, (n_rows, length)).mean(1)
                for first, n_rows, length in groups
            ]
            return self._unit(torch.cat(means))

    # --- on a GPU: batches of one padded length ---

    def _padded(self, ids: Ids, length: int) -> torch.Tensor:
        """f32[n, D] on the device: unit vectors of one batch, which is filled up with empty texts."""
        rows = _gpu_rows(length)
        tokens = np.full((rows, length), self._pad, np.int64)
        sizes = np.full(rows, 2, np.int64)
        sizes[: len(ids)] = [len(row) for row in ids]
        tokens[len(ids) :, :2] = self._cls, self._sep
        inside = np.arange(length) < sizes[:, None]
        tokens[: len(ids)][inside[: len(ids)]] = np.fromiter(chain.from_iterable(ids), np.int64)
        on_device, mask = self._to_device(tokens), self._to_device(inside)
        places = torch.arange(length, device=mask.device).repeat(rows)

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            return attention(qkv.unflatten(0, (rows, length)), mask[:, None, None, :]).flatten(0, 1)

        with torch.inference_mode():
            hidden = self._model(on_device.flatten(), places, attend).float().unflatten(0, (rows, length))
            keep = mask.unsqueeze(-1).float()
            return self._unit((hidden * keep).sum(1) / keep.sum(1))[: len(ids)]

    def _unit(self, means: torch.Tensor) -> torch.Tensor:
        """Means of tokens f32[n, D] as unit vectors, around the centre if the model has one."""
        unit = F.normalize(means, dim=1)
        return unit if self._centre is None else F.normalize(unit - self._centre.to(unit.device), dim=1)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        """Copy an array to the device without waiting; torch keeps the pinned memory until the copy is done."""
        tensor = torch.from_numpy(array)
        if self._torch_device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._torch_device, non_blocking=True)


def _runs(ids: Ids) -> Iterator[list[int]]:
    """Rows sorted by length, in runs of about CPU_TOKENS tokens."""
    run, n_tokens = list[int](), 0
    for row in sorted(range(len(ids)), key=lambda row: len(ids[row])):
        if run and n_tokens + len(ids[row]) > CPU_TOKENS:
            yield run
            run, n_tokens = [], 0
        run.append(row)
        n_tokens += len(ids[row])
    if run:
        yield run


def _gpu_rows(length: int) -> int:
    """Rows per batch of texts of this padded length."""
    return GPU_TOKENS // length


def _tokenizer(folder: Path) -> Any:
    """Tokenizer in `folder`, without padding or truncation. Raises MissingBackend, ModelError."""
    with needing_transformers():
        from tokenizers import Tokenizer
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError("the tokenizer could not be loaded", given=f"{path}: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _special_tokens(tokenizer: Any) -> list[int]:
    """Ids of the tokens that begin a text, end it, and fill a batch."""
    names = ("[CLS]", "[SEP]", "[PAD]") if tokenizer.token_to_id("[CLS]") is not None else ("<s>", "</s>", "<pad>")
    return [tokenizer.token_to_id(name) for name in names]


def _settings(folder: Path) -> tuple[int, str, torch.Tensor | None]:
    """The model's own length limit, its default prompt (put before each text), and its centre or None.

    Raises ModelError, and BadInput for another pooling than the mean.
    """
    names = ("1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")
    try:
        pooling, lengths, prompts = (json.loads((folder / name).read_text(encoding="utf-8")) for name in names)
        limit = int(lengths["max_seq_length"])
        prefix = str(prompts.get("prompts", {}).get(prompts.get("default_prompt_name"), ""))
        centre = torch.from_numpy(np.fromfile(folder / CENTRE, "<f4")) if (folder / CENTRE).exists() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError("no sentence-transformers settings beside the model", given=f"{folder}: {error}") from error
    modes = sorted(k for k, v in pooling.items() if k.startswith("pooling_mode_") and v)
    if modes != ["pooling_mode_mean_tokens"]:
        raise BadInput("unsupported pooling", given=modes, expected="pooling_mode_mean_tokens alone")
    return limit, prefix, centre
