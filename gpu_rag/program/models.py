"""The models of a run. `decide` and `embed` use them, and their steps receive them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_rag.errors import RequestFailed, UsageError
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.llm.interface import LLM
from gpu_rag.types import Reply

if TYPE_CHECKING:  # imports torch
    from gpu_rag.models.rerank import CrossEncoder


@dataclass(frozen=True)
class Models:
    """The models of a run.

    llm: None if none answers. on_reply: called with each finished reply, for progress. encoder: the cross-encoder that
    reranks, or None.
    """

    llm: LLM | None
    embedder: Embedder
    on_reply: Callable[[Reply | RequestFailed], None] | None = None
    encoder: CrossEncoder | None = None

    @property
    def cross_encoder(self) -> CrossEncoder:
        """The cross-encoder. Raises UsageError if none is configured."""
        if self.encoder is None:
            raise UsageError("this step needs a cross-encoder", do="name its folder: --set models.reranker=FOLDER")
        return self.encoder

    @property
    def language_model(self) -> LLM:
        """The language model. Raises UsageError if none is configured."""
        if self.llm is None:
            raise UsageError(
                "this step needs a language model and none is configured", do="choose one with --set models.llm=MODEL"
            )
        return self.llm
