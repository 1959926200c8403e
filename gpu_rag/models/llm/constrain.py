"""Constrained generation: llguidance decides which tokens may come next."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import RequestFailed, needing
from gpu_rag.models.llm.interface import JSON_LAYOUT
from gpu_rag.types import Choice, JsonSchema


class Grammars:
    """Matchers for one tokenizer. Compiled grammars are kept; a matcher is the state of one request."""

    def __init__(self, tokenizer: Any, n_vocab: int, eos_ids: list[int]):
        """Set up llguidance for a fast transformers tokenizer and n_vocab logits. Raises MissingBackend."""
        with needing("constrained replies need llguidance", "pip install 'gpu-rag[cpu]'"):
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        self._matcher_class = LLMatcher
        self._tokenizer = from_tokenizer(tokenizer, n_vocab=n_vocab, eos_token=eos_ids)
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def matcher(self, constraint: JsonSchema | Choice) -> Matcher | RequestFailed:
        """A matcher in its first state, or the reason why the constraint cannot be compiled."""
        compiled = self._compiled(constraint)
        return compiled if isinstance(compiled, RequestFailed) else Matcher(compiled.deep_copy())

    def _compile(self, constraint: JsonSchema | Choice) -> Any:
        try:
            if isinstance(constraint, JsonSchema):
                text = self._matcher_class.grammar_from_json_schema(constraint.schema, overrides=JSON_LAYOUT)
            else:
                text = self._matcher_class.grammar_from_lark(_choice_grammar(constraint.options))
        except ValueError as error:
            return RequestFailed("the constraint is not valid", given=error, expected="a JSON Schema")
        matcher = self._matcher_class(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            return RequestFailed("the constraint cannot be compiled", given=matcher.get_error().splitlines()[0])
        return matcher


class Matcher:
    """State of one constrained reply."""

    def __init__(self, matcher: Any):
        self._matcher = matcher

    def allowed(self, n_vocab: int) -> torch.Tensor:
        """bool[n_vocab]: tokens that may come next, including the end token if the reply may end."""
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(words, bitorder="little")[:n_vocab].astype(bool)
        if len(bits) < n_vocab:
            bits = np.concatenate([bits, np.zeros(n_vocab - len(bits), dtype=bool)])
        return torch.from_numpy(bits)

    def take(self, token: int) -> bool:
        """Append a token; True when the reply is complete and nothing may follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())

    def error(self) -> str:
        """Error of the matcher, or ""."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""


def _choice_grammar(options: tuple[str, ...]) -> str:
    return "start: " + " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
