"""Plans on disk: plan.json in an index folder, ANSWERS.plan.json beside answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index.folder import canonical_json, read_json, sha256_text, write_atomic

FORMAT = 1


def identity_of(version: int, params: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]) -> str:
    """What a stage is made of, beside the stages before it: a plan is compared only with a build of the same."""
    made_of = {"version": version, "params": params, "models": {r: m["content_hash"] for r, m in models.items()}}
    return sha256_text(canonical_json(made_of))[:16]


def write_plan(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a plan atomically."""
    write_atomic(path, (json.dumps({"format": FORMAT, **document}, indent=1, allow_nan=False) + "\n").encode())


def read_plan(path: Path, keys: Iterable[str]) -> dict[str, Any] | None:
    """The plan at `path`, None where there is none. Raises BadInput for a file that is no plan with these keys."""
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT or not found.keys() >= set(keys):
        raise BadInput(
            "not a plan of this version", given=path, expected="made by --plan", do="remove it, or plan again"
        )
    return found
