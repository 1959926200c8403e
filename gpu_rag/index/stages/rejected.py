"""Rows that could not be used, under names that do not depend on where the sources lie."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from gpu_rag.errors import BadInput
from gpu_rag.index.work import Work
from gpu_rag.types import Reject


class Rejects:
    """rejects.jsonl of a running stage: one JSON line a reject. n: their number; first: the first one.

    paths: the sources, whose parents are cut off the names of files.
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
        """Writes a reject under short names. Raises BadInput where bad rows are to stop the run."""
        self.write(checked(reject, self._strict, self._paths))

    def write(self, reject: Reject) -> None:
        """Writes a reject as it is."""
        self._file.write(json.dumps(vars(reject), ensure_ascii=True, sort_keys=True) + "\n")
        self.n, self.first = self.n + 1, self.first or reject


def short_name(file: str, paths: tuple[Path, ...]) -> str:
    """A source file's name from its corpus argument on, so that an index does not depend on where the corpus lies."""
    for path in paths:
        parent = os.path.join(path.parent, "")
        if file.startswith(parent):
            return file[len(parent) :]
    return file


def checked(reject: Reject, strict: bool, paths: tuple[Path, ...]) -> Reject:
    """A reject with short names, also in a reason that says where an id was used before.

    Raises BadInput where bad rows are to stop the run.
    """
    if strict:
        do = "mend the row, or run without --strict"
        raise BadInput(f"bad row: {reject.reason}", given=f"{reject.file}:{reject.line}", do=do)
    reason = reject.reason
    for path in paths:
        reason = reason.replace(f" in {path}", f" in {path.name}")
    return replace(reject, file=short_name(reject.file, paths), reason=reason)
