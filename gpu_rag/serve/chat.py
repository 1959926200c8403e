"""OpenAI's protocol: rows as chat completions, and as the events of streamed completions."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from gpu_rag.jobs import completion
from gpu_rag.serve.bodies import ChatBody
from gpu_rag.serve.refusal import Refusal, check_answered, error_body


def chat_completion(row: dict[str, Any], model: str) -> dict[str, Any]:
    """The chat completion of a row, which is under `gpu_rag`. Raises as `check_answered`."""
    check_answered(row)
    return {**completion(row, model, int(time.time())), "id": _name(), "gpu_rag": row}


def unsent(answer: str, sent: str) -> str:
    """The text that completes a stream. If the model was asked again and the answer does not begin with the sent
    pieces, which cannot be taken back, it is the whole answer on a new line."""
    return answer.removeprefix(sent) if answer.startswith(sent) else f"\n{answer}"


class ChatEvents:
    """The server-sent events of one completion: the answer in pieces, an event with the end and the row, then [DONE].

    A failure is an event with `error`, followed only by [DONE].
    """

    def __init__(self, body: ChatBody):
        self._wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._model, self._sent = body.model, ""
        self._chunk = {
            "id": _name(),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": body.model,
        }
        if self._wants_usage:
            self._chunk["usage"] = None
        self._begun = False

    def __call__(self, item: dict[str, Any] | str) -> bytes:
        """The events of a piece of the answer, or of the final row."""
        if isinstance(item, str):
            return _events(self._content(item))
        try:
            whole = chat_completion(item, self._model)
        except Refusal as error:
            return _events(error_body(error, "/v1/chat/completions")) + _DONE
        answer = whole["choices"][0]["message"]["content"]
        new_text = unsent(answer, self._sent)
        chunks = [self._content(new_text)] if new_text or not self._begun else []
        chunks.append({**self._choice({}, "stop"), "gpu_rag": item})
        if self._wants_usage:
            chunks.append({**self._chunk, "choices": [], "usage": whole["usage"]})
        return _events(*chunks) + _DONE

    def _content(self, text: str) -> dict[str, Any]:
        role = {} if self._begun else {"role": "assistant"}
        self._begun, self._sent = True, self._sent + text
        return self._choice({**role, "content": text})

    def _choice(self, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        return {**self._chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


_DONE = b"data: [DONE]\n\n"


def _name() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"


def _events(*values: dict[str, Any]) -> bytes:
    return b"".join(
        f"data: {json.dumps(value, allow_nan=False)}\n\n".encode() for value in values
    )  # ASCII, so no line end inside
