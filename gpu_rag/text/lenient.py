"""Read a reply that is not quite in the requested form, in ways that cannot change its meaning.

Strict reading comes first (`replies.parse_json`, an exact choice). Then `lenient` accepts: thinking, fences and prose
around the one object or label; a bare list if the object has one list; one item for a list; properties that the schema
does not know; another case, a final full stop or quotes of an option; a number or truth value in quotes. Then
`salvaged` keeps the complete and valid items of lists that were cut off or contain bad items. Every other reply is
Malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_rag.text.replies import MAX_REPLY_CHARS, parse_json, spoken, unfenced, validator
from gpu_rag.text.strict_json import JsonError, decode
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply

EXACT, LENIENT, SALVAGED = "exact", "lenient", "salvaged"
CUT_OFF = "it was cut off"
REPAIR = "\n\nAn earlier reply could not be read: {reason}\nReply again, in exactly the form asked for."
REPAIR_TOKENS = 64  # minimum tokens of a repair: the cut reply may have begun with words before the object
_REASON_CHARS = 200
MAX_STARTS = 32  # maximum places at which to look for an object: each may read the reply to its end

_START = re.compile(r'\{\s*(?:["}]|\Z)|\[\s*(?:["\[{\]\d-]|\Z)')
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
_EDGE = " \t\r\n\"'`*_.,:;()[]“”‘’"
_VERDICT = re.compile(
    r"(?i:answer|option|choice|label|verdict)\s*(?:is|:|=)\s*[\"'`*(\[]*([^\s\"'`*.,:;()\[\]]+)(?!\s*(?:,|or\b|and\b))"
)
_LEADING = re.compile(r"\A[\"'`*(\[]*([^\s\"'`*.,:;()\[\]]+)[\"'`*]*[.:)\]]")


@dataclass(frozen=True)
class Read:
    """A readable reply. how: exact | lenient | salvaged."""

    value: Any
    how: str


def read_reply(reply: Reply, constraint: JsonSchema | Choice | Rank | None) -> Read | Malformed:
    """Read a reply by its request's constraint: the object, option, scores or text; or Malformed with the reason.

    A reply that was cut off says so in its reason. A text is malformed only if it is empty.
    """
    read: Read | Malformed
    match constraint:
        case JsonSchema(schema):
            read = read_json(reply.text, schema)
        case Choice(options):
            read = read_choice(reply.text, options)
        case Rank(options):
            scored = len(reply.scores) == len(options)
            read = Read(reply.scores, EXACT) if scored else Malformed("the options were not scored", reply.text)
        case None:
            text, plain = unfenced(reply.text), spoken(reply.text).strip()
            read = Read(text, EXACT if text == plain else LENIENT) if text else Malformed("it was empty", reply.text)
    if isinstance(read, Malformed) and reply.finish_reason == "length":
        return Malformed(f"{CUT_OFF} at {reply.n_generated} tokens", reply.text)
    return read if isinstance(read, Malformed) else Read(_encodable(read.value), read.how)


def _encodable(value: Any) -> Any:
    """The value with "?" for each half of a surrogate pair, which no encoding can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return {name: _encodable(item) for name, item in value.items()} if isinstance(value, dict) else value


def repairs(prompt: str, max_tokens: int, malformed: Malformed) -> tuple[tuple[str, int], ...]:
    """(user text, max_tokens) of second tries, best first: with the reason, with more room. Take one that fits."""
    longer, larger = prompt + REPAIR.format(reason=malformed.reason[:_REASON_CHARS]), max(2 * max_tokens, REPAIR_TOKENS)
    return (longer, larger), (prompt, larger), (longer, max_tokens), (prompt, max_tokens)


def read_choice(text: str, options: Sequence[str]) -> Read | Malformed:
    """The option that a reply names.

    Lenient: an option in quotes, in another case, after "Answer:", before ". its text", or as the one string in a JSON
    value. A reply that names no option, or may name two, is Malformed.
    """
    spoken_text = text.strip()
    if spoken_text in options:
        return Read(spoken_text, EXACT)
    spoken_text = unfenced(text[:MAX_REPLY_CHARS])
    for literal in (spoken_text, *_only_string(spoken_text)):
        form = _plain(literal)
        same = [option for option in options if option == literal] or [o for o in options if form and _plain(o) == form]
        if len(same) == 1:
            return Read(same[0], LENIENT)
    # In prose a letter may be a word: only exact options count.
    named = {word for pattern in (_LEADING, _VERDICT) for word in pattern.findall(spoken_text)} & set(options)
    if len(named) == 1:
        return Read(named.pop(), LENIENT)
    return Malformed("the reply is none of the options", text)


def _only_string(text: str) -> Iterator[str]:
    """The single string or number inside the JSON value in a reply."""
    value = next(_values(text), None)
    while isinstance(value, (dict, list)) and len(value) == 1:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    if isinstance(value, (str, int)):
        yield str(value)


def _plain(text: str) -> str:
    plain = text.strip(_EDGE).casefold()
    return plain.lstrip("0") or plain


