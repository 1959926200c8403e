"""Request bodies: JSON that is parsed strictly, then checked against the types below before any of it is used."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from gpu_rag.index.where import MAX_CHARS
from gpu_rag.methods.registry import AUTO, load_method
from gpu_rag.program.history import Turn
from gpu_rag.serve.refusal import Refusal
from gpu_rag.settings.check import declared, unknown_name
from gpu_rag.settings.sections import ServeSettings
from gpu_rag.sources.rows import Limits, RowError, clean_string, decode_utf8, document_text, id_text, kind, question_id
from gpu_rag.text.strict_json import JsonError, loads
from gpu_rag.types import Question

T = TypeVar("T")
_bad = partial(Refusal, 400)
Filter = Annotated[str, Meta(max_length=MAX_CHARS)]
LAST = "the last user message"
MAX_TEXTS = 1024  # maximum texts of one request for embeddings
# options that would change the form of the reply, and the values of them that do not
_CHAT_FORMS = ("tools", "tool_choice", "functions", "function_call", "response_format", "logprobs", "audio",
               "modalities")  # fmt: skip
_RESPONSE_FORMS = ("tools", "tool_choice", "background", "conversation", "prompt", "top_logprobs", "text")
_PLAIN: tuple[Any, ...] = (None, False, [], "none", {"type": "text"}, ["text"], {"format": {"type": "text"}})
_TEXT = ("text", "input_text")  # types of parts of a message


class AskedQuestion(Struct):
    """A question as clients send it."""

    question: Annotated[str, Meta(max_length=ServeSettings.max_question_chars)]
    id: str | int | None = None


class AskBody(Struct, forbid_unknown_fields=True):
    """The body of /v1/answer and /v1/retrieve.

    passages: only for retrieval. words: adds the trace in words. where: a filter of documents, see `index.where`.
    support: adds the sentences that bear on the question; by default for answers and not for retrieval.
    """

    questions: Annotated[list[AskedQuestion], Meta(min_length=1, max_length=ServeSettings.max_questions)]
    method: str = AUTO
    params: dict[str, Any] | None = None
    passages: Annotated[int, Meta(ge=1, le=ServeSettings.max_passages)] | None = None
    words: bool | None = None
    where: Filter = ""
    support: bool | None = None


class StreamOptions(Struct):
    """Options of a streamed chat completion. include_usage: adds a last event with the token counts."""

    include_usage: bool | None = None


class ChatBody(Struct):
    """The body of /v1/chat/completions; its sampling settings are ignored. words: as in `AskBody`."""

    model: str
    messages: list[Any]
    where: Filter = ""
    words: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class EmbeddingsBody(Struct):
    """The body of /v1/embeddings. dimensions: only the embedder's own number."""

    model: str
    input: str | Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class ResponsesBody(Struct):
    """The body of /v1/responses. Instructions and sampling settings in it are ignored; the server's settings apply.

    words: as in `AskBody`.
    """

    model: str
    input: str | list[Any]
    where: Filter = ""
    words: bool | None = None
    stream: bool | None = None


def read_ask(raw: bytes, settable: Collection[str], *, retrieval: bool) -> tuple[AskBody, tuple[Question, ...], bool]:
    """(body, its questions, whether it is one question whose row is the whole response). Raises Refusal (400).

    settable: method parameters that a client may set.
    """
    given = read_object(raw)
    known = ["question", "id", *(key for key in AskBody.__struct_fields__ if retrieval or key != "passages")]
    if unknown := next((key for key in given if key not in known), None):
        raise unknown_name("key", unknown[:80], known)
    single = "questions" not in given
    if single:
        asked = {name: given.pop(name) for name in ("id", "question") if name in given}
        given["questions"] = [asked]
    body = _as(AskBody, given)
    questions = tuple(_question(row) for row in body.questions)
    ids = [question.id for question in questions]
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise _bad(f"two questions have the id {twice[:80]}", do="give each an id of its own")
    _check_settable(body.method, body.params or {}, settable)
    return body, questions, single


def read_chat(raw: bytes) -> tuple[ChatBody, Question, list[Turn]]:
    """(body, the last user message as a question, the user and assistant turns before it).

    Options that would change the form of the reply are refused. Raises Refusal (400).
    """
    given = read_object(raw)
    _check_plain(given, _CHAT_FORMS)
    if given.get("n") not in (None, 1):
        raise _bad("a question has one answer", given=f"n={str(given['n'])[:20]}", expected="1")
    body = _as(ChatBody, given)
    return body, *_conversation(body.messages)


