"""The manifest: what an index holds, how each stage was made, and the checksum of every file.

It holds no time and no host, so that equal inputs, settings and model replies give equal bytes and one digest.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput, IndexMismatch
from gpu_rag.index.folder import canonical_json, read_json, sha256_text, write_atomic

FORMAT = 1


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
        """Reads manifest.json. Raises BadInput when it is no index, IndexMismatch for another format."""
        path = folder / "manifest.json"
        if not path.is_file():
            raise BadInput(
                "not an index",
                given=folder,
                expected="a folder made by gpu-rag index",
                do="run: gpu-rag index CORPUS --out DIR",
            )
        raw = read_json(path, do="build it again with gpu-rag index --fresh")
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            given = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
            raise IndexMismatch(
                "the index has another format version",
                given=given,
                expected=FORMAT,
                do="build it again with gpu-rag index --fresh",
            )
        try:
            stages = {name: StageRecord(**record) for name, record in raw["stages"].items()}
            return cls(settings=raw["settings"], sources=raw["sources"], stages=stages)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                "the manifest is damaged", given=f"{path}: {error}", do="build it again with --fresh"
            ) from error
