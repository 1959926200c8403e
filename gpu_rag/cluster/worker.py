"""A model in a worker's process, behind `load` and `work`: plain classes, which `pool` turns into Ray actors.

Models are loaded in `load`, not when a worker is made: so an error of loading comes back as itself, and nothing heavy
is imported before the environment is set.
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

# Texts of several lengths whose vectors tell whether two workers compute the same bits.
PROBE = ("bits", "The river crosses the town below the old stone bridge.", "one two three four five six seven " * 12)


def installed_version() -> str:
    """The version of gpu-rag in this process."""
    return next((found.version for found in metadata.distributions(name="gpu-rag")), "not installed")


@dataclass(frozen=True)
class Facts:
    """A worker's description of itself. about: name, content hash and whatever else all workers must agree on."""

    window: int
    about: dict[str, Any]
    node: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    version: str = field(default_factory=installed_version)


class EmbedWorker:
    """An embedder. build: loads it."""

    streams = False  # each task is a call of its own

    def __init__(self, build: Callable[[], Embedder]):
        prepare_environment()
        self._build = build

    def load(self) -> Facts:
        """Load the model. Raises what `build` raises."""
        self._embedder = model = self._build()
        about = {"name": model.name, "content_hash": model.content_hash, "dim": model.dim, "device": model.device}
        bits = hashlib.sha256(model.embed(PROBE).tobytes()).hexdigest()
        # two calls: the next texts are there when the worker has finished those before
        return Facts(2, {**about, "row_identical": model.row_identical, "bits": bits})

    def work(
        self, new: Sequence[tuple[int, list[str]]], unwanted: Sequence[int], wait_s: float
    ) -> list[tuple[int, Any]]:
        """(number, (f32[n, D], texts cut)) of each list of texts."""
        found = []
        for number, texts in new:
            before = self._embedder.n_truncated
            vectors = self._embedder.embed(texts)
            found.append((number, (vectors, self._embedder.n_truncated - before)))
        return found


@dataclass(frozen=True)
class Loaded:
    """A language model. window: requests that it is given at once; tokenizer: its files, where it has some."""

    llm: LLM
    window: int
    tokenizer: dict[str, bytes] = field(default_factory=dict)


class LLMWorker:
    """A language model behind its streaming face. build: loads it."""

    streams = True  # a call gives all that is new and brings what is finished

    def __init__(self, build: Callable[[], Loaded]):
        prepare_environment()
        self._build = build

    def load(self) -> Facts:
        """Load the model. Raises what `build` raises."""
        from gpu_rag.models.llm.service import as_streaming

        self._loaded = self._build()
        self._llm = llm = as_streaming(self._loaded.llm)
        about = {"name": llm.name, "content_hash": llm.content_hash}
        return Facts(self._loaded.window, {**about, "context_tokens": llm.context_tokens, "capable": llm.capable})

    def work(self, new: Sequence[tuple[int, Any]], unwanted: Sequence[int], wait_s: float) -> list[tuple[int, Any]]:
        """(number, reply) of the requests that have finished; waits up to wait_s for the first. Raises ModelError."""
        for number, request in new:
            self._llm.submit(number, request)
        for number in unwanted:
            self._llm.abort(number)
        return self._llm.poll(wait_s)

    def tokenizer(self) -> dict[str, bytes]:
        """The files of the tokenizer, by name; {} where the model has none."""
        return self._loaded.tokenizer

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, as the engine counts."""
        return self._llm.count_tokens(text)


TOKENIZER_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja"})
LARGEST_FILE = 64 * 2**20
WINDOW = 64  # requests that an engine without batches of its own is given at once


def build_embedder(settings: ModelSettings, device: str, cache: str) -> Embedder:
    """The embedder that `settings` name. cache: where the packaged models of this node are kept."""
    set_cache_dir(cache)
    return plain_embedder(settings, device)


def build_llm(settings: ModelSettings, vllm: VllmSettings, device: str, cache: str) -> Loaded:
    """The language model that `settings` name, with its tokenizer's files and how much it takes at once."""
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
    """The files in a model folder that make up its tokenizer, and what it is found by: all but the weights."""
    files = (path for path in sorted(folder.iterdir()) if path.suffix in TOKENIZER_SUFFIXES and path.is_file())
    return {path.name: path.read_bytes() for path in files if path.stat().st_size <= LARGEST_FILE}
