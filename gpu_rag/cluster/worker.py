"""A model in a worker's process, with `load` and `work`: plain classes, which `pool` turns into Ray actors.

Models are loaded in `load`, not on construction. So an error of loading is returned as itself, and no heavy module is
imported before the environment is set.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.library_environment import prepare_environment
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.packaged import packaged_llm_folder, set_cache_dir
from gpu_rag.models.set import plain_embedder, plain_llm
from gpu_rag.models.stored import model_folder
from gpu_rag.settings import ModelSettings
from gpu_rag.settings.sections import VllmSettings

# Texts of several lengths; their vectors show whether two workers compute the same bits.
PROBE = ("bits", "The river crosses the town below the old stone bridge.", "one two three four five six seven " * 12)


def installed_version() -> str:
    """The version of gpu-rag in this process."""
    return next((found.version for found in metadata.distributions(name="gpu-rag")), "not installed")


@dataclass(frozen=True)
class Facts:
    """A worker's description of itself. about: name, content hash and all else that must be equal for all workers."""

    window: int
    about: dict[str, Any]
    node: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    version: str = field(default_factory=installed_version)


class EmbedWorker:
    """An embedder in a worker. build: loads it."""

    streams = False  # each task is a separate call

    def __init__(self, build: Callable[[], Embedder]):
        prepare_environment()
        self._build = build

    def load(self) -> Facts:
        """Load the model. Raises the errors of `build`."""
        self._embedder = model = self._build()
        about = {"name": model.name, "content_hash": model.content_hash, "dim": model.dim, "device": model.device}
        bits = hashlib.sha256(model.embed(PROBE).tobytes()).hexdigest()
        # a window of two: the next texts are there when the previous ones are finished
        return Facts(2, {**about, "row_identical": model.row_identical, "bits": bits})

    def work(
        self, new: Sequence[tuple[int, list[str]]], unwanted: Sequence[int], wait_s: float
    ) -> list[tuple[int, Any]]:
        """(number, (f32[n, D], number of truncated texts)) for each list of texts."""
        found = []
        for number, texts in new:
            before = self._embedder.n_truncated
            vectors = self._embedder.embed(texts)
            found.append((number, (vectors, self._embedder.n_truncated - before)))
        return found


@dataclass(frozen=True)
class Loaded:
    """A language model. window: number of requests that it gets at once; tokenizer: its files, if it has some."""

    llm: LLM
    window: int
    tokenizer: dict[str, bytes] = field(default_factory=dict)


class LLMWorker:
    """A language model in a worker, with its streaming interface. build: loads it."""

    streams = True  # a call brings all new requests and returns the finished ones

    def __init__(self, build: Callable[[], Loaded]):
        prepare_environment()
        self._build = build

    def load(self) -> Facts:
        """Load the model. Raises the errors of `build`."""
        from gpu_rag.models.llm.service import as_streaming

        self._loaded = self._build()
        self._llm = llm = as_streaming(self._loaded.llm)
        about = {"name": llm.name, "content_hash": llm.content_hash}
        return Facts(self._loaded.window, {**about, "context_tokens": llm.context_tokens, "capable": llm.capable})

    def work(self, new: Sequence[tuple[int, Any]], unwanted: Sequence[int], wait_s: float) -> list[tuple[int, Any]]:
        """(number, reply) of the finished requests; waits up to wait_s for the first. Raises ModelError."""
        for number, request in new:
            self._llm.submit(number, request)
        for number in unwanted:
            self._llm.abort(number)
        return self._llm.poll(wait_s)

    def tokenizer(self) -> dict[str, bytes]:
        """{name: content} of the tokenizer's files; {} if the model has none."""
        return self._loaded.tokenizer

    def count_tokens(self, text: str) -> int:
        """The number of tokens of `text`, as the engine counts."""
        return self._llm.count_tokens(text)


TOKENIZER_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja"})
LARGEST_FILE = 64 * 2**20
WINDOW = 64  # requests at once for an engine without batches


def build_embedder(settings: ModelSettings, device: str, cache: str) -> Embedder:
    """The embedder of the settings. cache: the folder of packaged models on this node."""
    set_cache_dir(cache)
    return plain_embedder(settings, device)


def build_llm(settings: ModelSettings, vllm: VllmSettings, device: str, cache: str) -> Loaded:
    """The language model of the settings, with its tokenizer's files and its window."""
    set_cache_dir(cache)
    spec = settings.llm
    llm = plain_llm(settings, vllm, device)
    if spec.startswith("replay:"):
        return Loaded(llm, WINDOW)
    if spec.startswith("vllm:"):
        from gpu_rag.models.llm.vllm import window

        folder = model_folder(spec.removeprefix("vllm:"))
        return Loaded(llm, window(vllm, device.partition(":")[0]), tokenizer_files(folder))
    folder = packaged_llm_folder() if spec == "smollm2" else Path(spec)
    return Loaded(llm, 2 * settings.max_batch, tokenizer_files(folder))


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The tokenizer files of a model folder and other small text files: all but the weights."""
    files = (path for path in sorted(folder.iterdir()) if path.suffix in TOKENIZER_SUFFIXES and path.is_file())
    return {path.name: path.read_bytes() for path in files if path.stat().st_size <= LARGEST_FILE}
