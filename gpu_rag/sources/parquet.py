"""Parquet tables as rows of text: by default id, title and text, one document per row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from gpu_rag.sources.columns import is_composable
from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.rows import RowError, attempted, check_unpacked, decode_utf8, shown
from gpu_rag.types import Reject

BATCH_ROWS = 1024
BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Columns:
    """Columns to read of a table.

    names: read if they exist; required: alternatives, one of which must be complete; integers: columns that may hold
    integers; lists: columns of lists of strings; expected: in words; others: whether all other scalar columns are read
    too, and make up a text if there is none, see `columns`.
    """

    names: tuple[str, ...]
    required: tuple[tuple[str, ...], ...]
    integers: tuple[str, ...]
    expected: str
    lists: tuple[str, ...] = ()
    others: bool = False


DOCUMENTS = Columns(("id", "_id", "title", "text"), (("text",),), ("id", "_id"), "id, title and text", others=True)


@dataclass(frozen=True)
class TableBlock:
    """Some rows of a table. columns: the columns that were read; before: number of rows before these; problem: the
    fault that ends the reading after these rows, or None."""

    columns: list[str]
    batches: list[pa.RecordBatch]
    before: int
    problem: Reject | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def n_bytes(self) -> int:
        """Size of the rows in memory."""
        return sum(batch.nbytes for batch in self.batches)

    def by_name(self) -> dict[str, pa.Array]:
        """Columns by name, strings as bytes (`as_bytes`). There must be batches."""
        return {
            name: pa.concat_arrays([as_bytes(batch.column(name)) for batch in self.batches]) for name in self.columns
        }


def read_table_blocks(path: Path, wanted: Columns, n_rows: int, n_bytes: int) -> Iterator[TableBlock]:
    """Rows of a Parquet file in blocks that end at n_rows rows or n_bytes.

    The last block, which may be empty, has the problem that ended the reading: a broken file, columns that are missing
    or of another type, or a batch with lists of strings that are not UTF-8.
    """
    block = TableBlock([], [], 0)
    problem = None
    try:
        with pq.ParquetFile(path) as file:
            columns, expected = _checked_columns(file.schema_arrow, wanted), file.metadata.num_rows
            block = TableBlock(columns, [], 0)
            for batch in _batches(path, file, columns):
                _check_lists(batch, wanted)
                block.batches.append(batch)
                if block.n_rows >= n_rows or block.n_bytes >= n_bytes:
                    yield block
                    block = TableBlock(columns, [], block.before + block.n_rows)
            if (n := block.before + block.n_rows) != expected:
                raise RowError(f"the table names {expected} rows, but {n} can be read")
    except (pa.ArrowException, OSError, RowError, UnicodeDecodeError) as error:  # UnicodeDecodeError: names of columns
        problem = _not_read_on(path, block.before + block.n_rows, error)
    if block.batches or problem is not None:
        yield replace(block, problem=problem)


def _batches(path: Path, file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Rows of a table, at most BATCH_ROWS at a time; fewer if rows as long as the first of their group would have more
    than BATCH_BYTES together.

    Raises RowError for a row group that is a bomb. The metadata of single columns is not read: for some broken files
    pyarrow would end the process.
    """
    n_bytes = path.stat().st_size
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        check_unpacked(n_bytes, about.total_byte_size)
        longest = about.total_byte_size // max(about.num_rows, 1)
        for batch in file.iter_batches(batch_size=1, row_groups=[group], columns=columns):
            longest += batch.nbytes  # a text that all rows may share
            break
        rows = min(BATCH_ROWS, max(1, BATCH_BYTES // max(longest, 1)))
        yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=columns)


def read_parquet(path: Path, wanted: Columns = DOCUMENTS) -> Iterator[Row | Reject]:
    """Rows of a Parquet file as objects of strings (ids may be integers), numbered from 1.

    If a file is broken, or columns are missing or of another type, one Reject follows the rows before the fault.
    Memory: 1,024 rows.
    """
    for block in read_table_blocks(path, wanted, 1, 1):
        if block.batches:
            yield from rows_at(path, block.by_name(), np.arange(block.n_rows), block.before, wanted.names)
        if block.problem is not None:
            yield block.problem


def _not_read_on(path: Path, n_read: int, error: Exception) -> Reject:
    reason = " ".join(str(error).split())[:300]
    return Reject(shown(path), n_read + 1 if n_read else 0, f"{reason}; what follows in this file is not read")


def _check_lists(batch: pa.RecordBatch, wanted: Columns) -> None:
    """Raise UnicodeDecodeError for lists of strings that are not UTF-8."""
    for name in set(wanted.lists) & set(batch.schema.names):
        if not pa.types.is_null(batch.column(name).type):
            values = batch.column(name).flatten()
            try:
                values.cast(pa.large_binary()).cast(pa.large_string())
            except pa.ArrowInvalid:
                values.to_pylist()


def _checked_columns(schema: pa.Schema, wanted: Columns) -> list[str]:
    """Columns to read. Raises RowError if a required one is missing or a type cannot be read."""
    is_whole = any(set(names) <= set(schema.names) for names in wanted.required)
    if not is_whole and not (wanted.others and is_composable(schema.names)):
        raise RowError(f"the table has the columns {', '.join(schema.names)[:200]}; expected {wanted.expected}")
    columns = [name for name in wanted.names if name in schema.names]
    for name in columns:
        column_type = schema.field(name).type
        if not _is_readable(column_type, name in wanted.integers, name in wanted.lists):
            expected = "list of string" if name in wanted.lists else "string"
            raise RowError(f"the column {name} has the type {column_type}; expected {expected}")
    others = (field for field in schema if wanted.others and field.name not in columns)
    return columns + [field.name for field in others if schema.names.count(field.name) == 1 and _is_scalar(field.type)]


def _is_scalar(column_type: pa.DataType) -> bool:
    value = column_type.value_type if types.is_dictionary(column_type) else column_type
    number = types.is_integer(value) or types.is_floating(value) or types.is_decimal(value) or types.is_boolean(value)
    return number or types.is_date(value) or types.is_timestamp(value) or _is_readable(value, False, False)


def _is_readable(column_type: pa.DataType, integers: bool, lists: bool) -> bool:
    if lists:
        is_list = types.is_list(column_type) or types.is_large_list(column_type)
        return types.is_null(column_type) or (is_list and types.is_string(column_type.value_type))
    value = column_type.value_type if types.is_dictionary(column_type) else column_type
    text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
    return text or types.is_null(value) or (integers and types.is_integer(value))


def as_bytes(column: pa.Array) -> pa.Array:
    """Strings as bytes, because a table may hold strings that are not UTF-8; dates and times (to the second) as ISO
    text, times with a zone in UTC; other types unchanged."""
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_date(column.type):
        return column.cast(pa.date32(), safe=False).cast(pa.string())
    if types.is_timestamp(column.type):
        return pc.replace_substring(column.cast(pa.timestamp("s"), safe=False).cast(pa.string()), " ", "T")
    if types.is_string_view(column.type):
        return column.cast(pa.binary_view()).cast(pa.large_binary())  # rows of this type can be taken
    if types.is_string(column.type) or types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def rows_at(
    path: Path, columns: dict[str, pa.Array], rows: np.ndarray, before: int, strict: Collection[str] = ()
) -> Iterator[Row | Reject]:
    """Some rows of a block of columns; `before` rows of the file precede the block. strict: columns whose text must be
    UTF-8 (empty: all); in other columns, text that is not UTF-8 becomes null."""
    values: list[list[Any]] = [column.take(pa.array(rows)).to_pylist() for column in columns.values()]
    for row, *given in zip(rows.tolist(), *values):
        number = before + row + 1
        yield attempted(path, number, _decoded, number, dict(zip(columns, given)), strict or columns)


def _decoded(number: int, row: dict[str, Any], strict: Collection[str]) -> Row:
    """Row with its bytes as text. Raises RowError if `strict` columns are not UTF-8."""
    return Row(number, {k: _text(v, k in strict) if isinstance(v, bytes) else v for k, v in row.items()})


def _text(data: bytes, strict: bool) -> str | None:
    try:
        return decode_utf8(data)
    except RowError:
        if strict:
            raise
        return None
