"""The models that settings name, loaded on first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_rag.errors import UsageError
from gpu_rag.models.embed import Embedder, load_embedder
from gpu_rag.models.embed.cache import CachedEmbedder, cache_file
from gpu_rag.models.llm import LLM, load_llm
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.interface import StreamingLLM
from gpu_rag.models.llm.service import as_streaming
from gpu_rag.models.packaged import cache_dir
from gpu_rag.settings import ModelSettings
from gpu_rag.settings_vllm import VllmSettings


def pick_device(device: str) -> str:
    """`auto` -> cuda where torch has one, else cpu. Raises UsageError for cuda where there is none."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("no CUDA device found", given=f"models.device={device}", expected="auto | cpu")
    if device != "cpu" and not device.startswith("cuda"):
        raise UsageError("unknown device", given=device, expected="auto | cpu | cuda")
    return device


class ModelSet:
    """Embedder and LLM of one run. The LLM answers through a durable reply cache where `replies` names its file."""

    def __init__(
        self,
        settings: ModelSettings,
        replies: Path | None = None,
        *,
        llm: LLM | None = None,
        api_key: str | None = None,
        vllm: VllmSettings | None = None,
    ):
        self.settings, self._replies, self._api_key = settings, replies, api_key
        self._vllm = vllm or VllmSettings()
        self._embedder: Embedder | None = None
        self._given, self._llm = llm, None
        self._cached: LLM | None = None
        self._streaming: StreamingLLM | None = None
        self.device = pick_device(settings.device)

    def embedder(self) -> Embedder:
        """The embedding model."""
        if self._embedder is None:
            plain = load_embedder(self.settings.embedder, device=self.device, threads=self.settings.threads)
            self._embedder = self._with_cache(plain)
        return self._embedder

    def _with_cache(self, embedder: Embedder) -> Embedder:
        """Behind the machine's vector cache, unless it is switched off, or rows depend on their batch."""
        limit = int(self.settings.vector_cache_gib * 2**30)
        # hashing is cheaper than reading
        if limit <= 0 or not embedder.row_identical or self.settings.embedder == "hash":
            return embedder
        path = cache_file(cache_dir(), embedder.content_hash)
        if self.device != "cpu":  # another device gives other bits
            path = path.with_name(f"{path.stem}-{self.device.split(':')[0]}.sqlite")
        return CachedEmbedder(embedder, path, limit)

    def has_llm(self) -> bool:
        """Whether the settings name an LLM."""
        return self._given is not None or self.settings.llm != "none"

    def llm(self) -> LLM:
        """The language model. Raises UsageError where the settings say `none`."""
        if self._cached is None:
            if not self.has_llm():
                raise UsageError(
                    "this needs a language model", given="models.llm=none", expected="smollm2 | a folder | a URL"
                )
            inner = self._given or self._load()
            self._cached = CachedLLM(inner, self._replies) if self._replies else inner
        return self._cached

    def _load(self) -> LLM:
        spec = self.settings.llm
        options: dict[str, Any] = {"api_key": self._api_key} if spec.startswith("http") else {}
        if spec.startswith("vllm:"):
            options["settings"] = self._vllm
        elif not spec.startswith(("http", "replay:")):
            options["max_batch"] = self.settings.max_batch
        return load_llm(
            spec, device=self.device, threads=self.settings.threads, capable=self.settings.capable, **options
        )

    def describe(self, role: str) -> dict[str, Any]:
        """{"name", "content_hash"} of a role, and "dim" of the embedder."""
        if role == "embedder":
            embedder = self.embedder()
            return {"name": embedder.name, "content_hash": embedder.content_hash, "dim": embedder.dim}
        llm = self.llm()
        return {"name": llm.name, "content_hash": llm.content_hash}

    def streaming_llm(self) -> StreamingLLM:
        """The language model of `llm`, by its face for one request after the other."""
        if self._streaming is None:
            self._streaming = as_streaming(self.llm())
        return self._streaming

    def close(self) -> None:
        """Closes the LLM and its cache."""
        held = self._streaming or self._cached
        if held is not None:
            held.close()
            self._cached = self._streaming = None
