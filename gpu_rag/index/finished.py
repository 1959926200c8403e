"""Finished stages: their fingerprints, whether all files are there, and which must be made again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index.folder import canonical_json, checksums, sha256_text
from gpu_rag.index.manifest import Manifest, StageRecord
from gpu_rag.index.stage import Stage


def fingerprint_of(
    stage: Stage, inputs: Mapping[str, str], params: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> str:
    """The hash of everything that a stage's output depends on: the stage is up to date while it stays the same."""
    identity = {
        "name": stage.name,
        "version": stage.version,
        "inputs": inputs,
        "params": params,
        "models": {role: model["content_hash"] for role, model in models.items()},
    }
    return sha256_text(canonical_json(identity))


def is_complete(folder: Path, record: StageRecord) -> bool:
    """Whether every file of a stage is there with its size (contents are checked by `verify`)."""
    base = folder / record.folder
    sizes = {name: entry["bytes"] for name, entry in record.files.items()}
    return all((base / name).is_file() and (base / name).stat().st_size == size for name, size in sizes.items())


def is_up_to_date(out: Path, stage: Stage, record: StageRecord, fingerprint: str) -> bool:
    """Whether a finished stage need not run again: made of the same, nothing to try again, all files there."""
    to_retry = any(record.counts.get(name) for name in stage.retry)
    return record.fingerprint == fingerprint and not to_retry and is_complete(out, record)


def without_stale(manifest: Manifest) -> Manifest:
    """The manifest without the stages whose inputs are gone or have changed."""
    stages = dict(manifest.stages)
    changed = True
    while changed:
        outputs = {name: record.output_hash for name, record in stages.items()}
        fresh = {n: r for n, r in stages.items() if all(outputs.get(need) == h for need, h in r.inputs.items())}
        changed = len(fresh) != len(stages)
        stages = fresh
    return Manifest(manifest.settings, manifest.sources, stages)


def last_state(out: Path, stage: Stage, old: StageRecord | None) -> Path | None:
    """The folder of the stage's last state if its version is this one and every file still has its checksum."""
    if old is None or old.version != stage.version or not is_complete(out, old):
        return None
    return out / old.folder if checksums(out / old.folder) == old.files else None


def stage_folder(out: Path, manifest: Manifest, name: str) -> Path:
    """The folder of a finished stage. Raises IndexCorrupt when files of it are missing."""
    record = manifest.stages[name]
    if not is_complete(out, record):
        raise IndexCorrupt(
            "files of the index are missing or cut",
            given=f"{out / record.folder}",
            do="run gpu-rag verify, then gpu-rag index again",
        )
    return out / record.folder
