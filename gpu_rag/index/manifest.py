"""The manifest: what an index holds, how each stage was made, and the checksum of every file.

It holds no time and no host, so that equal inputs, settings and model replies give equal bytes and one digest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpu_rag.errors import BadInput, IndexCorrupt, IndexMismatch
from gpu_rag.index.folder import canonical_json, refuse_links, sha256_text, write_atomic

FORMAT = 1
SECTIONS = ("index", "alignment", "hops")  # stages depend on these; answers depend on none of them
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # of a model, packaged or fetched
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

    def with_inputs(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these stages that there are, with all that they were made of."""
        found: set[str] = set()
        stack = list(names)
        while stack:
            if (name := stack.pop()) in self.stages and name not in found:
                found.add(name)
                stack.extend(self.stages[name].inputs)
        return frozenset(found)

    def model(self, role: str) -> dict[str, Any] | None:
        """The model that stages used in a role ("embedder", "llm"), or None."""
        for record in self.stages.values():
            if role in record.models:
                return record.models[role]
        return None

    def defaults(self) -> dict[str, Any]:
        """The settings that later commands take from the index: the embedder's name and SECTIONS, whatever else it has.

        It may be somebody else's, so it names no server, file or program. A folder of an embedder is named by the user.
        """
        found = {name: self.settings[name] for name in SECTIONS if name in self.settings}
        models = self.settings.get("models")
        name = models.get("embedder") if isinstance(models, dict) else None
        if isinstance(name, str) and _NAME.fullmatch(name) and not Path(name).exists():
            found["models"] = {"embedder": name}
        return found

    def strange_settings(self) -> list[str]:
        """The names of settings that no build writes, so that nothing reads them."""
        models = self.settings.get("models")
        found = [f"models.{name}" for name in models if name != "embedder"] if isinstance(models, dict) else []
        return found + [name for name in self.settings if name not in ("models", *SECTIONS)]

    def without_stale(self) -> Manifest:
        """The manifest without the stages whose inputs are gone or have changed."""
        outputs = {name: record.output_hash for name, record in self.stages.items()}
        fresh = {n: r for n, r in self.stages.items() if all(outputs.get(need) == h for need, h in r.inputs.items())}
        left = dataclasses.replace(self, stages=fresh)
        return self if len(fresh) == len(outputs) else left.without_stale()

    def digest(self) -> str:
        """One hash of the index: tables, vectors, graph and manifest (the checksums are in the manifest)."""
        return sha256_text(canonical_json(dataclasses.asdict(self)))

    def write(self, folder: Path) -> None:
        """Writes manifest.json atomically."""
        write_atomic(folder / "manifest.json", (canonical_json(dataclasses.asdict(self)) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads manifest.json.

        Raises BadInput where there is none, IndexCorrupt where it is damaged or a path of the index is a link,
        IndexMismatch for another format version.
        """
        refuse_links(folder)
        path = folder / "manifest.json"
        if not path.is_file():
            raise BadInput(
                "not an index",
                given=folder,
                expected="a folder made by gpu-rag index",
                do="run: gpu-rag index CORPUS --out DIR",
            )
        try:
            document = msgspec.json.decode(path.read_bytes())
            given = document.get("format") if isinstance(document, dict) else None
            if type(given) is int and given != FORMAT:
                what = "the index has another format version"
                raise IndexMismatch(what, given=f"{given} in {path}", expected=FORMAT, do=_AGAIN)
            manifest = msgspec.convert(document, cls)
            if dataclasses.asdict(manifest) != document:
                raise ValueError("it has other keys than a build writes")
            for name, record in manifest.stages.items():
                _check_record(name, record)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            what = "the manifest of the index is damaged"
            raise IndexCorrupt(what, given=f"{path}: {error}", do=_AGAIN) from error
        return manifest


def _check_record(name: str, record: StageRecord) -> None:
    """Raises ValueError for a record of the right types that no build writes."""
    sound = {
        "name": record.name == name,
        "folder": record.folder.startswith(f"stages/{name}-") and record.folder.count("/") == 1,
        "models": all(_has(model, name=str, content_hash=str) for model in record.models.values()),
        "files": all(_has(entry, sha256=str, bytes=int) for entry in record.files.values())
        and not any(file.startswith("/") or ".." in file.split("/") for file in record.files),
    }
    for key, is_sound in sound.items():
        if not is_sound:
            raise ValueError(f"{key} of stage {name} is not what a build writes")


def _has(entry: dict[str, Any], **types: type) -> bool:
    return all(isinstance(entry.get(key), kind) for key, kind in types.items())


def is_complete(folder: Path, record: StageRecord) -> bool:
    """Whether every file of a stage is there with its size (contents are checked by `verify`)."""
    base = folder / record.folder
    sizes = {name: entry["bytes"] for name, entry in record.files.items()}
    return all((base / name).is_file() and (base / name).stat().st_size == size for name, size in sizes.items())
