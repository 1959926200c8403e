"""The words of the OpenAI chat completions protocol: requests to JSON bodies, JSON replies to replies."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from gpu_rag.errors import ContextOverflow, RequestFailed
from gpu_rag.models.llm.interface import ranked
from gpu_rag.text.lenient import spoken
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

# JSON on one line: a small model left free to choose white space writes nothing else. Separators as in json.dumps and
# in the examples of the prompts: bound to "[" where it would write " [", a model closes the list and replies nothing.
JSON_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
LABELS = "ABCDEFGHIJKLMNOPQRST"  # as many as top_logprobs can show
_SEED_BITS = (1 << 63) - 1
_TOO_LONG = re.compile(r"context.length|maximum (model|context)|max(imum)?.model.len|too many tokens", re.IGNORECASE)


@dataclass(frozen=True)
class Style:
    """What a server understands beside plain chat, found by `http_style.find_style`.

    objects: how a JSON Schema travels; choices: how options do ("prompt": in words alone); ranks: whether letters come
    with log-probabilities; thinks: whether replies begin with a thought; quiet: whether that can be switched off;
    one_line: whether a schema may say how its JSON is laid out, as llguidance reads it.
    """

    objects: str = "json_schema"
    choices: str = "structured_outputs"
    ranks: bool = True
    thinks: bool = False
    quiet: bool = False
    one_line: bool = False

    def __str__(self) -> str:
        rank = "log-probabilities" if self.ranks else "labels"
        thought = ", thinks first" + (" (switched off)" if self.quiet else "") if self.thinks else ""
        return f"JSON by {self.objects}, choices by {self.choices}, ranks by {rank}{thought}"


OBJECT_STYLES = ("json_schema", "structured_outputs", "json_object", "prompt")
CHOICE_STYLES = ("structured_outputs", "json_schema", "prompt")
_IN_WORDS = "\n\nReply with one JSON object and nothing else. It must be valid under this JSON Schema:\n"


def body(model: str, request: Request, style: Style, think_tokens: int = 0) -> dict[str, Any]:
    """The body of POST /chat/completions for a request that `check_constraint` lets pass.

    A JSON Schema travels as response_format json_schema, as structured_outputs of vLLM, or in words, with or without
    response_format json_object. A Choice travels as structured_outputs, as a JSON string of an enum, or in words. Rank
    lists the options under the letters A to T and asks for one token with its 20 most likely alternatives.
    think_tokens: added to max_tokens of a model that thinks and cannot be switched.
    """
    system, user = request.system, request.prompt
    extra: dict[str, Any] = {"max_tokens": request.max_tokens}
    match request.constraint:
        case JsonSchema(schema):
            system, form = _object_form(system, schema, style)
            extra |= form
        case Choice(options) if style.choices == "structured_outputs":
            extra["structured_outputs"] = {"choice": list(options)}
        case Choice(options) if style.choices == "json_schema":
            extra["response_format"] = _schema_format({"type": "string", "enum": list(options)})
        case Choice(options):
            user = f"{user}\n\nReply with exactly one of: {', '.join(options)}"
        case Rank(options):
            user = f"{user}\n\n{_labelled(options)}"
            extra = {"max_tokens": 1, "logprobs": True, "top_logprobs": len(LABELS)}
    if style.thinks and style.quiet:
        extra["chat_template_kwargs"] = {"enable_thinking": False, "thinking": False}  # by family of models
    elif style.thinks:
        extra["max_tokens"] += think_tokens
    messages = [{"role": "user", "content": user}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    sampling = {"temperature": request.temperature, "seed": request.seed & _SEED_BITS}
    return {"model": model, "messages": messages, **sampling, **extra}


def _object_form(system: str, schema: str, style: Style) -> tuple[str, dict[str, Any]]:
    """The system text and the part of a body that ask for an object."""
    parsed = json.loads(schema)
    if style.one_line and isinstance(parsed, dict):
        parsed["x-guidance"] = JSON_LAYOUT
    if style.objects == "json_schema":
        return system, {"response_format": _schema_format(parsed)}
    if style.objects == "structured_outputs":
        return system, {"structured_outputs": {"json": parsed}}
    form = {"response_format": {"type": "json_object"}} if style.objects == "json_object" else {}
    return f"{system}{_IN_WORDS}{schema}".lstrip(), form


def thought(answer: Any) -> bool:
    """Whether a chat completion holds a thought, kept apart or in its text."""
    try:
        message = answer["choices"][0]["message"]
        apart = message.get("reasoning_content") or message.get("reasoning")
        return bool(apart) or spoken(message.get("content") or "") != (message.get("content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return False


def read_answer(request: Request, answer: Any) -> Reply:
    """The reply in the server's JSON, as it was said: whoever made the request reads what it holds.

    An answer that is no chat completion is a reply without text and the finish reason "malformed". Reasoning content
    that a server keeps apart is never part of the text. Missing counts are 0. A Rank without the log-probabilities of
    its letters has no scores. Any finish reason but "length" is "stop".
    """
    try:
        choice = answer["choices"][0]
        text = choice["message"].get("content")
        if isinstance(text, list):  # parts, as some servers write them
            text = "".join(part["text"] for part in text if part.get("type") == "text")
    except (KeyError, IndexError, TypeError, AttributeError):
        return Reply("", "malformed", *_counts(answer))
    text, finish = (
        text if isinstance(text, str) else "",
        "length" if choice.get("finish_reason") == "length" else "stop",
    )
    if isinstance(request.constraint, Choice):
        text = _unquoted(text)
    if isinstance(request.constraint, Rank):
        scores = _scores(request.constraint.options, choice)
        if scores is not None:
            n_prompt, n_cached, _ = _counts(answer)
            return ranked(request.constraint.options, scores, n_prompt, n_cached, 1)
    return Reply(text, finish, *_counts(answer))


class Pieces:
    """A chat completion that comes piece by piece. ended: whether its last piece has come; error: what the server said
    in place of the rest."""

    def __init__(self) -> None:
        self.text, self.error, self.ended = "", "", False
        self._thought, self._finish, self._usage = "", None, None
        self._readable = True

    def take(self, data: bytes) -> None:
        """The data of one event."""
        if data == b"[DONE]":
            self.ended = True
            return
        try:
            chunk = json.loads(data)
            self._usage = chunk.get("usage") or self._usage
            if chunk.get("error"):
                self.error = _message(data.decode("utf-8", "replace"))
            for choice in (chunk.get("choices") or ())[:1]:
                delta = choice.get("delta") or {}
                self.text += delta.get("content") or ""
                self._thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
                self._finish = choice.get("finish_reason") or self._finish
                self.ended = self.ended or self._finish is not None
        except (ValueError, RecursionError, AttributeError, TypeError):
            self._readable = False

    def whole(self) -> bytes:
        """What `read_answer` reads; of pieces that cannot be read it is no completion."""
        if not self._readable:
            return b"null"
        message = {"role": "assistant", "content": self.text, "reasoning_content": self._thought or None}
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return json.dumps({"choices": [choice], "usage": self._usage}).encode()


def _unquoted(text: str) -> str:
    """The text of a JSON string, which is how an option of an enum comes."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text


