"""The part of OpenAI's protocol that is answered here: chat completions, whole or streamed, and the list of models."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from gpu_rag.jobs import openai_row
from gpu_rag.serve.admission import Batch
from gpu_rag.serve.bodies import ChatBody
from gpu_rag.serve.refusal import Refusal, error_body


def completion(row: dict[str, Any], model: str) -> dict[str, Any]:
    """The chat completion of a row; the answer is the message's content, the row stands under `gpu_rag`.

    Raises Refusal (500) for a failed row: a client of that protocol looks for failures in the status alone.
    """
    if row["status"] == "failed":
        status = 503 if row["error"]["type"] == "ModelError" else 500
        raise Refusal(status, row["error"]["message"], kind=row["error"]["type"])
    body: dict[str, Any] = openai_row(row, model)["response"]["body"]
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), **body}


async def events(batch: Batch, body: ChatBody) -> AsyncIterator[bytes]:
    """The same as server-sent events: one chunk with the role and the content, one with the end, then [DONE].

    A failure is an event with `error`, after which nothing but [DONE] comes.
    """
    _, row = await batch.next_row()
    try:
        whole = completion(row, body.model)
    except Refusal as error:
        yield _event(error_body(error, "/v1/chat/completions"))
    else:
        yield _event(_chunk(whole, whole["choices"][0]["message"], None))
        yield _event({**_chunk(whole, {}, "stop"), "gpu_rag": row})
        if body.stream_options is not None and body.stream_options.include_usage:
            yield _event({**_chunk(whole, {}, None), "choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


def _chunk(whole: dict[str, Any], delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    kept = {name: whole[name] for name in ("id", "created", "model")}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**kept, "object": "chat.completion.chunk", "choices": [choice]}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, allow_nan=False).encode() + b"\n\n"  # ASCII: no line end within


def model(name: str, created: int) -> dict[str, Any]:
    """One entry of the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "gpu-rag"}


def unknown_model(name: str, names: list[str]) -> Refusal:
    """The error for a model that is not in the list."""
    expected = " | ".join(names) or "none: this server has no language model"
    return Refusal(404, "no such model", kind="model_not_found", given=name[:80], expected=expected)
