"""What `gpu-rag tune` found for an index: a file in its folder, outside its digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index.folder import TUNED, WriteLock, read_json, write_atomic

__all__ = ["TUNED", "keep", "tuned"]


def tuned(folder: Path) -> dict[str, Any]:
    """{"fused": {lists: weights}, "auto": {"method": name}, "hybgrag": {examples: rows}}, what there is of it.
    Raises BadInput."""
    path, do = folder / TUNED, "remove it, and run gpu-rag tune again"
    if not path.is_file():
        return {}
    found = read_json(path, do)
    if not isinstance(found, dict) or not all(
        isinstance(found.get(part, {}), dict) for part in ("fused", "auto", "hybgrag")
    ):
        raise BadInput("what tune wrote cannot be used", given=path, do=do)
    return found


def keep(folder: Path, **parts: Any) -> Path:
    """Puts parts into the file; those of the same name go, but weights for other lists. Raises IndexLocked."""
    with WriteLock(folder):
        before = tuned(folder)
        fused = {**before.get("fused", {}), **parts.get("fused", {})}
        document = {**before, **parts, **({"fused": fused} if fused else {})}
        write_atomic(folder / TUNED, (json.dumps(document, indent=1) + "\n").encode())
    return folder / TUNED
