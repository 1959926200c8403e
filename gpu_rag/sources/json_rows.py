"""JSON Lines and JSON arrays to objects, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rag.sources.formats import LINES_SUFFIXES, has_suffix
from gpu_rag.sources.lines import Line, read_lines, read_whole
from gpu_rag.sources.rows import Limits, RowError, kind, shown
from gpu_rag.text.strict_json import JsonError, iter_array, loads
from gpu_rag.types import Reject


@dataclass(frozen=True)
class Row:
    """One JSON object. line: of JSON Lines the line, of an array the position; both from 1."""

    line: int
    value: dict[str, Any]


def read_rows(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    """The objects of a .jsonl, .jsonl.gz, .json or .json.gz file; what is no object, or no strict JSON, is a Reject.

    JSON Lines are read line by line. An array is read whole (at most max_json_bytes) and taken apart element by
    element; where its text breaks, the elements before are kept and the rest is one Reject.
    """
    rows = _lines(path, limits) if has_suffix(path, LINES_SUFFIXES) else _elements(path, limits)
    return (_only_object(path, row) for row in rows)


def _lines(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    for line in read_lines(path, limits):
        if isinstance(line, Reject):
            yield line
            continue
        yield _parsed(path, line)


def row_of(path: Path, line: Line) -> Row | Reject:
    """The object of one line of JSON Lines."""
    return _only_object(path, _parsed(path, line))


def _only_object(path: Path, row: Row | Reject) -> Row | Reject:
    if isinstance(row, Row) and not isinstance(row.value, dict):
        return Reject(shown(path), row.line, f"the row is {kind(row.value)}; expected a JSON object")
    return row


def _parsed(path: Path, line: Line) -> Row | Reject:
    try:
        return Row(line.number, loads(line.text))
    except JsonError as error:
        return Reject(shown(path), line.number, str(error))


def _elements(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    number = 0
    try:
        for element in iter_array(read_whole(path, limits.max_json_bytes, "max_json_bytes")):
            number += 1
            if isinstance(element, JsonError):
                yield Reject(shown(path), number, str(element))
            else:
                yield Row(number, element)
    except (JsonError, RowError) as error:
        yield Reject(shown(path), number + 1 if number else 0, f"{error}; what follows in this file is not read")
