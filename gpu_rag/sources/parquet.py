"""A Parquet table with the columns id, title and text: one document a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.rows import RowError, decode_utf8, shown
from gpu_rag.types import Reject

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("id", "_id", "title", "text")
_BATCH_ROWS = 1024


def read_parquet(path: Path) -> Iterator[Row | Reject]:
    """The rows of a Parquet file as objects of strings (ids may be integers), numbered from 1.

    A file that is broken, or whose columns are missing or of another type, is one Reject after the rows before it.
    Memory: 1,024 rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            columns, said = _check_columns(file.schema_arrow), file.metadata.num_rows
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                values = [_as_bytes(batch.column(name)).to_pylist() for name in columns]
                for row in zip(*values):
                    number += 1
                    yield _decoded(path, number, dict(zip(columns, row)))
            if number != said:
                raise RowError(f"the table names {said} rows, but {number} can be read")
    except (pa.ArrowException, OSError, RowError, UnicodeDecodeError) as error:  # the last: names of columns
        reason = " ".join(str(error).split())[:300]
        yield Reject(shown(path), number + 1 if number else 0, f"{reason}; what follows in this file is not read")


def _check_columns(schema: pa.Schema) -> list[str]:
    """The columns to read. Raises RowError when text is missing or a type cannot be read."""
    import pyarrow.types as types

    if "text" not in schema.names:
        raise RowError(f"the table has the columns {', '.join(schema.names)[:200]}; expected id, title and text")
    columns = [name for name in _COLUMNS if name in schema.names]
    for name in columns:
        found = schema.field(name).type
        value = found.value_type if types.is_dictionary(found) else found
        text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
        if not (text or types.is_null(value) or (name in ("id", "_id") and types.is_integer(value))):
            raise RowError(f"the column {name} has the type {found}; expected string")
    return columns


def _as_bytes(column: pa.Array) -> pa.Array:
    """Strings as bytes, because a table may hold strings that are no UTF-8; other types as they are."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_string_view(column.type):
        return column.cast(pa.binary_view())
    if types.is_string(column.type) or types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _decoded(path: Path, number: int, row: dict[str, Any]) -> Row | Reject:
    try:
        return Row(number, {key: decode_utf8(v) if isinstance(v, bytes) else v for key, v in row.items()})
    except RowError as error:
        return Reject(shown(path), number, str(error))
