"""Manifest: the stages of an index, how each was made, and the checksum of every file.

It holds no time and no host, so that equal inputs, settings and model replies give equal bytes and one digest. Outside
the digest are block checksums, compared when a stage is read, and the manifest's own checksum. A copy lies beside it.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpu_rag.errors import BadInput, IndexCorrupt, IndexMismatch
from gpu_rag.index.folder import (
    BLOCK,
    block_sums,
    canonical_json,
    checksums,
    refuse_links,
    sha256_text,
    write_atomic,
    writing,
)
from gpu_rag.settings import CORE

FORMAT = 1
_NAME = re.compile(r"\w[\w.-]{,95}(/\w[\w.-]{,95})?", re.ASCII)  # name of a model, packaged or fetched
FILE, COPY = "manifest.json", "manifest.copy.json"
_AGAIN = "build it again with gpu-rag index --fresh, which keeps the replies of models"
_FROM_COPY = "run gpu-rag index again: it goes on from the copy beside it"
_MEND = "run gpu-rag index again: it makes the stage again, from replies that are kept"
_log = logging.getLogger(__name__)


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
        """Hash of the stage's output, on which later stages depend."""
        return sha256_text(canonical_json(self.files))


@dataclass(frozen=True)
class Manifest:
    """Finished stages of an index, and the settings and sources it was built with.

    blocks: {stage: {file: checksums of its blocks}}, see `block_sums`; none for stages that an earlier version built.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, StageRecord] = field(default_factory=dict)
    format: int = FORMAT
    blocks: dict[str, dict[str, str]] = field(default_factory=dict)

    def with_stage(self, record: StageRecord, blocks: dict[str, str] | None = None) -> Manifest:
        """This manifest with one stage added or replaced. blocks: block checksums of its files."""
        others = {name: sums for name, sums in self.blocks.items() if name != record.name}
        sums = others if blocks is None else {**others, record.name: blocks}
        return dataclasses.replace(self, stages={**self.stages, record.name: record}, blocks=sums)

    def without(self, names: Collection[str]) -> Manifest:
        """This manifest without some stages."""
        stages = {name: record for name, record in self.stages.items() if name not in names}
        blocks = {name: sums for name, sums in self.blocks.items() if name not in names}
        return dataclasses.replace(self, stages=stages, blocks=blocks)

    def with_inputs(self, names: Iterable[str]) -> frozenset[str]:
        """The stages of `names` that exist, and all stages they were made from."""
        needed: set[str] = set()
        stack = list(names)
        while stack:
            if (name := stack.pop()) in self.stages and name not in needed:
                needed.add(name)
                stack.extend(self.stages[name].inputs)
        return frozenset(needed)

    def model(self, role: str) -> dict[str, Any] | None:
        """Model that stages used in a role ("embedder", "llm"), or None."""
        for record in self.stages.values():
            if role in record.models:
                return record.models[role]
        return None

    def defaults(self) -> dict[str, Any]:
        """Settings that later commands take from the index: the embedder's name, [index] and the sections of methods.
        Stages depend on them, answers do not.

        The index may come from another user, so these settings name no server, file or program. The user must name the
        folder of an embedder.
        """
        strange = self.strange_settings()
        saved = {name: section for name, section in self.settings.items() if name != "models" and name not in strange}
        models = self.settings.get("models")
        name = models.get("embedder") if isinstance(models, dict) else None
        if isinstance(name, str) and _NAME.fullmatch(name) and not Path(name).exists():
            saved["models"] = {"embedder": name}
        return saved

    def strange_settings(self) -> list[str]:
        """Names of settings that no build writes, so that nothing reads them."""
        models = self.settings.get("models")
        names = [f"models.{name}" for name in models if name != "embedder"] if isinstance(models, dict) else []
        core = {*CORE, "method"} - {"models", "index"}
        return names + [
            name for name, section in self.settings.items() if name in core or not isinstance(section, dict)
        ]

    def without_stale(self) -> Manifest:
        """This manifest without the stages whose inputs are gone or have changed."""
        outputs = {name: record.output_hash for name, record in self.stages.items()}
        stale = {n for n, r in self.stages.items() if any(outputs.get(need) != h for need, h in r.inputs.items())}
        return self.without(stale).without_stale() if stale else self

    def digest(self) -> str:
        """One hash of the index: tables, vectors, graph and manifest (which holds the checksums)."""
        return sha256_text(canonical_json({k: v for k, v in msgspec.to_builtins(self).items() if k != "blocks"}))

    def write(self, folder: Path) -> None:
        """Write manifest.json atomically, then its copy."""
        for name in (FILE, COPY):
            self.write_to(folder / name)

    def write_to(self, path: Path) -> None:
        """Write one file atomically."""
        write_atomic(path, self._bytes())

    def _bytes(self) -> bytes:
        document = msgspec.to_builtins(self)
        return (canonical_json({**document, "sha256": sha256_text(canonical_json(document))}) + "\n").encode()

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read manifest.json.

        Raises BadInput if there is none, IndexCorrupt if it is damaged or a path of the index is a link, IndexMismatch
        for another format version.
        """
        refuse_links(folder)
        if not (folder / FILE).is_file():
            begun = (folder / "stages").is_dir()
            what = "the index is not finished" if begun else "not an index"
            do = "let gpu-rag index end, or run it again" if begun else "run: gpu-rag index CORPUS --out DIR"
            raise BadInput(what, given=folder, expected="a folder made by gpu-rag index", do=do)
        return cls.read_from(folder / FILE, _FROM_COPY if _sound_copy(folder) is not None else _AGAIN)

    @classmethod
    def read_from(cls, path: Path, do: str) -> Manifest:
        """Read one file. Raises IndexCorrupt, with the advice `do`, and IndexMismatch."""
        try:
            data = path.read_bytes()
            document = msgspec.json.decode(data)
            given = document.get("format") if isinstance(document, dict) else None
            if type(given) is int and given != FORMAT:
                what = "the index has another format version"
                raise IndexMismatch(what, given=f"{given} in {path}", expected=FORMAT, do=_AGAIN)
            manifest = msgspec.convert(document, cls)
            if "blocks" not in document and "sha256" not in document:  # written before manifests had checksums
                document["blocks"] = {}
            elif data != manifest._bytes():
                raise ValueError("it differs from what was written, by its checksum")
            document.pop("sha256", None)
            if msgspec.to_builtins(manifest) != document:
                raise ValueError("it has other keys than a build writes")
            for name, record in manifest.stages.items():
                _check_record(name, record)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            what = "the manifest of the index is damaged"
            raise IndexCorrupt(what, given=f"{path}: {error}", do=do) from error
        return manifest


