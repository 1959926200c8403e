"""Broken files for readers: how they are made and read, and what holds of every table."""

from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.errors import GpuRagError
from gpu_rag.types import Reject


def put(path, raw):
    """Write a file over the one before: unlike an empty new one, that waits for no disk."""
    with open(path, "r+b" if path.exists() else "xb") as stream:
        stream.write(raw)
        stream.truncate()


def read(reader, *arguments):
    """All that a reader gives; only our own errors are allowed."""
    try:
        return list(reader(*arguments))
    except GpuRagError as error:
        return [Reject(str(arguments[0]), 0, str(error))]


def lines_from(mutator, rows):
    """JSON Lines of which some rows have other values, and some files other bytes."""
    kept = [mutator.dumped(mutator.value(row) if mutator.random.random() < 0.6 else row) for row in rows]
    raw = b"\n".join(kept) + b"\n"
    return mutator.raw(raw) if mutator.random.random() < 0.5 else raw


def marked_lines(raw):
    """The lines that hold something; None where the file cannot be taken apart into lines."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b")):
        return None
    return {number for number, line in enumerate(raw.split(b"\n"), start=1) if line and not line.isspace()}


def check_table(found, raw):
    """Every row of a table that can be opened gives something, or one Reject says where reading stopped."""
    try:
        n = pq.ParquetFile(BytesIO(raw)).metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        n = 1
    whole = [item.line for item in found] == list(range(1, n + 1))
    assert whole or (isinstance(found[-1], Reject) and "not read" in found[-1].reason), (n, found)
