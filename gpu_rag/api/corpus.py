"""The corpus of a build: paths, or texts and tables in memory, which are written to a file beside the index."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_rag.api.arguments import checked_path
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.folder import storage_errors, write_atomic

EXPECTED = "a path, a list of Path, a list of texts (str or dict with text), or a DataFrame with a column text"


def corpus_files(corpus: Any, out: Path) -> tuple[Path, ...]:
    """The files of a corpus. Texts are written to OUT.texts.jsonl. Raises UsageError, and BadInput for a missing
    file."""
    if hasattr(corpus, "to_dict") and hasattr(corpus, "columns"):
        return (written(_table_rows(corpus), out),)
    if isinstance(corpus, (str, Path)):
        paths = (checked_path("corpus", corpus),)
    elif not isinstance(corpus, Sequence) or isinstance(corpus, bytes):
        raise UsageError("corpus cannot be indexed", given=repr(corpus)[:80], expected=EXPECTED)
    elif all(isinstance(item, Path) for item in corpus):
        paths = tuple(corpus)
    elif all(isinstance(item, (str, Mapping)) for item in corpus):
        return (written([_row(item, number) for number, item in enumerate(corpus, 1)], out),)
    else:
        raise UsageError("corpus mixes kinds", given=repr(corpus)[:80], expected=EXPECTED)
    for path in paths:
        if not path.exists():
            raise BadInput("no such corpus", given=path, expected="a file or folder that exists")
    return paths


def _row(item: str | Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The row of a text. Raises UsageError for a mapping without text, and for a str that names an existing file."""
    if isinstance(item, str):
        if len(item) < 256 and "\n" not in item and os.path.exists(item):
            raise UsageError("a list of str is a list of texts", given=item, do="pass files as pathlib.Path")
        return {"id": str(number), "text": item}
    if not isinstance(item.get("text"), str):
        raise UsageError(f"text {number} has no text", given=", ".join(map(str, item))[:80], expected="a key text")
    return {"id": str(number), **item}


def _table_rows(table: Any) -> list[Mapping[str, Any]]:
    """The rows of a DataFrame, without its empty cells."""
    columns = list(map(str, table.columns))
    if "text" not in columns:
        raise UsageError(
            "the table has no column text", given=", ".join(columns)[:80], expected="text, maybe id and title"
        )
    rows = json.loads(table.to_json(orient="records", date_format="iso"))
    cells = ({name: value for name, value in row.items() if value is not None} for row in rows)
    return [{"id": str(number), **row} for number, row in enumerate(cells, 1)]  # a row without text becomes a reject


def texts_file(out: Path) -> Path:
    """The file of texts in memory that an index is built from."""
    return out.with_name(out.name + ".texts.jsonl")


def written(rows: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """Write the rows as a JSON Lines file."""
    path = texts_file(out)
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            lines.append(json.dumps(row, allow_nan=False).encode() + b"\n")
        except (TypeError, ValueError) as error:
            given, expected = f"text {number}: {error}", "texts, numbers, true or false"
            raise UsageError("a text cannot be kept as JSON", given=given, expected=expected) from error
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, b"".join(lines))
    return path
