"""The models of a run, and who decides: what `ask`, `choose` and `embed` work with, and what their steps are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_rag.errors import RequestFailed, UsageError
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.llm.interface import LLM
from gpu_rag.types import Reply

if TYPE_CHECKING:  # it imports torch
    from gpu_rag.models.rerank import CrossEncoder

DECIDERS = ("auto", "llm", "similarity")


def resolve_decider(decider: str, llm: LLM | None) -> str:
    """llm | similarity. "auto" is llm where there is a capable model, else similarity."""
    if decider not in DECIDERS:
        raise UsageError("unknown decider", given=decider, expected=" | ".join(DECIDERS))
    if decider == "auto":
        return "llm" if llm is not None and llm.capable else "similarity"
    if decider == "llm" and llm is None:
        raise UsageError("decider llm needs a language model", do="configure one, or use the decider similarity")
    return decider


@dataclass(frozen=True)
class Models:
    """The models of a run. llm: None where none answers. decider: auto | llm | similarity. threshold: least cosine of a
    choice that may be empty, where a prompt does not bring its own. temperature: of every request. reason: whether
    replies begin with a reason, see `program.reason`. on_reply: called with each reply as it is finished, for progress.
    reranks_by: encoder | llm, or "" where evidence stays in its order; encoder: the cross-encoder.
    """

    llm: LLM | None
    embedder: Embedder
    decider: str = "auto"
    threshold: float = 0.3
    temperature: float = 0.0
    reason: bool = False
    on_reply: Callable[[Reply | RequestFailed], None] | None = None
    reranks_by: str = ""
    encoder: CrossEncoder | None = None

    def __post_init__(self) -> None:
        resolve_decider(self.decider, self.llm)
        if not -1.0 <= self.threshold <= 1.0:
            raise UsageError("the threshold is a cosine", given=self.threshold, expected="-1 to 1")
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError("the temperature cannot be negative", given=self.temperature, expected=">= 0")

    @property
    def decides_by(self) -> str:
        """llm | similarity."""
        return resolve_decider(self.decider, self.llm)

    @property
    def model_decides(self) -> bool:
        """Whether planning and deciding are the language model's: it is capable, and the decider is not similarity."""
        return self.decides_by == "llm" and self.language_model.capable

    @property
    def cross_encoder(self) -> CrossEncoder:
        """The cross-encoder. Raises UsageError where none is configured."""
        if self.encoder is None:
            raise UsageError("this step needs a cross-encoder", do="name its folder: --set models.reranker=FOLDER")
        return self.encoder

    @property
    def language_model(self) -> LLM:
        """The language model. Raises UsageError where none is configured."""
        if self.llm is None:
            raise UsageError(
                "this step needs a language model and none is configured", do="choose one with --set models.llm=MODEL"
            )
        return self.llm
