"""Strict JSON: this module refuses everything outside the standard that the standard library accepts.

Refused: NaN and Infinity, numbers that overflow a float, integers beyond 64 bits, a repeated key in one object, lone
surrogates, nesting deeper than `MAX_DEPTH`. No text, however long or deep, makes these functions crash.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 64
_MAX_INT = 2**63
_MAX_INT_DIGITS = 20
_SPACE = re.compile(r"[ \t\n\r]*")
# A whole string (an unclosed one runs to the end), or one bracket.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    """The text is not JSON that this module accepts; the message gives the reason.

    position: the character at which it breaks, if known.
    """

    def __init__(self, message: str, position: int | None = None):
        super().__init__(message)
        self.position = position


def loads(text: str) -> Any:
    """The value of a JSON text; white space around it is allowed. Raises JsonError."""
    value, end = _Decoder().decode(text, _skip_space(text, 0))
    if _skip_space(text, end) != len(text):
        raise JsonError(f"more text after the JSON value, at character {_skip_space(text, end)}")
    if isinstance(value, JsonError):
        raise value
    return value


def decode(text: str, start: int) -> tuple[Any, int]:
    """(value, its end) of the JSON value that begins at `start`; any text may follow. A refused value is a JsonError.
    Raises JsonError if the value has no end."""
    return _Decoder().decode(text, start)


def iter_array(text: str) -> Iterator[Any]:
    """The elements of a JSON array, one at a time; a refused element comes as a JsonError value.

    Raises JsonError if the text itself is broken: before the first element if it is not an array, else after the
    readable elements.
    """
    decoder = _Decoder()
    position = _skip_space(text, 0)
    if text[position : position + 1] != "[":
        raise JsonError("the JSON text is not an array: write [{...}, ...], or an object a line in a file named .jsonl")
    position = _skip_space(text, position + 1)
    closed = text[position : position + 1] == "]"
    while not closed:
        value, position = decoder.decode(text, position)
        yield value
        position = _skip_space(text, position)
        if text[position : position + 1] not in (",", "]") or position == len(text):
            raise JsonError(f"expected ',' or ']' at character {position}")
        closed = text[position] == "]"
        if not closed:
            position = _skip_space(text, position + 1)
    if _skip_space(text, position + 1) != len(text):
        raise JsonError(f"more text after the JSON array, at character {_skip_space(text, position + 1)}")


class _Decoder:
    """The standard decoder; its hooks record refused values, and do not raise: so the value's end is known."""

    def __init__(self) -> None:
        self._problem = ""
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_int=self._integer,
            parse_float=self._float,
        )

    def decode(self, text: str, start: int) -> tuple[Any, int]:
        """(value, its end); the value is a JsonError if it is refused. Raises JsonError if it has no end."""
        self._problem = ""
        try:
            value, end = self._json.raw_decode(text, start)
        except RecursionError as error:
            raise JsonError("the JSON is nested too deeply") from error
        except json.JSONDecodeError as error:
            raise JsonError(f"broken JSON: {error.msg} at character {error.pos}", error.pos) from error
        if not self._problem and _depth(text, start, end) > MAX_DEPTH:
            self._problem = f"the JSON is nested deeper than {MAX_DEPTH} levels"
        if not self._problem and _SURROGATE_ESCAPE.search(text, start, end) and not _encodable(value):
            self._problem = "a string holds half of a surrogate pair"
        return (JsonError(self._problem) if self._problem else value), end

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            self._problem = f"the key {twice[:80]!r} comes twice in one object"
        return value

    def _constant(self, name: str) -> None:
        self._problem = f"{name} is not a JSON number"

    def _integer(self, digits: str) -> int:
        # The length is tested first: converting a million digits takes minutes.
        value = int(digits) if len(digits) <= _MAX_INT_DIGITS else _MAX_INT
        if not -_MAX_INT <= value < _MAX_INT:
            self._problem = f"the integer {digits[:20]}... does not fit in 64 bits"
        return value

    def _float(self, digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            self._problem = f"the number {digits[:40]} does not fit in a float"
        return value


def _skip_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _depth(text: str, start: int, end: int) -> int:
    """The deepest nesting of brackets in text[start:end]; 0 if there are too few brackets to matter."""
    if text.count("[", start, end) + text.count("{", start, end) <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text, start, end):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest
