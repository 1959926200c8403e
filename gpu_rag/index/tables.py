"""Schemas of the Parquet tables, written so that equal rows give equal bytes.

Integer ids are row numbers: every table is sorted by its text id, so ids follow the sorted ids.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.names import TextColumn, one_array
from gpu_rag.text.bm25 import narrow as narrow

T = TypeVar("T")
ROWS_A_GROUP = 8192
BYTES_KEPT = 1 << 26  # limit on the columns that the stages of a build share
GROUPS_KEPT = 256  # row groups of a table that stay in memory, if groups are read on demand

DOCUMENTS = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("file", pa.string()),
        ("line", pa.int32()),
        ("pages", pa.list_(pa.int64())),  # character offset where each page begins; empty: no pages
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
LINES = pa.schema([("line", pa.int32())])  # one row per passage: its first line in a text file, 0 in other sources
EXTRACTIONS = pa.schema(
    [
        ("passage", pa.int32()),
        ("entities", pa.list_(pa.string())),
        ("triples", pa.list_(pa.list_(pa.string()))),
        ("status", pa.string()),  # ok | empty | truncated | malformed | failed | absent | skipped
    ]
)
PROFILES = pa.schema(  # one row per entity of a passage with more than a name
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
        ("name", pa.string()),  # the most frequent spelling
        ("aliases", pa.list_(pa.string())),
        ("n_passages", pa.int32()),
    ]
)
EXTRACTED = pa.schema(  # the entities that each passage states, sorted by (passage, entity)
    [("passage", pa.int32()), ("entity", pa.int32())]
)
RELATIONS = pa.schema(
    [
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
        ("start", pa.int32()),  # character offset into the passage text; -1: extracted, not found verbatim
        ("end", pa.int32()),
        ("origin", pa.string()),  # extraction | search
    ]
)
SYNONYMS = pa.schema([("left", pa.int32()), ("right", pa.int32()), ("score", pa.float32())])


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, Any]) -> int:
    """Write columns (lists or arrays, by name) as Parquet (zstd, fixed row groups). Returns the number of rows."""
    return write_columns(path, schema, [pa.array(columns[field.name], type=field.type) for field in schema])


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a table from row dictionaries, as `write_table`."""
    rows = list(rows)
    return write_table(path, schema, {name: [row[name] for row in rows] for name in schema.names})


def read_table(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table, or some of its columns, and check its schema. Raises IndexCorrupt naming the file.

    Each column is one chunk if it fits (2 GiB of text): `take` of a few rows from one of many chunks costs as much as
    copying the column.
    """
    wanted, kept = schema.names if columns is None else columns, _kept.get()
    columns_of = {} if kept is None else kept
    with _reading(path):
        keys = {name: (*_stamp(path), name) for name in wanted}
        if missing := [name for name, key in keys.items() if key not in columns_of]:
            with pq.ParquetFile(path) as file:
                check_schema(path, file.schema_arrow, schema)
                table = joined_chunks(file.read(columns=missing))
            columns_of |= {keys[name]: table[name] for name in missing}
    for key in keys.values():
        columns_of[key] = columns_of.pop(key)  # the last used ones stay longest
    arrays, n_bytes = [columns_of[key] for key in keys.values()], sum(column.nbytes for column in columns_of.values())
    for key in list(columns_of):
        if n_bytes > BYTES_KEPT:
            n_bytes -= columns_of.pop(key).nbytes
    return pa.table(arrays, schema=pa.schema([schema.field(name) for name in wanted]))


_kept: ContextVar[dict[tuple[Path, int, int, str], pa.ChunkedArray] | None] = ContextVar("_kept", default=None)


@contextmanager
def keeping_columns() -> Iterator[None]:
    """Keep columns that `read_table` has read in memory, up to BYTES_KEPT, since the stages of a build share them."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise IndexCorrupt naming the file if a table cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        do = "run gpu-rag index again: it makes what is missing or of an older version"
        raise IndexCorrupt("a table of the index cannot be read", given=f"{path}: {error}", do=do) from error


def _stamp(path: Path) -> tuple[Path, int, int]:
    """The path of a file, its inode and its time of change. Raises IndexCorrupt naming the file."""
    with _reading(path):
        stat = os.stat(path)
        return path, stat.st_ino, stat.st_mtime_ns


def read_batches(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read a table, or some of its columns, one row group at a time; columns that `keeping_columns` has in
    memory are not read again. Raises IndexCorrupt naming the file."""
    wanted, stamp, kept = schema.names if columns is None else columns, _stamp(path), _kept.get() or {}
    if all((*stamp, name) in kept for name in wanted):
        yield from read_table(path, schema, wanted).to_batches(ROWS_A_GROUP)
        return
    with _reading(path), pq.ParquetFile(path) as file:
        check_schema(path, file.schema_arrow, schema)
        yield from file.iter_batches(ROWS_A_GROUP, columns=columns)


class RowGroups:
    """Rows of a table, or of some of its columns, that are read when asked for, a row group at a time. Memory: the
    `kept` last used groups; None: all.

    Raises IndexCorrupt naming the file.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, columns: Sequence[str] | None = None, kept: int | None = GROUPS_KEPT
    ):
        names = schema.names if columns is None else list(columns)
        with _reading(path), pq.ParquetFile(path) as file:
            check_schema(path, file.schema_arrow, schema)
            metadata = file.metadata

        @lru_cache(kept)
        def group(number: int) -> dict[str, TextColumn[Any]]:
            with _reading(path), pq.ParquetFile(path, metadata=metadata) as file:
                table = joined_chunks(file.read_row_group(number, columns=names))
            return {name: TextColumn(table[name]) for name in names}

        self.n_groups = metadata.num_row_groups
        sizes = [metadata.row_group(number).num_rows for number in range(self.n_groups)]
        self._names, self._group, self._starts = names, group, np.cumsum([0, *sizes]).tolist()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """The rows of these numbers, in the order given."""
        result: list[dict[str, Any]] = []
        for row in map(int, rows):
            number = bisect_right(self._starts, row) - 1
            place = row - self._starts[number]  # an entry of a column costs a tenth of a slice of a table
            group = self._group(number)
            result.append({name: group[name][place] for name in self._names})
        return result


class StoredColumn(TextColumn[T]):
    """A column of a table in a file. Its row groups are read when an entry of them is asked for, and the whole column
    when more entries than row groups are. Memory: what was read."""

    def __init__(self, path: Path, schema: pa.Schema, name: str):
        self._path, self._schema, self._name = path, schema, name
        self._groups = RowGroups(path, schema, [name], None)
        self._n = len(self._groups)

    @cached_property
    def _whole(self) -> TextColumn[T]:
        return TextColumn(read_table(self._path, self._schema, [self._name])[self._name])

    @cached_property
    def column(self) -> pa.ChunkedArray:
        """The whole column."""
        return self._whole.column

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) or index < 0 or "_whole" in self.__dict__:
            return self._whole[index]
        if index >= len(self):
            raise IndexError(index)
        return self._groups.take([index])[0][self._name]

    def take(self, rows: np.ndarray) -> list[T]:
        """The entries of some rows, i64[n], in their order."""
        return [self[row] for row in rows.tolist()] if len(rows) <= self._groups.n_groups else self._whole.take(rows)


