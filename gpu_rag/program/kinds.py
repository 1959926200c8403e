"""The kinds of steps: the service that answers each kind, when it runs, and the resource that a driver passes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_rag.errors import RequestFailed, UsageError
from gpu_rag.index.index import Index
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.llm.interface import LLM as LanguageModel
from gpu_rag.runtime.step import RANK_EMBED, RANK_GRAPH, RANK_LLM, RANK_TEXT, RANK_WALK, Kind
from gpu_rag.types import Reply

if TYPE_CHECKING:  # imports torch
    from gpu_rag.models.rerank import CrossEncoder


@dataclass(frozen=True)
class Models:
    """The models of a run. `decide` and `embed` use them, and their steps receive them.

    llm: None if none answers. on_reply: called with each finished reply, for progress. encoder: the cross-encoder that
    reranks, or None.
    """

    llm: LanguageModel | None
    embedder: Embedder
    on_reply: Callable[[Reply | RequestFailed], None] | None = None
    encoder: CrossEncoder | None = None

    @property
    def language_model(self) -> LanguageModel:
        """The language model. Raises UsageError if none is configured."""
        if self.llm is None:
            do = "choose one with --set models.llm=MODEL"
            raise UsageError("this step needs a language model and none is configured", do=do)
        return self.llm


TEXT: Kind[Index] = Kind("index", "text", RANK_TEXT)
GRAPH: Kind[Index] = Kind("index", "graph", RANK_GRAPH)
WALK: Kind[Index] = Kind("index", "graph", RANK_WALK)  # over the whole graph: expensive, and last in most programs
EMBED: Kind[Models] = Kind("models", "embed", RANK_EMBED)
LLM: Kind[Models] = Kind("models", "llm", RANK_LLM, max_batch=8192)
