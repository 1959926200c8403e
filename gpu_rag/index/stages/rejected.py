"""Rows that could not be used, as an index keeps them: with names that do not depend on where its sources lie."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from gpu_rag.errors import BadInput
from gpu_rag.types import Reject


def reject_line(reject: Reject) -> str:
    """A reject as one JSON line."""
    return json.dumps(vars(reject), ensure_ascii=True, sort_keys=True) + "\n"


def stop_if_strict(strict: bool, reject: Reject) -> None:
    """Raises BadInput for a reject when bad rows are to stop the run."""
    if strict:
        raise BadInput(
            f"bad row: {reject.reason}",
            given=f"{reject.file}:{reject.line}",
            do="mend the row, or run without --strict",
        )


def short_name(file: str, paths: tuple[Path, ...]) -> str:
    """A source file's name from its corpus argument on, so that an index does not depend on where the corpus lies."""
    for path in paths:
        parent = os.path.join(path.parent, "")
        if file.startswith(parent):
            return file[len(parent) :]
    return file


def short_reject(reject: Reject, paths: tuple[Path, ...]) -> Reject:
    """A reject with short names, also in a reason that says where an id was used before."""
    reason = reject.reason
    for path in paths:
        reason = reason.replace(f" in {path}", f" in {path.name}")
    return replace(reject, file=short_name(reject.file, paths), reason=reason)