def unchanged_rows(
    now: Path,
    earlier: Path,
    schema: pa.Schema,
    columns: Sequence[str],
    also: Iterable[tuple[pa.ChunkedArray, pa.ChunkedArray]] = (),
) -> np.ndarray:
    """i64[n]: the row that each row of a table was in an earlier table; -1 if its columns, texts or lists, are new. The
    first column has unique values, and both tables are sorted by it, so that rows ascend. also: more columns, of other
    tables with the same rows. Memory: the columns of both."""
    new, old = (read_table(path, schema, columns).columns for path in (now, earlier))
    return same_rows((*zip(new, old), *also))


def same_rows(columns: Iterable[tuple[pa.ChunkedArray, pa.ChunkedArray]]) -> np.ndarray:
    """The row as in `unchanged_rows`, of columns that are read: (of the one table, of the other)."""
    (ids, known), *others = columns
    rows = pc.index_in(one_array(ids), value_set=one_array(known))
    is_same = pc.is_valid(rows).to_numpy(zero_copy_only=False)
    for column, before in others:
        is_same &= _are_equal(one_array(column), one_array(before).take(rows))
    return np.where(is_same, pc.fill_null(rows, -1).to_numpy(), -1).astype(np.int64)  # type: ignore[no-any-return]


def _are_equal(a: pa.Array, b: pa.Array) -> np.ndarray:
    """Whether values of two arrays of texts, or of lists of these, are equal: bool[n]; False for nulls."""
    if not pa.types.is_large_list(a.type):
        return pc.fill_null(pc.equal(a, b), False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    are_equal: np.ndarray = _are_equal(*(pc.list_value_length(lists).cast(pa.int64()) for lists in (a, b)))
    rows, mask = np.flatnonzero(are_equal), pa.array(are_equal)
    a, b = a.filter(mask), b.filter(mask)  # lists of equal lengths, so that their values lie side by side
    others = ~_are_equal(a.flatten(), b.flatten())
    are_equal[rows[pc.list_parent_indices(a).to_numpy()[others]]] = False
    return are_equal


def n_rows(path: Path) -> int:
    """Number of rows of a table, from its footer. Raises IndexCorrupt naming the file."""
    with _reading(path):
        return int(pq.read_metadata(path).num_rows)


def check_schema(path: Path, given: pa.Schema, schema: pa.Schema) -> None:
    """Raise IndexCorrupt if the columns of a file differ from `schema`."""
    if not given.equals(schema):
        raise IndexCorrupt("a table has other columns", given=f"{path}: {given.names}", expected=schema.names)


def joined_chunks(table: pa.Table) -> pa.Table:
    """Table with one chunk per column; texts and lists of texts of more than 2 GiB stay in several."""
    try:
        return table.combine_chunks()
    except pa.ArrowInvalid:  # i32 offsets overflow; strings are then joined in part, lists of strings not at all
        return pa.table([_joined(column) for column in table.columns], schema=table.schema)


def _joined(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return pa.table({"": column}).combine_chunks().column(0)
    except pa.ArrowInvalid:
        return column


def whole_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Column of texts in one chunk; several chunks become large_string, because `take` raises when they
    exceed 2 GiB."""
    if column.num_chunks < 2:
        return column
    return pa.chunked_array([pa.concat_arrays(column.cast(pa.large_string()).chunks)])


_TYPES = {  # in the order of the format
    "U64": np.uint64, "I64": np.int64, "F64": np.float64, "F32": np.float32, "U32": np.uint32, "I32": np.int32,
    "F16": np.float16, "U16": np.uint16, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
_MAX_HEADER = 1 << 20  # bytes of the JSON header


@dataclass(frozen=True)
class Blocks:
    """An array that is made when it is written, a block of its first axis at a time."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Iterable[np.ndarray]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.dtype.itemsize * math.prod(self.shape)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray | Blocks]) -> None:
    """Write named arrays as safetensors, sorted by type, then by name. Mapped arrays are not read into memory.

    Raises StorageError.
    """
    names = {np.dtype(kind): name for name, kind in _TYPES.items()}
    order = sorted(arrays, key=lambda name: ([*_TYPES].index(names[arrays[name].dtype]), name))
    header, end = {}, 0
    for name in order:
        array, start = arrays[name], end
        end += array.nbytes
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with storage_errors(path), path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in (arrays[name] for name in order):
            for block in array.blocks if isinstance(array, Blocks) else (array,):
                write_raw(file, block)


def write_raw(file: IO[bytes], array: np.ndarray) -> None:
    """Write the bytes of an array; unlike `tofile`, an error gives the system's reason."""
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def starts_of(counts: np.ndarray) -> np.ndarray:
    """i64[N + 1]: where each of N lists begins, and the end of the last, from the number of their values."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Map safetensors: pages are read when used, and writing to an array changes a private copy.
    Raises IndexCorrupt naming the file."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _MAX_HEADER:
                raise ValueError(f"a header of {size:,} bytes")
            header = msgspec.json.decode(file.read(size), type=dict[str, _Array])
        n_bytes = path.stat().st_size - 8 - size
        # as a plain array: each slice of a memmap costs a microsecond more
        data = np.asarray(np.memmap(path, np.uint8, "c", 8 + size)) if n_bytes > 0 else np.zeros(0, np.uint8)
        return {name: entry.array(data) for name, entry in header.items()}
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise IndexCorrupt("arrays of the index cannot be read", given=f"{path}: {error}") from error


class _Array(msgspec.Struct, forbid_unknown_fields=True):
    """Place of an array in a file."""

    dtype: Literal[tuple(_TYPES)]  # type: ignore[valid-type]
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[int, int]

    def array(self, data: np.ndarray) -> np.ndarray:
        """Array at this place. Raises ValueError if place, type and shape do not agree."""
        start, end = self.data_offsets
        kind = np.dtype(_TYPES[self.dtype])
        if not 0 <= start <= end <= len(data) or end - start != kind.itemsize * math.prod(self.shape):
            raise ValueError(f"an array {self.dtype} {self.shape} at bytes {start} to {end} of {len(data)}")
        return data[start:end].view(kind).reshape(self.shape)


# Level 1 without encodings of differences: as small as level 6 with them, and written in a third of the time.
_FORM = {"compression": "zstd", "compression_level": 1, "version": "2.6", "use_dictionary": False}
_GROUPS = 8  # row groups cast and written at a time: their texts must stay below 2 GiB


class TableWriter:
    """Writer of a table in parts. Memory: a part and a row group. Raises StorageError, as `write_table`."""

    def __init__(self, path: Path, schema: pa.Schema):
        self._path, self._schema = path, schema
        self._waiting: list[pa.RecordBatch] = []
        self._n_waiting, self._wrote = 0, False
        with storage_errors(path):
            self._writer = pq.ParquetWriter(path, schema, **_FORM)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self._flush(self._n_waiting)
            if not self._wrote:  # a table without rows has one group without rows
                self._write(self._schema.empty_table())
        with storage_errors(self._path):
            self._writer.close()

    def add(self, columns: Sequence[Any]) -> None:
        """Add rows: arrays in the order of the schema."""
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
        """Write the first n rows, and keep the rest."""
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
    """Write columns in memory, a part at a time; a table may have more than 2 GiB of text.
    Returns the number of rows."""
    n, step = len(columns[0]), _GROUPS * ROWS_A_GROUP
    with TableWriter(path, schema) as writer:
        for start in range(0, n, step):
            writer.add([column[start : start + step] for column in columns])
    return n
