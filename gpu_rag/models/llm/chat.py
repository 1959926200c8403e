"""Conversion of requests to token ids: the model's chat template, cut into a static head, the prompt, and a tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpu_rag.errors import ContextOverflow, ModelError, RequestFailed
from gpu_rag.types import Rank, Request

# Two texts tokenized apart may need one token more than both together.
CONTEXT_MARGIN = 8

# Placeholder of the prompt while the template is rendered: private-use characters, which no template contains.
_SLOT = "\ue000prompt\ue001"


@dataclass
class Prompted:
    """A request as token ids. ids: prompt and tail; head: comes before them and is shared; options: options of a
    Rank."""

    request: Request
    head: tuple[int, ...]
    ids: list[int]
    options: list[list[int]] = field(default_factory=list)

    @property
    def n_prompt(self) -> int:
        """Number of tokens before the reply."""
        return len(self.head) + len(self.ids)

    @property
    def n_more(self) -> int:
        """Number of tokens that the reply may have."""
        return max(map(len, self.options)) if self.options else self.request.max_tokens


class ChatFormat:
    """Token ids of system + prompt in the model's own chat template.

    The template is rendered once per system text, with a slot for the prompt; head, prompt and tail are tokenized
    apart. So every request of a stage starts with exactly the same head, whose keys and values are computed once, and
    token counts add up. A prompt that spells a special token ("<|im_end|>") is read as plain characters and cannot
    leave its slot. If a template refuses a system role, the user's text begins with it; a model without template gets
    "system, empty line, prompt, newline".
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self.head_ids = lru_cache(maxsize=256)(self._head_ids)
        self.tail_ids = tuple(self._encode(self._rendered("")[1]))

    def prompt_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of plain texts, without special tokens."""
        if not texts:
            return []
        plain = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # a lone surrogate has no bytes
        encoded = self._tokenizer(plain, add_special_tokens=False, split_special_tokens=True, verbose=False)
        return [list(ids) for ids in encoded["input_ids"]]

    def prompted(self, requests: Sequence[Request], limit: int) -> list[Prompted | RequestFailed]:
        """Requests as token ids; a failure for a request without a prompt or with more than `limit` tokens in all."""
        prompts = self.prompt_ids([request.prompt for request in requests])
        return [self._prompted(request, ids, limit) for request, ids in zip(requests, prompts, strict=True)]

    def _prompted(self, request: Request, prompt: list[int], limit: int) -> Prompted | RequestFailed:
        result = Prompted(request, self.head_ids(request.system), [*prompt, *self.tail_ids])
        if not result.ids:
            return RequestFailed("an empty prompt", expected="some text")
        if isinstance(request.constraint, Rank):
            options = request.constraint.options
            result.options = self.prompt_ids(options)
            if not all(result.options):
                return RequestFailed("an option without tokens", given=options, expected="some text in each")
        if result.n_prompt + result.n_more > limit:
            given = f"{result.n_prompt} prompt and {result.n_more} reply tokens"
            do = "shorten the prompt or lower max_tokens"
            return ContextOverflow("the prompt does not fit", given=given, expected=f"<= {limit} in all", do=do)
        return result

    def context_tokens(self, limit: int) -> int:
        """Tokens for system text, prompt and reply in a context of `limit` tokens, without the template's own."""
        with_system = len(self.head_ids("system")) - len(self.prompt_ids(["system"])[0])
        return limit - max(len(self.head_ids("")), with_system) - len(self.tail_ids) - CONTEXT_MARGIN

    def _head_ids(self, system: str) -> tuple[int, ...]:
        head, _ = self._rendered(system)
        if self._tokenizer.chat_template:
            return tuple(self._encode(head))
        ids = list(self._tokenizer(head, add_special_tokens=True, verbose=False)["input_ids"])
        return tuple(ids[:-1] if ids and ids[-1] == self._tokenizer.eos_token_id else ids)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _rendered(self, system: str) -> tuple[str, str]:
        """Text of the template before and after the prompt."""
        if not self._tokenizer.chat_template:
            return (system + "\n\n" if system else ""), "\n"
        from jinja2 import TemplateError

        user = {"role": "user", "content": _SLOT}
        messages = [{"role": "system", "content": system}, user] if system else [user]
        try:
            text = self._render(messages)
        except TemplateError:
            text = self._render([{"role": "user", "content": f"{system}\n\n{_SLOT}" if system else _SLOT}])
        head, slot, tail = text.partition(_SLOT)
        if not slot or _SLOT in tail:
            raise ModelError("the model's chat template does not show the prompt once", given=repr(text[:200]))
        return head, tail

    def _render(self, messages: list[dict[str, str]]) -> str:
        # templates of thinking models use enable_thinking; others ignore it
        return str(
            self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )
