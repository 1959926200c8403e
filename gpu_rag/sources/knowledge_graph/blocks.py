"""Rows of files as blocks of columns: rows in the usual form by array operations, all others one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.lines import Line, LineBlock, cut_out, read_line_blocks
from gpu_rag.sources.parquet import Columns, read_table_blocks, rows_at
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits, attempted
from gpu_rag.types import Reject

TEXT = pa.large_string()
_ROWS = 1 << 14  # rows of a block that is read row by row
_TABLE_ROWS = 1 << 16
_TABLE_BYTES = 4 << 20  # maximum size of one block, if its rows are long
_MAX_REJECTS = 1 << 16
# Possible first bytes of Unicode white space (U+3000 is checked separately), and its possible last bytes.
_SPACES = np.isin(np.arange(256), [*range(0x21), 0xC2, 0xE1, 0xE2])
_ENDS = np.isin(np.arange(256), [*range(0x21), 0x85, 0xA0, *range(0x80, 0x8B), 0xA8, 0xA9, 0xAF, 0x9F])


@dataclass(frozen=True)
class Block:
    """Rows of one file by ascending line. columns: as in its schema, with `line` i64; rejects: rows left out."""

    columns: pa.RecordBatch
    rejects: list[Reject] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.columns.num_rows)

    @property
    def line(self) -> np.ndarray:
        """i64[n]: line of a text file, or row of a table; both from 1."""
        return self["line"].to_numpy()

    def __getitem__(self, name: str) -> pa.Array:
        return self.columns.column(name)

    def take(self, rows: np.ndarray, rejects: Sequence[Reject] = ()) -> Block:
        """Some of the rows, with other rejects."""
        return Block(self.columns.take(pa.array(rows)), list(rejects))


Reader = Callable[[Path, Limits], Iterator[Block]]
Plain = Callable[[Mapping[str, pa.Array], np.ndarray, Limits], tuple[Block, np.ndarray]]


@dataclass(frozen=True)
class RowKind:
    """A kind of rows, such as triples.

    schema: of the blocks; columns: of the tables. plain(columns by name, lines, limits): the block of the rows in
    the usual form, and the rows that must be read one by one; columns are texts, integers or lists of texts.
    single(row, limits): the object in one row; raises RowError.
    """

    schema: pa.Schema
    columns: Columns
    plain: Plain
    single: Callable[[Row, Limits], Any]


def batch_of(schema: pa.Schema, *columns: Any) -> pa.RecordBatch:
    """Batch of columns in the order of the schema."""
    arrays = [pa.array(column, f.type) for column, f in zip(columns, schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def block_of(schema: pa.Schema, rows: Iterable[Any]) -> Block:
    """Block of objects and Rejects in memory, sorted by line."""
    rows = sorted(rows, key=lambda row: row.line)
    things = [row for row in rows if not isinstance(row, Reject)]
    columns = ([getattr(thing, name) for thing in things] for name in schema.names)
    return Block(batch_of(schema, *columns), [row for row in rows if isinstance(row, Reject)])


def blocks_of(schema: pa.Schema, rows: Iterable[Any]) -> Iterator[Block]:
    """Blocks of objects and Rejects that are read one by one."""
    rows = iter(rows)
    while some := list(islice(rows, _ROWS)):
        yield block_of(schema, some)


def joined(blocks: Sequence[Block]) -> Block:
    """Blocks of one part of a file joined into one, sorted by line."""
    rejects = sorted((reject for block in blocks for reject in block.rejects), key=lambda reject: reject.line)
    some = [block for block in blocks if block.n] or blocks[:1]
    if len(some) == 1:
        return Block(some[0].columns, rejects)
    both = Block(pa.concat_batches([block.columns for block in some]), rejects)
    line = both.line
    return both if (line[1:] >= line[:-1]).all() else both.take(np.argsort(line, kind="stable"), rejects)


def together(blocks: Iterable[Block], min_rows: int) -> Iterator[Block]:
    """Blocks of a file joined to blocks of at least `min_rows` rows, or 65,536 rejects; the last one may be smaller."""
    waiting, n, n_rejects = list[Block](), 0, 0
    for block in blocks:
        waiting.append(block)
        n, n_rejects = n + block.n, n_rejects + len(block.rejects)
        if n >= min_rows or n_rejects >= _MAX_REJECTS:
            yield joined(waiting)
            waiting, n, n_rejects = [], 0, 0
    if waiting:
        yield joined(waiting)


# --- the shapes of readers -----------------------------------------------------------------------------


def read_table(kind: RowKind, path: Path, limits: Limits) -> Iterator[Block]:
    """Rows of a Parquet file, in blocks."""
    for block in read_table_blocks(path, kind.columns, _TABLE_ROWS, _TABLE_BYTES):
        if block.batches:
            columns, line = block.by_name(), block.before + 1 + np.arange(block.n_rows)
            texts = {name: _as_text(column) for name, column in columns.items()}
            ready, others = block_of(kind.schema, ()), np.arange(len(line))
            if all(column is not None for column in texts.values()):
                ready, others = kind.plain(texts, line, limits)
            rows = rows_at(path, columns, others, block.before)
            singles = (singly(kind, path, row, limits) for row in rows)
            yield joined([ready, block_of(kind.schema, singles)])
        if block.problem is not None:
            yield block_of(kind.schema, [block.problem])


def singly(kind: RowKind, path: Path, row: Row | Reject, limits: Limits) -> Any:
    """Object of a row, or the Reject if it cannot be used."""
    return row if isinstance(row, Reject) else attempted(path, row.line, kind.single, row, limits)


def _as_text(column: pa.Array) -> pa.Array | None:
    """Bytes as text, None if one is not UTF-8; other types unchanged."""
    try:
        return column.cast(TEXT) if pa.types.is_large_binary(column.type) else column
    except pa.ArrowInvalid:
        return None


def read_lines_in_blocks(
    schema: pa.Schema,
    path: Path,
    limits: Limits,
    plain: Callable[[LineBlock], tuple[Block, np.ndarray]],
    single: Callable[[Line], Any],
) -> Iterator[Block]:
    """Rows of a file of lines. plain(lines): a block, and the lines that must be read one by one; single(line): the
    object in a line, None for a line without one; raises RowError."""
    return rows_of_lines(schema, path, read_line_blocks(path, limits), plain, single)


def rows_of_lines(
    schema: pa.Schema,
    path: Path,
    lines: Iterable[LineBlock | Reject],
    plain: Callable[[LineBlock], tuple[Block, np.ndarray]],
    single: Callable[[Line], Any],
) -> Iterator[Block]:
    """Rows as in `read_lines_in_blocks`, from given lines."""
    for block in lines:
        if isinstance(block, Reject):
            yield block_of(schema, [block])
            continue
        ready, others = plain(block)
        alone = (block.line(row) for row in others.tolist())
        singles = (x if isinstance(x, Reject) else attempted(path, x.number, single, x) for x in alone)
        yield joined([ready, block_of(schema, [*block.rejects, *(row for row in singles if row is not None)])])


def plain_fields(
    kind: RowKind, block: LineBlock, keys: Sequence[str], min_fields: int, limits: Limits
) -> tuple[Block, np.ndarray]:
    """(rows of lines with at least `min_fields` tab-separated fields, in the columns `keys`; the other lines)."""
    tabs = np.flatnonzero(np.frombuffer(block.data, np.uint8) == 9)
    first, last = np.searchsorted(tabs, block.start), np.searchsorted(tabs, block.end)
    rows = np.flatnonzero(~block.alone & (last - first >= min_fields - 1) & (last - first < len(keys)))
    keys = keys[: int((last - first)[rows].max(initial=0)) + 1]
    end, bounds, begin = block.end[rows], list[np.ndarray](), block.start[rows]
    tabs = np.append(tabs, 0)
    for number in range(len(keys)):
        field = first[rows] + number
        stop = np.where(field < last[rows], tabs[np.minimum(field, len(tabs) - 1)], end)
        bounds += [begin, stop]
        begin = np.minimum(stop + 1, end)
    columns = cut_out(block.data, np.stack(bounds, 1), tuple(range(0, 2 * len(keys), 2)))
    ready, odd = kind.plain(dict(zip(keys, columns)), block.number[rows], limits)
    return ready, np.setdiff1d(np.arange(len(block.start)), np.delete(rows, odd), assume_unique=True)


# --- texts of a column ---------------------------------------------------------------------------------


def text_of(column: pa.Array | None, n: int) -> pa.LargeStringArray:
    """Column as n texts, "" for null."""
    if column is None or pa.types.is_null(column.type):
        return pa.repeat(pa.scalar("", TEXT), n)
    return column.cast(TEXT).fill_null("")


def octets_of(text: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, i64[n + 1]: start of each text in them, and the end of the last)."""
    _, offsets, data = text.buffers()
    if not len(text):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    start = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), start


def may_have_edges(text: pa.LargeStringArray) -> np.ndarray:
    """bool[n]: whether white space or a byte order mark may be at an end of a text; False for an empty text."""
    octets, bounds = octets_of(text)
    if not len(octets):
        return np.zeros(len(text), bool)
    first = np.minimum(bounds[:-1], len(octets) - 1)
    edges = may_be_blank(octets, first) | (octets[first] == 0xEF) | _ENDS[octets[np.maximum(bounds[1:] - 1, 0)]]
    result: np.ndarray = edges & (bounds[1:] > bounds[:-1])
    return result


def may_be_blank(octets: np.ndarray, start: np.ndarray) -> np.ndarray:
    """bool[n]: whether the character at each position of valid UTF-8 may be white space in Python's sense."""
    first, second = octets[start], octets[np.minimum(start + 1, len(octets) - 1)]
    result: np.ndarray = _SPACES[first] | ((first == 0xE3) & (second == 0x80))
    return result


def are_plain(text: pa.LargeStringArray, max_bytes: int = MAX_ID_CHARS) -> np.ndarray:
    """bool[n]: whether a text is short enough, without NUL, white space at its ends and a leading byte order mark."""
    good: np.ndarray = (np.asarray(pc.binary_length(text)) <= max_bytes) & ~has_nul(text)
    looked_at = np.flatnonzero(may_have_edges(text))
    for row, value in zip(looked_at.tolist(), text.take(pa.array(looked_at)).to_pylist()):
        good[row] &= value == value.strip() and not value.startswith("\ufeff")
    return good


def has_nul(text: pa.LargeStringArray) -> np.ndarray:
    """bool[n]: whether each text has a NUL character."""
    octets, bounds = octets_of(text)
    if octets[bounds[0] : bounds[-1]].all():
        return np.zeros(len(text), bool)
    return np.asarray(pc.match_substring(text, "\x00"))
