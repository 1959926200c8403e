"""What clients send: JSON that is read strictly and checked key by key before any of it is used."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpu_rag.methods.registry import load_method
from gpu_rag.serve.refusal import Refusal
from gpu_rag.settings.sections import ServeSettings
from gpu_rag.sources.rows import Limits, RowError, clean_string, decode_utf8, document_text, kind, question_id, row_id
from gpu_rag.text.strict_json import JsonError, loads
from gpu_rag.types import Question

_ASK_KEYS = frozenset({"id", "question", "questions", "method", "params", "passages", "words"})
_UNSERVED = ("tools", "tool_choice", "functions", "function_call", "response_format", "logprobs", "audio", "modalities")


@dataclass(frozen=True)
class AskBody:
    """What /v1/answer and /v1/retrieve are asked. single: one question, whose row is the whole response."""

    questions: tuple[Question, ...]
    method: str
    params: Mapping[str, Any]
    passages: int | None
    words: bool
    single: bool


@dataclass(frozen=True)
class ChatBody:
    """What /v1/chat/completions is asked. include_usage: of a streamed response."""

    question: Question
    model: str
    method: str
    stream: bool
    include_usage: bool


def read_ask(raw: bytes, settings: ServeSettings, *, retrieval: bool) -> AskBody:
    """The body of /v1/answer, or of /v1/retrieve. Raises Refusal (400)."""
    body = _object(raw)
    unknown = body.keys() - (_ASK_KEYS if retrieval else _ASK_KEYS - {"passages"})
    if unknown:
        raise _bad("unknown key", given=", ".join(sorted(unknown))[:200], expected=" | ".join(sorted(_ASK_KEYS)))
    try:
        single = "questions" not in body
        if not single and ("question" in body or "id" in body):
            raise RowError("both question and questions are given; expected one of them")
        rows = [body] if single else body["questions"]
        if not isinstance(rows, list) or not rows:
            raise RowError(f"questions is {kind(rows) if not isinstance(rows, list) else 'empty'}; expected a list")
        if len(rows) > settings.max_questions:
            raise RowError(f"{len(rows)} questions; expected at most serve.max_questions = {settings.max_questions}")
        questions = tuple(_question(row, settings) for row in rows)
        method = clean_string(body.get("method", "ppr"), "method")
        return AskBody(
            _unique(questions), method, _params(method, body.get("params"), settings.params),
            _count(body.get("passages"), settings.max_passages), _flag(body, "words"), single,
        )  # fmt: skip
    except RowError as error:
        raise _bad(str(error)) from error


def read_chat(raw: bytes, settings: ServeSettings) -> ChatBody:
    """The body of /v1/chat/completions: the last user message is the question. Raises Refusal (400).

    Settings of sampling (temperature, max_tokens, seed, ...) are those of the server; what would change the form of
    the reply is refused.
    """
    body = _object(raw)
    asked = [name for name in _UNSERVED if body.get(name) not in (None, False, [], {"type": "text"}, ["text"], "none")]
    if asked:
        raise _bad("a chat completion here has no such thing", given=", ".join(asked), do="leave it out")
    if body.get("n") not in (None, 1):
        raise _bad("a question has one answer", given=f"n={str(body['n'])[:20]}", expected="1")
    try:
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise RowError(f"messages is {kind(messages)}; expected a list")
        said = [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == "user"]
        if not said:
            raise RowError("messages has no user message")
        text = _text(_content(said[-1]), settings, "the last user message")
        model = clean_string(body.get("model"), "model")
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise RowError(f"stream_options is {kind(options)}; expected an object")
        usage = _flag(options, "include_usage")
        question = Question(question_id(text), text)
        return ChatBody(question, model, model.removeprefix("gpu-rag/"), _flag(body, "stream"), usage)
    except RowError as error:
        raise _bad(str(error)) from error


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = loads(decode_utf8(raw))
    except (JsonError, RowError) as error:
        raise _bad("the body is not JSON", given=str(error)) from error
    if not isinstance(body, dict):
        raise _bad("the body is no object", given=kind(body), expected="an object")
    return body


def _bad(what: str, **parts: Any) -> Refusal:
    return Refusal(400, what, **parts)


def _question(row: object, settings: ServeSettings) -> Question:
    if not isinstance(row, dict):
        raise RowError(f"a question is {kind(row)}; expected an object {{id, question}}")
    text = _text(row.get("question"), settings, "question")
    return Question(row_id(row, "id") or question_id(text), text)


def _text(value: object, settings: ServeSettings, name: str) -> str:
    text = document_text(value, Limits(), name)
    if len(text) > settings.max_question_chars:
        limit = f"at most serve.max_question_chars = {settings.max_question_chars}"
        raise RowError(f"{name} has {len(text)} characters; expected {limit}")
    return text


def _content(content: object) -> object:
    """The text of a message: a string, or the text parts of a list one below the other."""
    if not isinstance(content, list):
        return content
    parts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    if None in parts:
        raise RowError("the last user message has parts that are not text")
    return "\n".join(clean_string(part, "a text part") for part in parts)


def _unique(questions: tuple[Question, ...]) -> tuple[Question, ...]:
    ids = [question.id for question in questions]
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise RowError(f"two questions have the id {twice[:80]}; give each an id of its own")
    return questions


def _count(value: object, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise RowError(f"passages is {str(value)[:40]}; expected a whole number from 1 to serve.max_passages = {most}")
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RowError(f"{name} is {kind(value)}; expected true or false")
    return bool(value)


def _params(method: str, given: object, allowed: Collection[str]) -> dict[str, Any]:
    """Parameters that a client may set. "METHOD.*" allows numbers and switches: a text may name a file or a server, and
    must be allowed by its own name. Types, ranges and unknown names are checked where the method is prepared."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RowError(f"params is {kind(given)}; expected an object")
    texts = {f.name for f in fields(load_method(method).Params) if not re.fullmatch(r"(int|float|bool)", str(f.type))}
    for name in given:
        if f"{method}.{name}" not in allowed and (f"{method}.*" not in allowed or name in texts):
            do = f"--set serve.params='[\"{method}.{name}\"]' when the server is started"
            raise _bad("a client may not set this parameter", given=f"{method}.{name}"[:80], do=do)
    return given
