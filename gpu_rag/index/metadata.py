"""Metadata of documents: a table with a row per document and a column per name; only if a corpus has some."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index import tables
from gpu_rag.types import Scalar

FILE = "metadata.parquet"
LANGUAGE = "detected_language"  # column with the language of each document, if a corpus has several
MAX_COLUMNS = 256  # the names that most documents have; ties by the alphabet
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
TYPE_NAMES = dict(zip(_TYPES.values(), ("boolean", "number", "number", "text")))


def to_text(metadata: dict[str, Scalar]) -> str:
    """Metadata as JSON text; "" for none."""
    return json.dumps(metadata, ensure_ascii=False) if metadata else ""


def in_words(metadata: Mapping[str, Scalar]) -> str:
    """Metadata for a person: 'lang "de"; year 2020'."""
    return "; ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in metadata.items())


def write_metadata(path: Path, texts: Sequence[str]) -> bool:
    """Write the table of documents in order, each as `to_text` gave it. Returns False, and writes nothing, if none has
    metadata.

    A column has one type: boolean, integer, number or text. A column of several types is text, each value as JSON.
    """
    rows: list[dict[str, Scalar]] = [json.loads(text) if text else {} for text in texts]
    counts = Counter(name for row in rows for name in row)
    names = sorted(sorted(counts, key=lambda name: (-counts[name], name))[:MAX_COLUMNS])
    if not names:
        return False
    columns = [_column([row.get(name) for row in rows]) for name in names]
    schema = pa.schema([pa.field(name, column.type) for name, column in zip(names, columns)])
    tables.write_columns(path, schema, columns)
    return True


def _column(values: Sequence[Scalar | None]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) > 1:
        words = (value if value is None or isinstance(value, str) else json.dumps(value) for value in values)
        return pa.array(list(words), pa.string())
    return pa.array(values, _TYPES[kinds.pop()])


def read_metadata(path: Path, n_documents: int) -> pa.Table:
    """Table that `write_metadata` wrote. Raises IndexCorrupt if it is not one, or has not n_documents rows."""
    try:
        table = tables.joined_chunks(pq.read_table(path))
    except (OSError, pa.ArrowException) as error:
        raise IndexCorrupt("a table of the index cannot be read", given=f"{path}: {error}") from error
    names = table.column_names
    sound = names == sorted(set(names)) and all(kind in TYPE_NAMES for kind in table.schema.types)
    if not sound or table.num_rows != n_documents or not names:
        given, expected = f"{path}: {table.num_rows} rows, {names[:20]}", f"{n_documents} rows of scalars"
        raise IndexCorrupt("the metadata of the index is not what a build writes", given=given, expected=expected)
    return table


def rows_of(table: pa.Table | None, documents: Iterable[int]) -> list[dict[str, Scalar]]:
    """Metadata of documents, by row; {} for each if the index has none."""
    rows = list(documents)
    if table is None:
        return [{} for _ in rows]
    columns = list(zip(table.column_names, table.columns))
    read = ([(name, column[row].as_py()) for name, column in columns] for row in rows)
    return [{name: value for name, value in pairs if value is not None} for pairs in read]