def read_responses(raw: bytes) -> tuple[ResponsesBody, Question, list[Turn]]:
    """(body, the last user message of `input` as a question, the turns before it). Raises Refusal (400), also for
    `previous_response_id`, since no response is stored."""
    given = read_object(raw)
    if given.get("previous_response_id") is not None:
        raise _bad("no response is stored here", given="previous_response_id", do="send earlier messages in `input`")
    _check_plain(given, _RESPONSE_FORMS)
    body = _as(ResponsesBody, given)
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for item in items:
        if not isinstance(item, dict) or item.get("type") not in (None, "message"):
            shown = item.get("type") if isinstance(item, dict) else kind(item)
            raise _bad("input holds something else than messages", given=str(shown)[:80], expected="messages")
    return body, *_conversation(items)


def read_embeddings(raw: bytes) -> tuple[EmbeddingsBody, list[str]]:
    """(body, the texts to embed). Raises Refusal (400) for token numbers and for texts that are empty or not valid."""
    body = _as(EmbeddingsBody, read_object(raw))
    texts = [body.input] if isinstance(body.input, str) else body.input
    try:
        return body, [document_text(text, Limits(), f"input[{place}]") for place, text in enumerate(texts)]
    except RowError as error:
        raise _bad(str(error)) from error


def _check_plain(given: dict[str, Any], forms: Collection[str]) -> None:
    """Raise Refusal (400) if an option would change the form of the reply."""
    asked = [key for key in forms if given.get(key) not in _PLAIN]
    if asked:
        raise _bad("an answer here has no such thing", given=", ".join(asked), do="leave it out")


def _conversation(rows: list[Any]) -> tuple[Question, list[Turn]]:
    """(the last user message as a question, the user and assistant turns before it). Raises Refusal (400)."""
    messages = [m for m in rows if isinstance(m, dict) and m.get("role") in ("user", "assistant")]
    while messages and messages[-1]["role"] != "user":  # messages after the last question are ignored
        messages.pop()
    if not messages:
        raise _bad("there is no user message")
    text = messages.pop().get("content")
    if isinstance(text, list):  # parts are joined by line ends
        if not all(isinstance(p, dict) and p.get("type") in _TEXT and isinstance(p.get("text"), str) for p in text):
            raise _bad(f"{LAST} has parts that are not text")
        text = "\n".join(part["text"] for part in text)
    question = _question(_as(AskedQuestion, {"question": text}, LAST), LAST)
    try:
        turns = [(m["role"], clean_string(_text_of(m.get("content")), "an earlier message")) for m in messages]
    except RowError as error:
        raise _bad(str(error)) from error
    return question, turns


def _text_of(content: Any) -> str:
    """The text of an earlier message; text parts are joined by line ends."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def read_object(raw: bytes) -> dict[str, Any]:
    """A body as a JSON object. Raises Refusal (400)."""
    try:
        body = loads(decode_utf8(raw))
    except (JsonError, RowError) as error:
        raise _bad("the body is not JSON", given=str(error)) from error
    if not isinstance(body, dict):
        raise _bad("the body is not an object", given=kind(body), expected="an object")
    return body


def _as(shape: type[T], given: dict[str, Any], place: str = "") -> T:
    """`given` converted to a type. Raises Refusal, which names `place` or the place in `given`."""
    try:
        return msgspec.convert(given, shape)
    except msgspec.ValidationError as error:
        what, _, location = str(error).replace("$.", "").replace("`", "").partition(" - at ")
        raise _bad(f"{what} - at {place or location or 'the body'}"[:400]) from error


def _question(row: AskedQuestion, name: str = "question") -> Question:
    try:
        text = document_text(row.question, Limits(), name)
        return Question(question_id(text) if row.id is None else id_text(row.id, "id"), text)
    except RowError as error:
        raise _bad(str(error)) from error


def _check_settable(method: str, given: Collection[str], allowed: Collection[str]) -> None:
    """Raise Refusal (400) for parameters that a client may not set. "METHOD.*" allows all but texts."""
    known = declared(load_method(method).Params) if given else {}
    texts = {name for name, setting in known.items() if setting.type not in (int, float, bool)}
    for name in given:
        if f"{method}.{name}" not in allowed and (f"{method}.*" not in allowed or name in texts):
            do = f"--set serve.params='[\"{method}.{name}\"]' when the server is started"
            raise _bad("a client may not set this parameter", given=f"{method}.{name}"[:80], do=do)
