"""Table engine of the stages: DuckDB over streams of Arrow batches, within a memory limit.

It spills to the work space of the stage. Every result that is read has a total order, so that neither the number of
threads nor the limit changes what a stage writes. Run one join or sort per statement: the operators of a statement
share the limit.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from gpu_rag.errors import GpuRagError, StorageError
from gpu_rag.index import tables
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.work import Work
from gpu_rag.machine import free_host_bytes

SHARE = 0.25  # share of free memory, if no limit is set
LEAST = 256 << 20  # bytes that the engine needs for a join of any size
ROWS = 8 * tables.ROWS_A_GROUP  # rows per batch read


class Database:
    """Tables that live as long as one stage. Made by `database`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection):
        self._connection = connection

    def create(self, table: str, schema: pa.Schema) -> None:
        """Make an empty table with the columns of a schema."""
        self._connection.register("given", schema.empty_table())
        self.run(f"CREATE TABLE {table} AS SELECT * FROM given")
        self._connection.unregister("given")

    def add(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows to a table."""
        rows = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        self._connection.register("given", rows)
        self._connection.execute(f"INSERT INTO {table} SELECT * FROM given")
        self._connection.unregister("given")

    def run(self, *statements: str) -> None:
        """Run statements that return no rows."""
        for statement in statements:
            self._connection.execute(statement).complete()

    def count(self, table: str) -> int:
        """Number of rows of a table, or of "TABLE WHERE ..."."""
        return int(self._connection.sql(f"SELECT count(*) FROM {table}").fetchall()[0][0])

    def view(self, name: str, file: Path) -> None:
        """Name a Parquet file as a view, with the column file_row_number: statements read only the columns they use."""
        quoted = glob.escape(str(file)).replace("'", "''")
        read = f"read_parquet('{quoted}', hive_partitioning = false, file_row_number = true)"
        self._connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {read}")

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Rows of a query as a stream of batches of at most ROWS. Other statements may run meanwhile."""
        with closing(self._connection.cursor()) as cursor:
            yield from cursor.sql(query).to_arrow_reader(ROWS)

    def column(self, query: str) -> np.ndarray:
        """The single column of a query of numbers."""
        parts = [batch.column(0).to_numpy() for batch in self.batches(query)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)


@contextmanager
def database(work: Work) -> Iterator[Database]:
    """An empty database for a stage, limited by `index.memory` and `models.threads`.

    Raises GpuRagError if the limit is too low for a statement, StorageError if the disk is full or the name of the
    folder is not UTF-8.
    """
    spill = work.partial / "spill"
    if not _is_utf8(spill):
        raise StorageError("the name of the folder is not UTF-8", given=ascii(str(spill)), do="choose another --out")
    limit, threads = memory_limit(work.settings.index.memory), work.settings.models.model_threads
    config: dict[str, Any] = {
        "memory_limit": f"{limit >> 20}MiB", "threads": threads, "temp_directory": str(spill),
        "preserve_insertion_order": False, "autoinstall_known_extensions": False, "autoload_known_extensions": False,
    }  # fmt: skip
    with storage_errors(spill):
        spill.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(config=config)
    try:
        yield Database(connection)
    except duckdb.OutOfMemoryException as error:
        do = "raise index.memory (GiB), or free memory and run again: the build resumes"
        raise GpuRagError("the tables of a stage exceed the memory limit", given=f"{error}", do=do) from error
    except duckdb.IOException as error:
        do = "free space or choose another --out, then run again: the build resumes"
        raise StorageError("the work space of a stage cannot be written", given=f"{spill}: {error}", do=do) from error
    finally:
        connection.close()
        shutil.rmtree(spill, ignore_errors=True)


def _is_utf8(path: Path) -> bool:
    """Whether a path is UTF-8, as DuckDB needs it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def memory_limit(gib: float) -> int:
    """Memory of the engine in bytes: `gib` GiB, or SHARE of the free memory if that is 0; at least LEAST."""
    return max(round(gib * 2**30) or round(SHARE * free_host_bytes()), LEAST)
