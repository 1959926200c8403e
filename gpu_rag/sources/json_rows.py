"""Objects of JSON Lines and JSON arrays, one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rag.sources.columns import composed
from gpu_rag.sources.formats import LINES_SUFFIXES, has_suffix
from gpu_rag.sources.lines import Line, read_lines, read_whole
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits, RowError, attempted, kind, shown
from gpu_rag.text.strict_json import JsonError, iter_array, loads
from gpu_rag.types import Reject

_ONE_ARRAY = re.compile(r'\s*+\{\s*+"[^"\\]*+"\s*+:\s*+(\[.*)\}\s*', re.DOTALL)
_SPEAKERS, _TIMES = ("from", "sender", "speaker", "user", "author"), ("date", "time", "timestamp", "ts")
_LETTER = re.compile(r"[^\W\d_]")
_MAX_NAME = 100  # characters of a speaker or a time
_OWN_TEXT = frozenset({"text", "question", "query"})  # an object with one of them is a document or a question itself


@dataclass(frozen=True)
class Row:
    """One JSON object. line: its line in JSON Lines, its position in an array; both from 1. is_composed: its title and
    text were made of its other columns, see `columns`."""

    line: int
    value: dict[str, Any]
    is_composed: bool = False


def read_rows(path: Path, limits: Limits, with_rest: bool = False) -> Iterator[Row | Reject]:
    """Objects of a .jsonl, .jsonl.gz, .json or .json.gz file; anything that is no object, or no strict JSON, is a
    Reject.

    JSON Lines are read line by line. An array is read whole (at most max_json_bytes) and split into elements; if its
    text is broken, the elements before are kept and the rest is one Reject. A file of one object, such as
    {"n": 2, "rows": [{...}, {...}]}, is read as its list of objects if all else is short scalars, and as one row with
    these scalars and the text of all if all are short messages; any other object, or one with a text or a question of
    its own, is one row. with_rest: scalars beside such a list are the text of one more row, the last, if one has words.
    """
    if has_suffix(path, LINES_SUFFIXES):
        for line in read_lines(path, limits):
            yield line if isinstance(line, Reject) else attempted(path, line.number, row_of, line)
        return
    number = 0
    try:
        text = read_whole(path, limits.max_json_bytes, "max_json_bytes")
        elements = _rows_of(text, limits, with_rest) if text.lstrip()[:1] == "{" else iter_array(text)
        for element in elements:
            number += 1
            yield attempted(path, number, _row, number, element)
    except (JsonError, RowError) as error:
        end = "; what follows in this file is not read" if number else ""
        yield Reject(shown(path), number + 1 if number else 0, f"{error}{end}")


def _rows_of(text: str, limits: Limits, with_rest: bool) -> Iterable[Any]:
    """The rows of a file that is one object, see `read_rows`. Raises JsonError."""
    try:
        value = loads(text)
    except JsonError:
        if member := _ONE_ARRAY.fullmatch(text):  # the elements before the break are kept
            return iter_array(member[1])
        raise
    members: list[Any] = [member for member in value.values() if isinstance(member, list | dict | str)]
    large = [member for member in members if len(member) > (MAX_ID_CHARS if isinstance(member, str) else 0)]
    if [*value.values()] == [[]]:
        return []
    is_table = len(large) == 1 and isinstance(large[0], list) and all(isinstance(row, dict) for row in large[0])
    if not is_table or not _OWN_TEXT.isdisjoint(value):
        return [value]
    of_file = {name: member for name, member in value.items() if member is not large[0]}
    words = [member for member in of_file.values() if isinstance(member, str) and _LETTER.search(member)]
    name = str(value.get("title") or value.get("name") or "")
    if chat := _chat_of(large[0], limits):
        return [{**of_file, "title": name, "text": chat}]
    rest = {**of_file, "title": name or words[0], "text": composed(of_file.items())} if with_rest and words else None
    return [*large[0], rest] if rest else large[0]


def _chat_of(rows: list[dict[str, Any]], limits: Limits) -> str:
    """The text of rows that are all short messages or have an empty text; "" for other rows, and if all columns with
    roles are theirs."""
    lines = []
    for row in rows if not limits.columns or any(column not in rows[0] for _, column in limits.columns) else ():
        message, words = message_of(row), joined_parts(row.get("text"))
        if not isinstance(words, str) or "\0" in words or (words and not message):
            return ""
        if message and words.strip():
            lines.append(f"[{message[0]}] {message[1]}: {' '.join(words.split())}")
    n_chars = sum(map(len, lines)) + len(lines)
    return "" if n_chars > min(limits.max_document_chars, MAX_ID_CHARS * len(lines)) else "\n".join(lines)


def message_of(row: dict[str, Any]) -> tuple[str, str] | None:
    """(time, speaker) of a row that is a message of a chat; None for another row."""
    speaker, time = (next((row[name] for name in names if row.get(name)), None) for names in (_SPEAKERS, _TIMES))
    if "text" not in row or row.get("title") or not isinstance(speaker, str) or type(time) not in (str, int, float):
        return None
    message = (" ".join(str(time).split()), " ".join(speaker.split()))
    return message if all(0 < len(part) <= _MAX_NAME and "\0" not in part for part in message) else None


def joined_parts(text: Any) -> Any:
    """The text of a message that is a list of objects with a text, and of strings between them; another value as it
    is."""
    if not isinstance(text, list) or not any(isinstance(part, dict) for part in text):
        return text
    parts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in text]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else text


def read_object(path: Path, limits: Limits, what: str = "an object") -> dict[str, Any]:
    """The object in a JSON file. Raises RowError."""
    try:
        value = loads(read_whole(path, limits.max_json_bytes, "max_json_bytes"))
    except JsonError as error:
        raise RowError(str(error)) from error
    if not isinstance(value, dict):
        raise RowError(f"the file is {kind(value)}; expected {what}")
    return value


def row_of(line: Line) -> Row:
    """Object of one line of JSON Lines. Raises RowError or JsonError."""
    return _row(line.number, loads(line.text))


def _row(number: int, value: Any) -> Row:
    if isinstance(value, JsonError):
        raise value
    if not isinstance(value, dict):
        raise RowError(f"the row is {kind(value)}; expected a JSON object")
    return Row(number, value)
