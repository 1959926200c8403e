"""The corpus of a build: paths, or texts and tables in memory, which are written to a file beside the index."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from glob import escape
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from gpu_rag.api.arguments import checked_path
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.folder import replacing, storage_errors

EXPECTED = "a path, a list of Path, a list of texts (str or dict with text), or a table or dataset with a column text"


def corpus_files(corpus: Any, out: Path, texts: Path | None = None) -> tuple[Path, ...]:
    """The files of a corpus. Texts are written to the file `texts`, by default OUT.texts.jsonl. Raises UsageError, and
    BadInput for a missing file."""
    texts = texts or texts_file(out)
    if is_table(corpus):
        return (write_texts(_table_rows(corpus), texts),)
    if isinstance(corpus, (str, Path)):
        paths = (checked_path("corpus", corpus),)
    elif not isinstance(corpus, Sequence) or isinstance(corpus, bytes):
        raise UsageError("corpus cannot be indexed", given=repr(corpus)[:80], expected=EXPECTED)
    elif all(isinstance(item, Path) for item in corpus):
        paths = tuple(corpus)
    elif all(isinstance(item, (str, Mapping)) for item in corpus):
        return (write_texts([_row(item, number) for number, item in enumerate(corpus, 1)], texts),)
    else:
        raise UsageError("corpus mixes kinds", given=repr(corpus)[:80], expected=EXPECTED)
    for path in paths:
        if not path.exists():
            raise BadInput("no such corpus", given=path, expected="a file or folder that exists")
    return paths


def is_table(corpus: Any) -> bool:
    """Whether a corpus is a DataFrame, an Arrow table or a dataset of Hugging Face."""
    return hasattr(corpus, "column_names") or (hasattr(corpus, "to_dict") and hasattr(corpus, "columns"))


def columns_of(table: Any) -> list[str] | None:
    """The names of the columns of a table; None for a stream that does not know them."""
    names = table.column_names if hasattr(table, "column_names") else table.columns
    if isinstance(names, Mapping):
        raise UsageError("several splits are not a corpus", given=", ".join(map(str, names))[:80], expected="one")
    return None if names is None else list(map(str, names))


def _row(item: str | Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The row of a text. Raises UsageError for a mapping without text, and for a str that names an existing file."""
    if isinstance(item, str):
        if len(item) < 256 and "\n" not in item and os.path.exists(item):
            raise UsageError("a list of str is a list of texts", given=item, do="pass files as pathlib.Path")
        return {"id": str(number), "text": item}
    if not isinstance(item.get("text"), str):
        raise UsageError(f"text {number} has no text", given=", ".join(map(str, item))[:80], expected="a key text")
    return {"id": str(number), **item}


def _table_rows(table: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a table one by one, without empty cells; an id counts from 1 if there is none. A row without text
    becomes a reject. Raises UsageError for a table without a column text."""
    columns, rows = columns_of(table), cells_of(table)
    if columns is None:
        first = next(rows, {})
        columns, rows = list(first), chain([first], rows) if first else rows
    if "text" not in columns:
        raise UsageError(
            "the table has no column text", given=", ".join(columns)[:80], expected="text, maybe id and title"
        )
    for number, row in enumerate(rows, 1):
        kept = {name: value for name, value in row.items() if value is not None and value == value}  # nor NaN
        yield {"id": str(number), **kept}


def cells_of(table: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a table with all cells, in Python's types."""
    if hasattr(table, "to_batches"):  # Arrow
        return chain.from_iterable(batch.to_pylist() for batch in table.to_batches(1000))
    if hasattr(table, "column_names"):
        return iter(table.with_format(None))
    return iter(json.loads(table.to_json(orient="records", date_format="iso")))


def texts_file(out: Path, number: int = 1) -> Path:
    """The first of the files that may hold texts in memory of an index, or a further one."""
    return out.with_name(f"{out.name}.texts{f'-{number}' if number > 1 else ''}.jsonl")


def own_texts(out: Path, corpus: Sequence[Path]) -> Path:
    """The last `texts_file` that is a source of an index; a new one if none is. Another index of this name may have
    left one, whose texts must not come back. corpus: sources of the index."""
    names = re.compile(rf"{re.escape(out.name)}\.texts(?:-([2-9]|[1-9]\d+))?\.jsonl")
    found = (names.fullmatch(path.name) for path in out.parent.glob(f"{escape(out.name)}.texts*.jsonl"))
    for number in sorted((int(match[1] or 1) for match in found if match), reverse=True):
        file = texts_file(out, number)
        if sources := [path for path in corpus if file.resolve().is_relative_to(path.resolve())]:
            return next(filter(Path.is_file, sources), file)
    return next(file for file in (texts_file(out, number) for number in count(1)) if not file.exists())


def write_texts(rows: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """Write a `texts_file` and return its path. Raises UsageError for a value that JSON cannot hold, StorageError."""
    rows = iter(rows)
    first = list(islice(rows, 1))  # a table that is refused makes no folder
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            for number, row in enumerate(chain(first, rows), 1):
                file.write(_line(row, number))
    return path


def _line(row: Mapping[str, Any], number: int) -> bytes:
    try:
        return json.dumps(row, allow_nan=False, default=_iso).encode() + b"\n"
    except (TypeError, ValueError) as error:
        given, expected = f"text {number}: {error}", "texts, numbers, dates, true or false"
        raise UsageError("a text cannot be kept as JSON", given=given, expected=expected) from error


def _iso(value: object) -> str:
    """A date as a text. Raises TypeError for other types."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} is not")
