"""From a request to token ids: the model's chat template, cut into a static head, the prompt, and a tail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gpu_rag.errors import ModelError

# Stands for the prompt while the template is rendered; private-use characters, so no template text contains it.
_SLOT = "\ue000prompt\ue001"


class ChatFormat:
    """Token ids of system + prompt in the model's own chat template.

    The template is rendered once a system text, with a slot for the prompt; head, prompt and tail are tokenized
    apart. So every request of a stage starts with exactly the same head, whose keys and values are computed once,
    counts add up, and a prompt that spells a special token ("<|im_end|>") is read as plain characters and cannot
    leave its place. A template that refuses a system role gets it as the start of the user's text; a model without
    template gets "system, empty line, prompt, newline".
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self.head_ids = lru_cache(maxsize=256)(self._head_ids)
        self.tail_ids = tuple(self._encode(self._rendered("")[1]))

    def prompt_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of plain texts, where nothing is a special token."""
        if not texts:
            return []
        plain = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # a lone surrogate has no bytes
        encoded = self._tokenizer(plain, add_special_tokens=False, split_special_tokens=True, verbose=False)
        return [list(ids) for ids in encoded["input_ids"]]

    def overhead(self) -> int:
        """The most tokens that the template adds, with a system text or without one."""
        with_system = len(self.head_ids("system")) - len(self.prompt_ids(["system"])[0])
        return max(len(self.head_ids("")), with_system) + len(self.tail_ids)

    def _head_ids(self, system: str) -> tuple[int, ...]:
        head, _ = self._rendered(system)
        if self._tokenizer.chat_template:
            return tuple(self._encode(head))
        ids = list(self._tokenizer(head, add_special_tokens=True, verbose=False)["input_ids"])
        return tuple(ids[:-1] if ids and ids[-1] == self._tokenizer.eos_token_id else ids)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _rendered(self, system: str) -> tuple[str, str]:
        """What the template puts before and after the prompt."""
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
        # templates of models that can think aloud know enable_thinking; others ignore it
        return str(
            self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )
