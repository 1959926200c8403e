"""Rows that could not be used, with file names that do not depend on the location of the sources."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec

from gpu_rag.errors import BadInput, IndexCorrupt
from gpu_rag.index.work import Work
from gpu_rag.types import Reject


class Rejects:
    """File rejects.jsonl of a running stage: one JSON line per reject. n: their number; first: the first one.

    paths: the sources; their parent folders are removed from file names.
    """

    def __init__(self, work: Work, paths: tuple[Path, ...] = ()):
        self.n = 0
        self.first: Reject | None = None
        self._strict, self._paths = work.sources.strict, paths
        self._file = (work.out / "rejects.jsonl").open("w", encoding="utf-8")

    def __enter__(self) -> Rejects:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, reject: Reject) -> None:
        """Write a reject with short names. Raises BadInput if `strict` is set."""
        self.write(checked(reject, self._strict, self._paths))

    def write(self, reject: Reject) -> None:
        """Write a reject unchanged."""
        self._file.write(json.dumps(vars(reject), ensure_ascii=True, sort_keys=True) + "\n")
        self.n, self.first = self.n + 1, self.first or reject


def read_rejects(path: Path, start: int = 0, stop: int | None = None) -> Iterator[Reject]:
    """Rejects of the lines from `start` to `stop` in a file of an index or of a stage, one at a time.

    Raises IndexCorrupt with the name of the file, without its folder, since a server shows it to clients.
    """
    try:
        with path.open("rb") as lines:
            for line in islice(lines, start, stop):
                yield msgspec.json.decode(line, type=Reject)
    except (OSError, msgspec.MsgspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        do = "run gpu-rag index again: it writes the file again"
        raise IndexCorrupt("the rejects of an index cannot be read", given=f"{path.name}: {reason}", do=do) from error


def short_name(file: str, paths: tuple[Path, ...]) -> str:
    """Name of a source file from its corpus argument on, so that an index does not depend on the corpus's location."""
    for path in paths:
        parent = os.path.join(path.parent, "")
        if file.startswith(parent):
            return file[len(parent) :]
    return file


def checked(reject: Reject, strict: bool, paths: tuple[Path, ...]) -> Reject:
    """Reject with short names, also in a reason that tells where an id was used before.

    Raises BadInput if `strict` is set.
    """
    if strict:
        do = "mend the row, or run without --strict"
        raise BadInput(f"bad row: {reject.reason}", given=f"{reject.file}:{reject.line}", do=do)
    reason = reject.reason
    for path in paths:
        reason = reason.replace(f" in {path}", f" in {path.name}")
    return replace(reject, file=short_name(reject.file, paths), reason=reason)