def read_json(text: str, schema: str) -> Read | Malformed:
    """The object in a reply, valid under `schema` (canonical text); the module describes the accepted forms."""
    strict = parse_json(text, schema)
    if not isinstance(strict, Malformed):
        return Read(strict, EXACT if text.lstrip().startswith("{") else LENIENT)
    if len(text) > MAX_REPLY_CHARS:
        return strict
    spoken_text, shape = spoken(text), json.loads(schema)
    for drop, how in ((False, LENIENT), (True, SALVAGED)):
        fits = (fitted(value, shape, drop) for value in _values(spoken_text, cut=drop))
        readable = [value for value in fits if _valid(value, schema) and (not drop or _holds_an_item(value))]
        if readable and all(value == readable[0] for value in readable):
            return Read(readable[0], how)
        if readable:
            return Malformed("the reply holds several objects that differ", text)
    return strict


def fitted(value: Any, shape: Any, drop: bool) -> Any:
    """`value` in the form of a JSON Schema, if only its form differs.

    drop: also remove invalid items from lists and items beyond the maximum, and use an empty list for a missing one. A
    value that cannot be fitted is returned unchanged.
    """
    if not isinstance(shape, dict):
        return value
    properties = shape.get("properties")
    if isinstance(properties, dict):
        return _fitted_object(value, shape, properties, drop)
    if shape.get("type") == "array" and value is not None:
        return _fitted_list(value if isinstance(value, list) else [value], shape, drop)
    if "enum" in shape and isinstance(value, (str, int)) and value not in shape["enum"]:
        choice = read_choice(str(value), [option for option in shape["enum"] if isinstance(option, str)])
        return choice.value if isinstance(choice, Read) else value
    return _fitted_scalar(value, shape.get("type"))


def _fitted_object(value: Any, shape: dict[str, Any], properties: dict[str, Any], drop: bool) -> Any:
    lists = [name for name, inner in properties.items() if isinstance(inner, dict) and inner.get("type") == "array"]
    if isinstance(value, list) and len(properties) == len(lists) == 1:
        value = {lists[0]: value}
    if not isinstance(value, dict):
        return value
    known = value if shape.get("additionalProperties") is not False else properties
    fields = {name: value[name] for name in known if name in value}
    if drop:
        fields.update((name, []) for name in lists if name in shape.get("required", ()) and name not in fields)
    return {name: _fitted_property(inner, properties.get(name), drop) for name, inner in fields.items()}


def _fitted_property(value: Any, shape: Any, drop: bool) -> Any:
    """A property with only one allowed value gets that value. In a list, an item may be removed instead."""
    only = shape["enum"] if isinstance(shape, dict) and len(shape.get("enum", ())) == 1 else None
    return only[0] if only is not None else fitted(value, shape, drop)


def _fitted_list(value: list[Any], shape: dict[str, Any], drop: bool) -> list[Any]:
    inner = shape.get("items", True)
    items = [fitted(item, inner, drop) for item in value]
    if drop:
        items = [item for item in items if validator(_text(inner)).is_valid(item)]
        items = items[: shape.get("maxItems", len(items))]
    return items


def _fitted_scalar(value: Any, kind: Any) -> Any:
    if kind == "integer" and isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,15}\s*", value):
        return int(value)
    if kind == "boolean" and isinstance(value, str) and value.strip().casefold() in ("true", "false"):
        return value.strip().casefold() == "true"
    if kind == "string" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return json.dumps(value)
    return value


def _text(shape: Any) -> str:
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":"))


def _valid(value: Any, schema: str) -> bool:
    return isinstance(value, dict) and bool(validator(schema).is_valid(value))


def _holds_an_item(value: Any) -> bool:
    """Whether a salvaged object has content: an item in a list, or no lists at all."""
    lists = [inner for inner in value.values() if isinstance(inner, list)]
    return not lists or any(lists)


def _values(text: str, cut: bool = False) -> Iterator[Any]:
    """The outer JSON objects and arrays in a text. cut: only the first, if it is broken, closed by `_closed`."""
    position = 0
    for _ in range(MAX_STARTS):
        start = _START.search(text, position)
        if start is None:
            return
        try:
            value, position = decode(text, start.start())
        except JsonError as error:
            position, value = start.start() + 1, error
            if cut:
                value = _closed(text[start.start() : error.position])
        if not isinstance(value, JsonError):
            yield value
        if cut:
            return


def _closed(text: str) -> Any:
    """A broken JSON text closed after the last complete item of its outermost list or object; or an error."""
    stack: list[str] = []
    ends: dict[int, int] = {}  # depth -> end of the last complete item
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark == '"':  # a string without end
            break
        if mark in "]}":
            if not stack or stack.pop() + mark not in ("[]", "{}"):
                break
            ends[len(stack)] = token.end()
        elif mark == ",":
            ends[len(stack)] = token.start()
        elif mark in "[{":
            stack.append(mark)
            ends[len(stack)] = token.end()
        elif stack and stack[-1] == "[":
            ends[len(stack)] = token.end()
    depth = next((i for i, mark in enumerate(stack, 1) if mark == "["), 1)
    if depth > len(stack):
        return JsonError("nothing is open")
    closing = "".join("]" if mark == "[" else "}" for mark in reversed(stack[:depth]))
    try:
        return decode(text[: ends[depth]] + closing, 0)[0]
    except JsonError as error:
        return error
