"""Opens the models of a call, and the engine that uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_rag.engine import Engine
from gpu_rag.index.index import Index
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import Settings

Models = tuple[Settings, LLM | None, ApiKeys]  # settings that name models, a model as an object, keys of servers


def open_models(
    settings: Settings,
    replies: Path | None = None,
    *,
    llm: LLM | None = None,
    api_key: ApiKeys = None,
    retry_unread: bool = False,
    pooled: Path | None = None,
) -> ModelSet:
    """The models of the settings, loaded on first use. replies: a file that stores the LLM's replies; pooled: see
    `ModelSet`."""
    given: dict[str, Any] = {"llm": llm, "api_key": api_key, "retry_unread": retry_unread, "pooled": pooled}
    return ModelSet(settings.models, replies, vllm=settings.vllm, **given)


def engine_over(index: Index, models: ModelSet, settings: Settings) -> Engine:
    """An engine. The vectors of the index are moved to the device of the models."""
    index.device = models.device
    return Engine(index, settings, models)


def open_engine(index: Index, by: Models, replies: Path | None = None, retry_unread: bool = False) -> Engine:
    """An engine with its own models, which the caller must close."""
    settings, llm, api_key = by
    return engine_over(
        index, open_models(settings, replies, llm=llm, api_key=api_key, retry_unread=retry_unread), settings
    )
