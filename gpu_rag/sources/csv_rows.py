"""Reader of .csv and .tsv tables as rows: quoted or not, with any of four delimiters, in any charset."""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from gpu_rag.sources.charset import SAMPLE_BYTES, charset_of, doubt_of, mark_of
from gpu_rag.sources.columns import NUMBER, Columns, applicable, composed, is_composable, row_title, title_column
from gpu_rag.sources.formats import TSV_SUFFIXES, has_suffix
from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.lines import open_binary, read_problem
from gpu_rag.sources.rows import Limits, RowError, attempted, shown
from gpu_rag.types import Reject, Scalar

_DELIMITERS = ",;\t|"
_READ_BYTES = 1 << 20
CAPTION_LINES = 5
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")  # long integers are texts
_BOOLEANS = {"true": True, "false": False}
_TEXTS = ("id", "_id", "title", "text", "question", "answer")  # columns that are always texts


def read_csv(path: Path, limits: Limits, needed: str = "text") -> Iterator[Row | Reject]:
    """Rows of a .csv or .tsv file (gzip if the name ends in .gz) below a line of names, which must include `needed`.
    Lines of one cell above it, at most CAPTION_LINES, are a caption, and begin the title of a row without a text.
    `limits.columns` renames columns; rows of a table without a column `text` get one of all their cells, see `columns`.

    Row.line is the line on which a row begins, from 1. Empty cells are left out, and empty rows where all cells are
    the text. id, title, text, question and answer (in any case) and renamed columns are texts; other cells are
    integers, floats, true or false if they look like one, else texts. Quoted cells may hold line ends. A line `sep=;`
    names the delimiter; else it is one of , ; tab | and gives the column `needed`, or the most columns. A row with more
    cells than names, with a broken quotation, of another charset or longer than max_line_bytes is a Reject, and reading
    continues after it; so is a doubt about the charset. Memory: one row.
    """
    number = 0
    try:
        codec = _charset(path)
        if needed == "text" and (other := _other_charset(path, codec)):
            reason = f"it is read as {codec.upper()} but may be {other} or another"
            yield Reject(shown(path), 0, f"{reason}; if the text looks wrong, save it as UTF-8")
        # A bad byte becomes a surrogate, so that it costs a row and not the file.
        with open_binary(path) as raw, TextIOWrapper(raw, codec, errors="surrogateescape", newline="") as stream:
            lines = _Lines(stream, limits.max_line_bytes)
            # The csv module has one limit for the whole process; it may not be lower than ours.
            csv.field_size_limit(max(csv.field_size_limit(), limits.max_line_bytes))
            delimiter = _delimiter(lines, has_suffix(path, TSV_SUFFIXES), needed, limits.columns)
            names: list[str] = []
            captions: list[str] = []
            head: list[tuple[int, list[str]]] = []
            records = _records(lines, delimiter)
            for number, cells in records:
                if isinstance(cells, RowError):
                    yield Reject(shown(path), number, str(cells))
                elif names and (any(cells) or not is_composable(names)):
                    yield attempted(path, number, _row, number, names, cells, codec, captions)
                elif any(cells):
                    head.append((number, cells))
                    if not _is_caption(cells, needed, limits.columns):
                        names = _names(cells, needed, limits.columns)
                        captions = [" ".join("".join(caption).split()).lstrip("# ") for _, caption in head[:-1]]
                    elif len(head) > CAPTION_LINES:
                        break
            if not head:
                raise RowError("the table has no line of names")
            if not names:  # no row has several cells, so that the first is no caption
                names = _names(head[0][1], needed, limits.columns)
                for number, cells in chain(head[1:], records):
                    if isinstance(cells, RowError):
                        yield Reject(shown(path), number, str(cells))
                    elif any(cells):
                        yield attempted(path, number, _row, number, names, cells, codec, captions)
    except (OSError, EOFError, zlib.error, RowError, UnicodeError) as error:
        problem = str(error) if isinstance(error, UnicodeError) else read_problem(error)
        yield Reject(shown(path), number, f"{problem}; what follows in this file is not read")


def _is_caption(cells: Sequence[str], needed: str, columns: Columns) -> bool:
    return bool(cells and cells[0]) and not any(cells[1:]) and needed not in _known(cells, columns)


def _charset(path: Path) -> str:
    with open_binary(path) as stream:
        mark, codec = mark_of(stream.read(4))
    if mark:
        return {"utf-8": "utf-8-sig"}.get(codec, codec[:6])  # codecs that remove the mark
    with open_binary(path) as stream:
        return charset_of(iter(lambda: stream.read(_READ_BYTES), b""))


def _other_charset(path: Path, codec: str) -> str:
    with open_binary(path) as stream:
        return doubt_of(stream.read(SAMPLE_BYTES), codec)