def _counts(answer: Any) -> tuple[int, int, int]:
    """Prompt, cached and generated tokens as the server counts; 0 for a number that it does not give."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return _count(usage.get("prompt_tokens")), _count(cached), _count(usage.get("completion_tokens"))


def _count(number: Any) -> int:
    return number if isinstance(number, int) and 0 <= number < 2**53 else 0


def _scores(options: tuple[str, ...], choice: dict[str, Any]) -> tuple[float, ...] | None:
    try:
        return _label_scores(options, choice["logprobs"]["content"][0]["top_logprobs"])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError):
        return None


def refusal(status: int, text: str) -> RequestFailed:
    """The failure behind a 4xx status: a prompt that is too long is told apart."""
    given = f"HTTP {status}: {_message(text)[:300]}"
    if _TOO_LONG.search(text):
        return ContextOverflow("the prompt does not fit the server's context", given=given, do="shorten the prompt")
    return RequestFailed("the server refused the request", given=given)


def _schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}


def _labelled(options: tuple[str, ...]) -> str:
    lines = [f"{label}. {option}" for label, option in zip(LABELS, options)]
    return "\n".join([*lines, "", "Reply with the letter of the best option only."])


def _label_scores(options: tuple[str, ...], alternatives: list[dict[str, Any]]) -> tuple[float, ...] | None:
    """Log-probability of each option's letter, or None when the model considered none of them.

    "A" and " A" are one letter: their probabilities add up. A letter that is not among the alternatives is less
    likely than each of them: it gets the lowest one's value less 1. So does one whose number is not finite.
    """
    found: dict[str, list[float]] = {}
    for alternative in alternatives:
        if math.isfinite(number := float(alternative["logprob"])):
            found.setdefault(str(alternative["token"]).strip(), []).append(number)
    labels = LABELS[: len(options)]
    if not any(label in found for label in labels):
        return None
    floor = min(min(values) for values in found.values()) - 1.0
    return tuple(_log_sum(found[label]) if label in found else floor for label in labels)


def _log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def _message(text: str) -> str:
    """The message inside an error body, or the body."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(content, dict):
        inner = content.get("error", content)
        if isinstance(inner, dict) and "message" in inner:
            return str(inner["message"])
    return text


def check_constraint(request: Request) -> RequestFailed | None:
    """The reason why a request cannot be sent at all, or None: a schema that is not JSON."""
    if isinstance(request.constraint, JsonSchema):
        try:
            json.loads(request.constraint.schema)
        except ValueError as error:
            return RequestFailed("the schema is not JSON", given=error)
    return None


def can_rank(rank: Rank) -> bool:
    """Whether there are letters for all options."""
    return len(rank.options) <= len(LABELS)
