"""Models named in the settings, loaded on first use."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rag.errors import UsageError
from gpu_rag.models.embed import load_embedder
from gpu_rag.models.embed.cache import CachedEmbedder, cache_file
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.llm import SPECS, load_llm
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.capability import is_capable, stored_parameters
from gpu_rag.models.llm.interface import LLM, ApiKeys, ServerAccount, StreamingLLM
from gpu_rag.models.llm.service import StreamingEngine, as_streaming
from gpu_rag.models.packaged import cache_dir
from gpu_rag.settings import ModelSettings
from gpu_rag.settings.sections import VllmSettings

if TYPE_CHECKING:
    from gpu_rag.models.rerank import CrossEncoder


def pick_device(device: str) -> str:
    """Device for `auto`: cuda if torch has one, else cpu. Raises UsageError for cuda without a GPU."""
    if device == "cpu":
        return device
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("no CUDA device found", given=f"models.device={device}", expected="auto | cpu")
    if not device.startswith("cuda"):
        raise UsageError("unknown device", given=device, expected="auto | cpu | cuda")
    return device


class ModelSet:
    """Embedder and LLM of one run. The LLM has a durable reply cache if `replies` names its file.

    retry_unread: see `CachedLLM`. pooled: folder of vectors from `keep_vectors`, which are not computed again. workers:
    see `load_embedder`.
    """

    def __init__(
        self,
        settings: ModelSettings,
        replies: Path | None = None,
        *,
        llm: LLM | None = None,
        api_key: ApiKeys = None,
        vllm: VllmSettings | None = None,
        retry_unread: bool = False,
        pooled: Path | None = None,
        workers: int = 1,
    ):
        self.settings, self._replies, self._api_key, self._pooled = settings, replies, api_key, pooled
        self._retry_unread, self._workers = retry_unread, workers
        self._vllm = vllm or VllmSettings()
        self._embedder: Embedder | None = None
        self._encoder: CrossEncoder | None = None
        self._given = llm
        self._llm: LLM | None = None  # the engine behind the cache
        self._cached: LLM | None = None
        self._streaming: StreamingLLM | None = None
        self._used_replies: set[str] | None = None
        self._borrows = False  # whether the LLM belongs to another set, which closes it
        if settings.device not in ("auto", "cpu"):
            pick_device(settings.device)  # raises before anything is loaded

    @cached_property
    def device(self) -> str:
        """The device of the models, see `pick_device`."""
        return pick_device(self.settings.device)

    def embedder(self) -> Embedder:
        """The embedding model."""
        if self._embedder is None:
            settings = self.settings
            device = "cpu" if settings.embedder == "hash" else self.device  # "auto" loads torch
            plain = load_embedder(
                settings.embedder,
                device,
                settings.model_threads,
                workers=self._workers,
                api_key=self._api_key,
                connections=settings.connections,
                ca_file=settings.ca_file,
            )
            self._embedder = self._with_cache(plain)
        return self._embedder

    def _with_cache(self, embedder: Embedder) -> Embedder:
        """Embedder behind the machine's vector cache, unless that is off, and behind pooled vectors, if any.
        `hash` has no cache, because hashing is cheaper than reading."""
        limit = int(self.settings.vector_cache_gib * 2**30)
        if self.settings.embedder == "hash":
            return embedder
        if limit > 0:
            path = cache_file(cache_dir(), embedder.content_hash)
            if embedder.device != "cpu":  # another device gives other bits
                path = path.with_name(f"{path.stem}-{embedder.device.split(':')[0]}.vectors")
            embedder = CachedEmbedder(embedder, path, limit)
        pooled = self._pooled and cache_file(self._pooled, embedder.content_hash)
        return CachedEmbedder(embedder, pooled, 0) if pooled and pooled.is_file() else embedder

    def cross_encoder(self) -> CrossEncoder | None:
        """Reranker, if the settings name its folder. Raises as `CrossEncoder`."""
        folder = self.settings.reranker
        if self._encoder is None and folder:
            from gpu_rag.models.rerank import CrossEncoder

            self._encoder = CrossEncoder(folder, device=self.device, threads=self.settings.model_threads)
        return self._encoder

    def has_llm(self) -> bool:
        """Whether the settings name an LLM."""
        return self._given is not None or self.settings.llm != "none"

    def is_capable(self) -> bool:
        """Whether the LLM may decide, without loading it: by the settings, the files of its folder, or its name."""
        spec, given = self.settings.llm, self.settings.capable
        if self._given is not None or self._llm is not None or spec.startswith("replay:"):
            return self.llm().capable
        if given is not None or not self.has_llm() or spec == "smollm2":
            return bool(given) and self.has_llm()
        folder = Path(spec.removeprefix("vllm:"))
        return is_capable(spec.rpartition("#")[2] or spec, stored_parameters(folder) if folder.is_dir() else None)

    def llm(self) -> LLM:
        """The language model. Raises UsageError if the settings say `none`."""
        if self._cached is None:
            if not self.has_llm():
                raise UsageError("this needs a language model", given="models.llm=none", expected=SPECS)
            self._llm = self._given or self._engine()
            kept = self._replies
            self._cached = CachedLLM(self._llm, kept, self._retry_unread) if kept else self._llm
            if isinstance(self._cached, CachedLLM):
                self._cached.file.used = self._used_replies
        return self._cached

    def _engine(self) -> LLM:
        """Language model named in the settings, in this process and without a cache. Raises as `load_llm`."""
        settings, options = self.settings, dict[str, Any]()
        if settings.llm.startswith("http"):
            options = {"api_key": self._api_key, "max_connections": settings.connections, "style": None}
            options |= {"think_tokens": settings.think_tokens, "extra_body": settings.more_body}
            options |= {"revision": settings.revision, "ca_file": settings.ca_file}
        elif settings.llm.startswith("vllm:"):
            options["settings"] = self._vllm
        elif not settings.llm.startswith("replay:"):
            options["max_batch"] = settings.max_batch
        return load_llm(
            settings.llm, device=self.device, threads=settings.model_threads, capable=settings.capable, **options
        )

    def note_replies(self, keys: set[str]) -> None:
        """Add to `keys` the keys of kept replies that are read or written from now on."""
        self._used_replies = keys
        if isinstance(self._cached, CachedLLM):
            self._cached.file.used = keys

    def use(self, roles: Collection[str]) -> None:
        """Announce the roles used next. Without "llm", an engine frees its GPU memory until its next request."""
        if "llm" not in roles and isinstance(self._llm, StreamingEngine):
            self._llm.sleep()

    def servers(self) -> list[ServerAccount]:
        """Account of each server of the LLM; [] for other models."""
        return self._llm.accounts() if isinstance(self._llm, StreamingEngine) else []

    def describe(self, role: str) -> dict[str, Any]:
        """{"name", "content_hash"} of a role, and "dim" of the embedder."""
        if role == "embedder":
            embedder = self.embedder()
            return {"name": embedder.name, "content_hash": embedder.content_hash, "dim": embedder.dim}
        if role == "reranker" and (encoder := self.cross_encoder()) is not None:
            return {"name": encoder.name, "content_hash": encoder.content_hash}
        llm = self.llm()
        return {"name": llm.name, "content_hash": llm.content_hash}

    def streaming_llm(self) -> StreamingLLM:
        """The language model of `llm`, with the streaming interface."""
        if self._streaming is None:
            self._streaming = as_streaming(self.llm())
        return self._streaming

    def with_embedder(self, name: str) -> ModelSet:
        """A set with another embedder and the other models of this one, which must be closed later than the new set."""
        other = copy(self)
        other.settings, other._embedder, other._borrows = replace(self.settings, embedder=name), None, True
        other._given = self.llm() if self.has_llm() else None
        other._cached, other._encoder = other._given, self.cross_encoder()
        return other

    def close(self) -> None:
        """Close the LLM and the caches."""
        embedder, self._embedder = self._embedder, None
        if isinstance(embedder, CachedEmbedder):
            embedder.close()
        opened = self._streaming or self._cached
        if opened is not None:
            if not self._borrows:
                opened.close()
            self._cached = self._streaming = None