class _Lines:
    """Lines of a stream with their ends, none longer than `limit`. Lines can be returned, to be read again."""

    def __init__(self, stream: TextIO, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._number = 0
        self._size = 0
        self._again: deque[tuple[int, str]] = deque()
        self._left = limit  # characters that may be read again; without it a hostile file is read once per line
        self.taken: list[tuple[int, str]] = []  # lines of the record being read

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        """Next line. Raises RowError if it, or its record, is too long."""
        number, line = self._again.popleft() if self._again else self._read()
        self.taken.append((number, line))
        self._size += len(line)
        if self._size > self._limit:
            raise RowError(f"the row is longer than max_line_bytes = {self._limit}")
        return line

    def _read(self) -> tuple[int, str]:
        line = self._stream.readline(self._limit + 1)
        if not line:
            raise StopIteration
        self._number += 1
        size = len(line)
        while line and size > self._limit and not line.endswith(("\r", "\n")):  # skip the rest of a long line
            line = self._stream.readline(_READ_BYTES)
        self._size += size * (size > self._limit)
        return self._number, "" if size > self._limit else line

    def begin(self) -> None:
        self.taken, self._size = [], 0

    def give_back(self, first: int) -> None:
        """Return the lines of this record from position `first` on, to be read again if that is still allowed."""
        again = self.taken[first:]
        size = sum(len(line) for _, line in again)
        if size <= self._left:
            self._left -= size if first else 0
            self._again.extendleft(reversed(again))


def _delimiter(lines: _Lines, is_tsv: bool, needed: str, columns: Columns) -> str:
    """Delimiter by the first line of several cells. The lines are read again, unless the first names the delimiter."""
    candidates = "\t" if is_tsv else _DELIMITERS
    for number, line in enumerate(islice(lines, 1 + CAPTION_LINES)):
        if not number and (named := re.fullmatch(r"sep=(.)\s*", line)):
            return named[1]
        cells = {d: next(csv.reader([line], delimiter=d), []) for d in candidates}
        fitting = [d for d in candidates if needed in _known(cells[d], columns)]
        best = fitting[0] if fitting else max(candidates, key=lambda d: len(cells[d]))
        if fitting or len(cells[best]) > 1:
            break
    else:
        best = candidates[0]
    lines.give_back(0)
    return best


def _records(lines: _Lines, delimiter: str) -> Iterator[tuple[int, list[str] | RowError]]:
    """(first line, cells or the reason why there are none) of each record that is not blank."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    n_names = 0
    while True:
        lines.begin()
        record: list[str] | RowError
        try:
            record = next(reader, [])
        except (csv.Error, RowError) as error:
            line = lines.taken[0][1]
            record = error if isinstance(error, RowError) else RowError(f"its quotation is broken: {error}")
            cells = line.rstrip("\r\n").split("\t")
            if delimiter == "\t" and len(cells) == n_names:  # a quote in tab-separated rows is usually only a character
                record = cells
            lines.give_back(1)  # an open quotation may have swallowed whole rows
        if not lines.taken:
            return
        if record:
            if n_names < 2 and isinstance(record, list):  # a caption may be one cell; rows do not change the number
                n_names = len(record)
            yield lines.taken[0][0], record


def _known(cells: Sequence[str], columns: Columns) -> list[str]:
    """Names of columns; text columns in lower case, and renamed columns by their role, in place of its own column."""
    names = [cell.strip() for cell in cells]
    known = [name.lower() if name.lower() in _TEXTS else name for name in names]
    roles = {column: role for role, column in applicable(columns, {*names, *known}) if column in names}
    return [roles.get(name, low if low not in roles.values() else "") for name, low in zip(names, known)]


def _names(cells: list[str], needed: str, columns: Columns) -> list[str]:
    names = _known(cells, columns)
    if needed not in names and not (needed == "text" and is_composable(names)):
        wanted = "id, title and text" if needed == "text" else f"a column {needed}"
        raise RowError(f"the table has the columns {', '.join(names)[:200]}; expected {wanted}")
    twice = next((name for name in _TEXTS if names.count(name) > 1), None)
    if twice:
        raise RowError(f"the table has two columns {twice}")
    return names


def _row(number: int, names: list[str], cells: list[str], codec: str, captions: Sequence[str]) -> Row:
    """Row of its cells. Raises RowError."""
    if any(cells[len(names) :]):
        raise RowError(f"the row has {len(cells)} cells for {len(names)} columns; a cell with a delimiter needs quotes")
    value: dict[str, Any] = {}
    for name, cell in zip(names, cells):
        if not cell.isascii() and any("\udc80" <= char <= "\udcff" for char in cell):
            raise RowError(f"not {codec.upper()}, the charset of the file")
        if cell and name and name not in value:
            value[name] = cell if name in _TEXTS else typed(cell.strip())
    if not is_composable(names):
        return Row(number, value)
    shown = {name: cell.strip() for name, cell in zip(names, cells) if name}
    bare = cells[0].strip() if cells and not names[0] else ""  # the title of a row, under no name
    id = shown.get("id") or shown.get("_id", "")
    column = title_column([*filter(None, names)] or names)
    own = bare if bare and not NUMBER.fullmatch(bare) else row_title(column, shown.get(column, ""), id)
    title = ", ".join(filter(None, (*captions, own)))
    return Row(number, {**value, "title": title, "text": composed(shown.items())}, True)


def typed(cell: str) -> Scalar | None:
    """Value of a cell: an integer (not a code such as 007), a float, true or false, or a text; None for white space."""
    if _INTEGER.fullmatch(cell):
        return int(cell)
    if _FLOAT.fullmatch(cell) and math.isfinite(float(cell)):
        return float(cell)
    return _BOOLEANS.get(cell.lower(), cell or None)
