"""Schemas of the Parquet tables, and how they are written so that equal rows give equal bytes.

Integer ids are row numbers: every table is sorted by its text id, so ids follow the sorted ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index.folder import storage_errors

ROWS_A_GROUP = 8192

DOCUMENTS = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("file", pa.string()),
        ("line", pa.int32()),
        ("pages", pa.list_(pa.int64())),  # characters into the document where each page begins; empty: no pages
    ]
)
PASSAGES = pa.schema(
    [
        ("id", pa.string()),
        ("doc_id", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("start", pa.int64()),  # character offsets into the source document
        ("end", pa.int64()),
    ]
)
LINES = pa.schema([("line", pa.int32())])  # a row a passage: its first line in a text file, 0 in other sources
EXTRACTIONS = pa.schema(
    [
        ("passage", pa.int32()),
        ("entities", pa.list_(pa.string())),
        ("triples", pa.list_(pa.list_(pa.string()))),
        ("status", pa.string()),  # ok | empty | truncated | malformed | failed | absent | skipped
    ]
)
PROFILES = pa.schema(  # a row for each entity of a passage of which more than the name is known
    [
        ("passage", pa.int32()),
        ("name", pa.string()),  # as in the entities of EXTRACTIONS
        ("aliases", pa.list_(pa.string())),
        ("types", pa.list_(pa.string())),
        ("description", pa.string()),
    ]
)
ENTITIES = pa.schema(
    [
        ("id", pa.string()),  # the normalised name
        ("name", pa.string()),  # the commonest way it is written
        ("aliases", pa.list_(pa.string())),
        ("n_passages", pa.int32()),
    ]
)
RELATIONS = pa.schema(
    [
        ("id", pa.string()),
        ("subject", pa.int32()),  # rows of ENTITIES
        ("label", pa.string()),
        ("object", pa.int32()),
        ("passages", pa.list_(pa.int32())),  # where it was extracted, ascending
        ("origin", pa.string()),
    ]
)
MENTIONS = pa.schema(
    [
        ("entity", pa.int32()),
        ("passage", pa.int32()),
        ("start", pa.int32()),  # characters into the passage text; -1: extracted there, not found verbatim
        ("end", pa.int32()),
        ("origin", pa.string()),  # extraction | search
    ]
)
SYNONYMS = pa.schema([("left", pa.int32()), ("right", pa.int32()), ("score", pa.float32())])


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, Any]) -> int:
    """Writes columns (lists or arrays, by name) as Parquet (zstd, fixed row groups). Returns the number of rows."""
    return write_columns(path, schema, [pa.array(columns[field.name], type=field.type) for field in schema])


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """write_table for row dictionaries."""
    rows = list(rows)
    return write_table(path, schema, {name: [row[name] for row in rows] for name in schema.names})


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Reads a table and checks its schema. Raises IndexCorrupt naming the file.

    Each column is one chunk, as far as one can hold it (2 GiB of text): `take` of a few rows from one of many chunks
    costs as much as copying the column.
    """
    try:
        table = joined_chunks(pq.read_table(path))
    except (OSError, pa.ArrowException) as error:
        raise IndexCorrupt("a table of the index cannot be read", given=f"{path}: {error}") from error
    if not table.schema.equals(schema):
        raise IndexCorrupt("a table has other columns", given=f"{path}: {table.schema.names}", expected=schema.names)
    return table


def joined_chunks(table: pa.Table) -> pa.Table:
    """The table with columns of one chunk each; texts and lists of texts of more than 2 GiB stay in several."""
    try:
        return table.combine_chunks()
    except pa.ArrowInvalid:  # offsets of i32 overflow, which joins strings in part, but lists of strings not at all
        return pa.table([_joined(column) for column in table.columns], schema=table.schema)


def _joined(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return pa.table({"": column}).combine_chunks().column(0)
    except pa.ArrowInvalid:
        return column


def whole_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of texts in one chunk, of large_string where it had several: `take` raises where these exceed 2 GiB."""
    if column.num_chunks < 2:
        return column
    return pa.chunked_array([pa.concat_arrays(column.cast(pa.large_string()).chunks)])


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes named arrays as safetensors. Raises StorageError."""
    with storage_errors(path):
        try:
            save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, path)
        except SafetensorError as error:  # it has the number of the system's error in its text alone
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), str(error), str(path)) from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads safetensors. Raises IndexCorrupt naming the file."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise IndexCorrupt("arrays of the index cannot be read", given=f"{path}: {error}") from error


_GROUPS = 8  # of rows, that are cast and written at a time: their texts must stay below 2 GiB


class TableWriter:
    """Writes a table part by part. Memory: a part, and a group of rows. Raises StorageError, as `write_table`."""

    def __init__(self, path: Path, schema: pa.Schema):
        self._path, self._schema = path, schema
        self._waiting: list[pa.RecordBatch] = []
        self._n_waiting, self._wrote = 0, False
        with storage_errors(path):
            self._writer = pq.ParquetWriter(path, schema, compression="zstd", version="2.6")

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self._flush(self._n_waiting)
            if not self._wrote:  # a table without rows has one group without rows
                self._write(self._schema.empty_table())
        with storage_errors(self._path):
            self._writer.close()

    def add(self, columns: Sequence[Any]) -> None:
        """Takes rows: arrays in the order of the schema."""
        arrays = [self._cast(column, field.type) for column, field in zip(columns, self._schema)]
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._n_waiting += len(arrays[0])
        whole = self._n_waiting // ROWS_A_GROUP * ROWS_A_GROUP
        if whole:
            self._flush(whole)

    @staticmethod
    def _cast(column: Any, type: pa.DataType) -> pa.Array:
        return column.cast(type) if isinstance(column, pa.Array) else pa.array(column, type)

    def _flush(self, n: int) -> None:
        """Writes the first n rows, and keeps the rest."""
        if not n:
            return
        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        self._write(table.slice(0, n))
        self._waiting = table.slice(n).combine_chunks().to_batches()
        self._n_waiting -= n

    def _write(self, table: pa.Table) -> None:
        with storage_errors(self._path):
            self._writer.write_table(table, row_group_size=ROWS_A_GROUP)
        self._wrote = True


def write_columns(path: Path, schema: pa.Schema, columns: Sequence[pa.Array | np.ndarray]) -> int:
    """Writes columns that are at hand, a part at a time: a table of more than 2 GiB of text too. Returns the rows."""
    n, step = len(columns[0]), _GROUPS * ROWS_A_GROUP
    with TableWriter(path, schema) as writer:
        for start in range(0, n, step):
            writer.add([column[start : start + step] for column in columns])
    return n
