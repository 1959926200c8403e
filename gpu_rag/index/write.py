"""Tables written in parts, with the bytes that `tables.write_table` writes of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.index.folder import storage_errors
from gpu_rag.index.tables import ROWS_A_GROUP

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