def _sound_copy(folder: Path) -> Manifest | None:
    try:
        return Manifest.read_from(folder / COPY, "")
    except (IndexCorrupt, IndexMismatch):
        return None


def mend_manifest(folder: Path) -> None:
    """Replace a damaged manifest by its copy, with a warning. The next build makes the stages that the copy lacks.

    Raises IndexCorrupt for a path that is a link, IndexLocked while a build runs.
    """
    if not (folder / FILE).is_file():
        return
    try:
        Manifest.read(folder)
    except IndexCorrupt:
        copy = _sound_copy(folder)
        if copy is not None:
            with writing(folder):
                copy.write(folder)
            _log.warning("gpu-rag: %s was damaged: its copy is in its place", folder / FILE)


def _check_record(name: str, record: StageRecord) -> None:
    """Raise ValueError for a record of the right types that no build writes."""
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


def damage(folder: Path, manifest: Manifest, stage: str) -> str | None:
    """First fault of a stage's files, in words; None if each file is there and has its checksums.

    Compares block checksums, or sha256 if the index is from a version before them. O(bytes); memory: a block.
    """
    record, blocks = manifest.stages[stage], manifest.blocks.get(stage)
    base = folder / record.folder
    if not is_complete(folder, record):
        return f"{base}: files are missing or cut"
    if blocks is None:
        digests = checksums(base)
        changed = [name for name, entry in record.files.items() if digests[name] != entry]
        return f"{base / changed[0]}: altered" if changed else None
    for name, sums in block_sums(base, record.files).items():
        if sums != blocks.get(name):
            same = _common(sums, blocks.get(name, "")) // _DIGITS
            return f"{base / name}: altered between bytes {same * BLOCK:,} and {(same + 1) * BLOCK:,}"
    return None


_DIGITS = 16  # digits of a block's checksum


def _common(a: str, b: str) -> int:
    """Length of the common prefix of two texts."""
    return next((place for place, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def checked_folder(folder: Path, manifest: Manifest, stage: str) -> Path:
    """Folder of a stage whose files are unchanged. Raises IndexCorrupt, which names the damaged file."""
    if fault := damage(folder, manifest, stage):
        raise IndexCorrupt("files of the index are damaged", given=fault, do=_MEND)
    return folder / manifest.stages[stage].folder


def is_complete(folder: Path, record: StageRecord) -> bool:
    """Whether every file of a stage is there with its size."""
    base = folder / record.folder
    sizes = {name: entry["bytes"] for name, entry in record.files.items()}
    return all((base / name).is_file() and (base / name).stat().st_size == size for name, size in sizes.items())
