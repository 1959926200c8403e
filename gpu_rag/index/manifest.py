"""The manifest: what an index holds, how each stage was made, and the checksum of every file.

It holds no time and no host, so that equal inputs, settings and model replies give equal bytes and one digest.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput, IndexCorrupt, IndexMismatch
from gpu_rag.index.folder import canonical_json, sha256_text, write_atomic

FORMAT = 1
_AGAIN = "build it again with gpu-rag index --fresh"


@dataclass(frozen=True)
class StageRecord:
    """One finished stage. `inputs` maps each stage it read to that stage's output hash."""

    name: str
    version: int
    fingerprint: str
    folder: str
    inputs: dict[str, str]
    params: dict[str, Any]
    models: dict[str, dict[str, Any]]
    files: dict[str, dict[str, Any]]
    counts: dict[str, int]

    @property
    def output_hash(self) -> str:
        """Hash of what the stage wrote: what stages after it depend on."""
        return sha256_text(canonical_json(self.files))


@dataclass(frozen=True)
class Manifest:
    """The finished stages of an index, and the settings and sources it was built with."""

    settings: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, StageRecord] = field(default_factory=dict)
    format: int = FORMAT

    def with_stage(self, record: StageRecord) -> Manifest:
        """This manifest with one stage added or replaced."""
        return dataclasses.replace(self, stages={**self.stages, record.name: record})

    def model(self, role: str) -> dict[str, Any] | None:
        """The model that stages used in a role ("embedder", "llm"), or None."""
        for record in self.stages.values():
            if role in record.models:
                return record.models[role]
        return None

    def digest(self) -> str:
        """One hash of the index: tables, vectors, graph and manifest (the checksums are in the manifest)."""
        return sha256_text(canonical_json(dataclasses.asdict(self)))

    def write(self, folder: Path) -> None:
        """Writes manifest.json atomically."""
        write_atomic(folder / "manifest.json", (canonical_json(dataclasses.asdict(self)) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads manifest.json.

        Raises BadInput where there is none, IndexCorrupt where it is damaged, IndexMismatch for another format version.
        """
        path = folder / "manifest.json"
        if not path.is_file():
            raise BadInput(
                "not an index",
                given=folder,
                expected="a folder made by gpu-rag index",
                do="run: gpu-rag index CORPUS --out DIR",
            )
        document = _document(path)
        if type(document.get("format")) is not int:
            raise _damaged(path, "it names no format version")
        if document["format"] != FORMAT:
            what, given = "the index has another format version", f"{document['format']} in {path}"
            raise IndexMismatch(what, given=given, expected=FORMAT, do=_AGAIN)
        for part in ("settings", "sources", "stages"):
            if not isinstance(document.get(part), dict):
                raise _damaged(path, f"{part} is no object")
        stages = {name: _record(path, name, record) for name, record in document["stages"].items()}
        return cls(settings=document["settings"], sources=document["sources"], stages=stages)


def _damaged(path: Path, reason: object) -> IndexCorrupt:
    return IndexCorrupt("the manifest of the index is damaged", given=f"{path}: {reason}", do=_AGAIN)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if not isinstance(document, dict):
        raise _damaged(path, "it is no object")
    return document


def _record(path: Path, name: str, document: Any) -> StageRecord:
    """One stage, with everything that is read of it later of the right type."""
    if not isinstance(document, dict) or document.keys() != _TYPES.keys():
        raise _damaged(path, f"stage {name} has other keys than {', '.join(_TYPES)}")
    for key, type_ in _TYPES.items():
        if not isinstance(document[key], type_):
            raise _damaged(path, f"{key} of stage {name} is no {_WORDS[type_]}")
    sound = {
        "name": document["name"] == name,
        "folder": document["folder"].startswith(f"stages/{name}-") and document["folder"].count("/") == 1,
        "inputs": all(isinstance(value, str) for value in document["inputs"].values()),
        "models": all(_is_model(model) for model in document["models"].values()),
        "files": all(_is_file(file, entry) for file, entry in document["files"].items()),
        "counts": all(isinstance(value, int) for value in document["counts"].values()),
    }
    for key, is_sound in sound.items():
        if not is_sound:
            raise _damaged(path, f"{key} of stage {name} is not what a build writes")
    return StageRecord(**document)


def _is_model(model: Any) -> bool:
    return isinstance(model, dict) and all(isinstance(model.get(key), str) for key in ("name", "content_hash"))


def _is_file(name: str, entry: Any) -> bool:
    inside = not name.startswith("/") and ".." not in name.split("/")
    return (
        inside
        and isinstance(entry, dict)
        and isinstance(entry.get("sha256"), str)
        and isinstance(entry.get("bytes"), int)
    )


_WORDS = {str: "text", int: "number", dict: "object"}
_TYPES: dict[str, type] = {
    "name": str, "version": int, "fingerprint": str, "folder": str, "inputs": dict, "params": dict, "models": dict,
    "files": dict, "counts": dict,
}  # fmt: skip
