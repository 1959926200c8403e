"""Parse a model's reply: JSON valid under a schema, or `Malformed`. Nothing is guessed or repaired."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpu_rag.errors import UsageError
from gpu_rag.text.strict_json import JsonError, loads
from gpu_rag.types import Malformed

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

MAX_REPLY_CHARS = 1_000_000
_OPEN, _CLOSE = r"(?:<(?:think|thinking|reasoning)>|◁think▷)", r"(?:</(?:think|thinking|reasoning)>|◁/think▷)"
_THOUGHT = re.compile(rf"\s*{_OPEN}.*?{_CLOSE}", re.DOTALL)
_THOUGHT_END = re.compile(rf".*{_CLOSE}", re.DOTALL)
_UNFINISHED = re.compile(rf"\s*{_OPEN}")
_FENCED = re.compile(r"```\w*[ \t]*\r?\n(.*?)\n?[ \t]*```\Z", re.DOTALL)
_REASON_CHARS = 300


def parse_json(text: str, schema: str) -> dict[str, Any] | Malformed:
    """Parse `text` as a JSON object valid under `schema`; else return Malformed with the reason and the text.

    text: a reply. Tolerated around the object: white space, thinking before it, and one code fence (three backticks,
    perhaps with a word such as "json") around it. Nothing else: no prose, no trailing commas, no single quotes. The
    JSON is read strictly (see `strict_json`: NaN, Infinity, integers beyond 64 bits, a repeated key, lone surrogates
    and deep nesting are malformed). More than 1,000,000 characters are malformed.
    schema: a JSON Schema (2020-12) as JSON text, best from `canonical_schema`; references only within itself.

    Never raises for any `text`. Raises UsageError if `schema` is not a usable schema.
    """
    from referencing.exceptions import Unresolvable

    check = validator(schema)
    if len(text) > MAX_REPLY_CHARS:
        return Malformed(f"the reply has {len(text)} characters, more than {MAX_REPLY_CHARS}", text[:MAX_REPLY_CHARS])
    try:
        text.encode("utf-8")
        body = text.strip()
        value = loads(body if body.startswith("{") else unfenced(body))
    except UnicodeEncodeError:
        return Malformed("the reply holds half of a surrogate pair", text)
    except JsonError as error:
        return Malformed(str(error), text)
    if not isinstance(value, dict):
        return Malformed(f"the reply is JSON, but {_kind(value)}; expected an object", text)
    try:
        violation = next(check.iter_errors(value), None)
    except (RecursionError, Unresolvable) as error:  # the value is shallow, so it is the schema that recurses
        raise UsageError("a reference of the JSON schema leads nowhere", given=schema[:_REASON_CHARS]) from error
    if violation is not None:
        where = "/".join(map(str, violation.absolute_path)) or "the object"
        return Malformed(f"not valid under the schema at {where}: {violation.message}"[:_REASON_CHARS], text)
    return value


def object_of(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with exactly these properties, in this order."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def canonical_schema(schema: dict[str, Any]) -> str:
    """`schema` as compact JSON text: the same dict gives the same text.

    The order of the keys is kept, because constrained decoding writes properties in schema order: a "reason" before an
    "answer" is a different request from the reverse. Raises UsageError if it is not a JSON Schema.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise UsageError("the schema cannot be written as JSON", given=error) from error
    validator(text)
    return text


@lru_cache(maxsize=256)
def validator(schema: str) -> Draft202012Validator:
    """The validator of a JSON Schema given as text. Raises UsageError if the schema is invalid."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    try:
        parsed = loads(schema)
        if not isinstance(parsed, dict):
            raise JsonError(f"the schema is {_kind(parsed)}; expected an object")
        Draft202012Validator.check_schema(parsed)
    except JsonError as error:
        raise UsageError("the JSON schema cannot be read", given=error) from error
    except SchemaError as error:
        raise UsageError("the JSON schema is not valid", given=error.message) from error
    # An empty registry: a reference can never make this open a connection.
    return Draft202012Validator(parsed, registry=Registry())


def spoken(text: str) -> str:
    """A reply without its thinking: the text after the thought; nothing if the thought never ended."""
    start = 0
    while thought := _THOUGHT.match(text, start):
        start = thought.end()
    if _UNFINISHED.match(text, start):
        return ""
    end = _THOUGHT_END.match(text, start)  # a template may have opened the thought
    return text[end.end() if end else start :]


def unfenced(text: str) -> str:
    """The reply without its thinking and without a fence around all of it."""
    text = spoken(text).strip()
    fenced = _FENCED.match(text)
    return fenced[1].strip() if fenced else text


def _kind(value: Any) -> str:
    names = {
        list: "an array",
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
        dict: "an object",
    }
    return names.get(type(value), "null")
