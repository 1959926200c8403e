"""File formats: each kind of source has a table from name endings to readers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from gpu_rag.errors import BadInput

R = TypeVar("R")
LINES_SUFFIXES: tuple[str, ...] = (".jsonl", ".jsonl.gz")
ARRAY_SUFFIXES: tuple[str, ...] = (".json", ".json.gz")
CSV_SUFFIXES: tuple[str, ...] = (".csv", ".csv.gz")
TSV_SUFFIXES: tuple[str, ...] = (".tsv", ".tsv.gz")
TABLE_SUFFIXES: tuple[str, ...] = (".parquet",)


def has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether the name of `path` ends in one of `suffixes`, in any case."""
    return path.name.lower().endswith(suffixes)


def reader_of(path: Path, formats: Mapping[tuple[str, ...], R], what: str, accepted: str) -> R:
    """Reader of a file, by its name. Raises BadInput for a missing file or another type."""
    if not path.exists():
        raise BadInput(f"{what} does not exist", given=path, expected=accepted)
    for suffixes, read in formats.items():
        if has_suffix(path, suffixes):
            return read
    raise BadInput(f"the type of {what} is not known", given=path, expected=accepted)


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a path in a folder is a link to something outside it, which would read files that nobody named."""
    return path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def refuse_leading_out(paths: Iterable[Path], folder: Path) -> None:
    """Raise BadInput if one of the files to read in a folder is such a link."""
    for path in paths:
        if leads_out(path, folder):
            do = "copy the file into the folder, or give the file itself"
            raise BadInput("a link that leads out of the folder is not followed", given=path, do=do)
