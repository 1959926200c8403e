"""The formats of files: each kind of source has a table of them, one row a format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from gpu_rag.errors import BadInput

R = TypeVar("R")
LINES_SUFFIXES = (".jsonl", ".jsonl.gz")
ARRAY_SUFFIXES = (".json", ".json.gz")
TSV_SUFFIXES = (".tsv", ".tsv.gz")
NT_SUFFIXES = (".nt", ".nt.gz")
TABLE_SUFFIXES = (".parquet",)


@dataclass(frozen=True)
class Format(Generic[R]):
    """suffixes: of the names of its files, lower case; read: its reader."""

    suffixes: tuple[str, ...]
    read: R


def has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether the name of `path` ends in one of `suffixes`, in any case."""
    return path.name.lower().endswith(suffixes)


def reader_of(path: Path, formats: Sequence[Format[R]], what: str, accepted: str) -> R:
    """The reader of a file, by its name. Raises BadInput for a file that is missing or of another type."""
    if not path.exists():
        raise BadInput(f"{what} does not exist", given=path, expected=accepted)
    for form in formats:
        if has_suffix(path, form.suffixes):
            return form.read
    raise BadInput(f"the type of {what} is not known", given=path, expected=accepted)
