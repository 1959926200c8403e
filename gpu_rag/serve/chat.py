"""The part of OpenAI's protocol that is answered here: chat completions, whole or streamed, and the list of models."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from gpu_rag.jobs import openai_row
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


def events(body: ChatBody, row: dict[str, Any]) -> bytes:
    """The same as server-sent events: one chunk with the role and the content, one with the end, then [DONE].

    A failure is an event with `error`, after which nothing but [DONE] comes.
    """
    try:
        whole = completion(row, body.model)
    except Refusal as error:
        return _events(error_body(error, "/v1/chat/completions"))
    kept = {name: whole[name] for name in ("id", "created", "model")}
    chunk = {**kept, "object": "chat.completion.chunk"}
    said = {"index": 0, "delta": whole["choices"][0]["message"], "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunks = [{**chunk, "choices": [said]}, {**chunk, "choices": [end], "gpu_rag": row}]
    if body.stream_options is not None and body.stream_options.include_usage:
        chunks.append({**chunk, "choices": [], "usage": whole["usage"]})
    return _events(*chunks)


def _events(*values: dict[str, Any]) -> bytes:
    texts = [json.dumps(value, allow_nan=False) for value in values]  # ASCII: no line end within
    return "".join(f"data: {text}\n\n" for text in [*texts, "[DONE]"]).encode()
