"""File of the results of `gpu-rag tune` for an index: in its folder, outside its digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index.folder import TUNED, read_json, write_atomic, writing

__all__ = ["TUNED", "keep", "tuned"]


def tuned(folder: Path) -> dict[str, dict[str, Any]]:
    """{part: results}, one part for each method that learns; {} without the file. Raises BadInput."""
    path, do = folder / TUNED, "remove it, and run gpu-rag tune again"
    if not path.is_file():
        return {}
    document = read_json(path, do)
    if not isinstance(document, dict) or not all(isinstance(part, dict) for part in document.values()):
        raise BadInput("the results of tune cannot be used", given=path, do=do)
    return document


def keep(folder: Path, **parts: Mapping[str, Any]) -> Path:
    """Write parts into the file; they replace parts of the same name. Raises IndexLocked."""
    with writing(folder):
        document = {**tuned(folder), **parts}
        write_atomic(folder / TUNED, (json.dumps(document, indent=1) + "\n").encode())
    return folder / TUNED
