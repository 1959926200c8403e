"""Replies of a misbehaving server: well-formed ones from the names in the prompt, and functions that spoil them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

_NAME = re.compile(r"\b[A-Z][\w'-]*(?: [A-Z][\w'-]*)*")
_LETTERED = re.compile(r"^([A-Z])\. ", re.MULTILINE)
THOUGHT = "Let me think about what is wanted here, step by step. " * 12
THOUGHT_TOKENS = 160  # tokens of the thought above, roughly
MEGABYTE = 1 << 20


def well_formed(body: dict[str, Any]) -> str:
    """A reply in the requested form, made of the names in the prompt; equal messages get equal replies."""
    prompt = str(body["messages"][-1]["content"])
    names = _NAME.findall(prompt) or ["nobody"]
    messages = json.dumps(body["messages"]).encode()
    draw = int.from_bytes(blake2b(messages, digest_size=8).digest(), "big")
    wanted = body.get("structured_outputs") or {}
    form = (body.get("response_format") or {}).get("json_schema", {}).get("schema") or wanted.get("json")
    if form is not None:
        return json.dumps(_instance(form if isinstance(form, dict) else json.loads(form), names, draw))
    if "choice" in wanted:
        return str(wanted["choice"][draw % len(wanted["choice"])])
    return names[draw % len(names)]


def _instance(schema: dict[str, Any], names: Sequence[str], draw: int) -> Any:
    """A value that is valid under a schema as prompts use it."""
    draw = int.from_bytes(blake2b(draw.to_bytes(8, "big"), digest_size=8).digest(), "big")
    if "enum" in schema:
        return schema["enum"][draw % len(schema["enum"])]
    kind = schema.get("type", "object")
    if kind == "object":
        inner = schema.get("properties", {})
        asks = [f"What is {name}?" for name in names]
        return {
            name: _instance(part, asks if "question" in name else names, draw ^ i * 0x9E3779B9)
            for i, (name, part) in enumerate(inner.items())
        }
    if kind == "array":
        n = min(max(schema.get("minItems", 0), 2), schema.get("maxItems", 4))
        return [_instance(schema.get("items", {"type": "string"}), names, draw ^ i * 0x85EBCA6B) for i in range(n)]
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", 0), schema.get("maximum", 9)
        return low + draw % (int(high) - int(low) + 1)
    if kind == "boolean":
        return draw % 2 == 0
    text = names[draw % len(names)]
    text = text if len(text) >= schema.get("minLength", 0) else f"the place {text}"
    return text[: schema.get("maxLength", 200)]


def completion(body: dict[str, Any], text: str) -> dict[str, Any]:
    """A chat completion, with the log-probabilities of letters if the request asks for them."""
    prompt = str(body["messages"][-1]["content"])
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    if body.get("logprobs"):
        letters = _LETTERED.findall(prompt) or ["A"]
        tops = [{"token": letter, "logprob": -1.0 - (len(text) + i * 7) % 5} for i, letter in enumerate(letters[:20])]
        choice["logprobs"] = {"content": [{"token": letters[0], "logprob": -1.0, "top_logprobs": tops}]}
    usage = {"prompt_tokens": len(prompt) // 4 + 1, "completion_tokens": len(text) // 4 + 1}
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "model": body["model"],
        "choices": [choice],
        "usage": usage,
    }


def reasons(body: dict[str, Any], answer: dict[str, Any], always: bool) -> dict[str, Any]:
    """Answer of a model that thinks first; its text is missing if the thought takes all tokens.

    always: the thought always takes all tokens; else a request that switches thinking off is answered at once.
    """
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False and not always:
        return answer
    choice, usage = answer["choices"][0], answer["usage"]
    text = choice["message"]["content"] or ""
    room = body.get("max_tokens", THOUGHT_TOKENS) - THOUGHT_TOKENS
    done = not always and room >= len(text) // 4 + 1
    message = {"role": "assistant", "content": text if done else None, "reasoning_content": THOUGHT}
    usage = {**usage, "completion_tokens": THOUGHT_TOKENS + len(text) // 4 if done else body.get("max_tokens", 0)}
    thinking = {**choice, "message": message, "finish_reason": "stop" if done else "length"}
    return {**answer, "choices": [thinking], "usage": usage}


def spoil(answer: dict[str, Any], fault: str) -> dict[str, Any]:
    """Answer with one fault in its content, or without choices."""
    if fault == "no_choices":
        return {**answer, "choices": []}
    choice = answer["choices"][0]
    text, finish = str(choice["message"]["content"] or ""), choice["finish_reason"]
    match fault:
        case "cut":
            text, finish = text[: len(text) // 2], "length"
        case "cut_silently":
            text = text[: 2 * len(text) // 3]
        case "empty":
            text = ""
        case "fenced":
            text = f"```json\n{text}\n```"
        case "chatty":
            text = f"Sure! Here is what you asked for:\n\n{text}\n\nLet me know if you need anything else."
        case "wrong_id":
            text = json.dumps({"chosen": ["ZZ", 999], "id": "nowhere"}) if text.startswith("{") else "ZZ"
        case "wrong_type":
            text = re.sub(r"\[[^\[\]]*\]", "true", text) if "[" in text else json.dumps([text])
        case "megabyte":
            text = "word " * (MEGABYTE // 5)
        case "whitespace":
            text = " \n\t" * 400
    changed = {**choice, "message": {**choice["message"], "content": text}, "finish_reason": finish}
    return {**answer, "choices": [changed]}
