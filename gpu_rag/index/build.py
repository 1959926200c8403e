"""The stage runner: which stages are stale, running them atomically, and what each cost.

A stage writes into a temporary folder, which is made durable, renamed to `stages/NAME-FINGERPRINT` and only then
entered in the manifest. A build killed at any moment leaves the old manifest or the new one, and both are valid; the
next run redoes the unfinished stage alone, and inside it only the blocks and model replies that are not yet on disk.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from gpu_rag.errors import IndexCorrupt, UsageError
from gpu_rag.index.folder import (
    WriteLock,
    canonical_json,
    checksums,
    sha256_text,
    storage_errors,
    sync_tree,
    write_atomic,
)
from gpu_rag.index.manifest import Manifest, StageRecord
from gpu_rag.index.memory import peak_memory_bytes, reset_peak_memory
from gpu_rag.settings import Settings

if TYPE_CHECKING:
    from gpu_rag.models.embed import Embedder
    from gpu_rag.models.llm import LLM


class Models(Protocol):
    """Where stages get their models from; loaded on first use, so a resumed build loads only what it needs."""

    def embedder(self) -> Embedder:
        """The embedding model."""

    def llm(self) -> LLM:
        """The language model, behind the index's reply cache."""

    def describe(self, role: str) -> dict[str, Any]:
        """{"name", "content_hash", ...} of a role ("embedder" or "llm")."""


class Progress(Protocol):
    """Where a build reports how far it is."""

    def start(self, stage: str, total: int | None, unit: str) -> None:
        """A stage begins, or learns its total."""

    def advance(self, n: int, tokens: int = 0) -> None:
        """n more units are done, with this many LLM tokens."""

    def finish(self, stage: str, skipped: bool) -> None:
        """A stage is done, or was up to date."""


class Silent:
    """Progress that says nothing."""

    def start(self, stage: str, total: int | None, unit: str) -> None:
        """Says nothing."""

    def advance(self, n: int, tokens: int = 0) -> None:
        """Says nothing."""

    def finish(self, stage: str, skipped: bool) -> None:
        """Says nothing."""


@dataclass(frozen=True)
class Sources:
    """What a build reads: corpus files or folders, ready OpenIE results; strict stops at the first bad row.

    merges: the file of edits of merges (see `index.merge_edits`), which may be missing.
    """

    corpus: tuple[Path, ...] = ()
    openie: tuple[Path, ...] = ()
    strict: bool = False
    merges: Path | None = None


@dataclass
class StageReport:
    """What one stage cost in this run. `skipped`: it was up to date; `reused`: rows taken over from its last state;
    `llm_s`: seconds with a request open, so that the LLM was idle for s - llm_s."""

    s: float = 0.0
    llm_s: float = 0.0
    llm_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    failures: int = 0
    reused: int = 0
    skipped: bool = False
    peak_memory_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Work:
    """What a running stage has: its output folder, the finished stages before it, settings and models.

    previous: what an earlier run of this stage, of the same version, left for other inputs; None where there is none.
    A stage may take over what still holds, as long as its output does not depend on it.
    """

    out: Path
    partial: Path
    stage_folders: Mapping[str, Path]
    settings: Settings
    sources: Sources
    models: Models
    progress: Progress
    report: StageReport
    previous: Path | None = None

    def blocks(self, n: int) -> Iterator[tuple[int, slice]]:
        """Fixed blocks of rows: (block number, slice). They never depend on where a run resumed."""
        size = self.settings.index.block
        for number, start in enumerate(range(0, n, size)):
            yield number, slice(start, min(n, start + size))

    def array_block(self, number: int, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of one block: from disk if an earlier run finished it, else made and stored durably."""
        path = self.partial / f"block-{number:07d}.npy"
        if path.is_file():
            return np.load(path, allow_pickle=False)
        array = make()
        with storage_errors(path):
            self.partial.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(".tmp")
            with beside.open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        return array


@runtime_checkable
class Settling(Protocol):
    """A layer that has settings of its own whose `auto` depends on the models."""

    def settled(self, settings: Settings, models: Models) -> Settings:
        """The settings with what `auto` becomes in its place."""


def settle(layers: Sequence[Layer], settings: Settings, models: Models) -> Settings:
    """The settings with every `auto` of these layers replaced, so that fingerprints and manifest hold what ran."""
    for layer in layers:
        if isinstance(layer, Settling):
            settings = layer.settled(settings, models)
    return settings


class Layer(Protocol):
    """One index layer: a module-level object with a name, what it reads, a version, and how to run it."""

    name: str
    version: int  # raised only when the output changes for equal input
    retry: tuple[str, ...]  # counts that, when not 0, make the next run do the stage again
    needs: tuple[str, ...]

    def params(self, settings: Settings, sources: Sources) -> dict[str, Any]:
        """Everything outside the needed stages and models that the output depends on."""

    def roles(self, settings: Settings) -> tuple[str, ...]:
        """The model roles it uses under these settings."""

    def run(self, work: Work) -> dict[str, int]:
        """Writes files into work.out and returns counts."""


@dataclass(frozen=True)
class BuildReport:
    """What a build did: a StageReport for each stage, in order."""

    out: Path
    manifest: Manifest
    stages: dict[str, StageReport]
    wall_s: float

    def count(self, name: str) -> int:
        """A count by name ("passages", "entities", ...), 0 where no stage counts it."""
        return sum(record.counts.get(name, 0) for record in self.manifest.stages.values())


def fingerprint_of(
    layer: Layer, inputs: Mapping[str, str], params: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> str:
    """The hash of everything that a stage's output depends on: the stage is up to date while it stays the same."""
    identity = {
        "name": layer.name,
        "version": layer.version,
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


def is_up_to_date(out: Path, layer: Layer, record: StageRecord, fingerprint: str) -> bool:
    """Whether a finished stage can be kept: made of the same, nothing to try again, all files there."""
    to_retry = any(record.counts.get(name) for name in layer.retry)
    return record.fingerprint == fingerprint and not to_retry and is_complete(out, record)


def guard_folder(out: Path) -> None:
    """Raises UsageError where `out` holds what no build made: it is left alone."""
    if out.exists() and not out.is_dir():
        raise UsageError("--out is a file", given=out, expected="a folder that is new, empty, or an index")
    known = {"manifest.json", "lock", "stages", "work", "replies.sqlite", "run.json", "rejects.jsonl", "plan.json"}
    known.add("merges.jsonl")
    names = [path.name for path in out.iterdir()] if out.exists() else []
    strangers = [name for name in names if name not in known and not name.startswith((".", "replies.sqlite"))]
    if strangers and not (out / "manifest.json").exists():
        raise UsageError(
            "--out holds other files and is no index",
            given=f"{out} with {strangers[0]}",
            expected="a new or empty folder",
        )


def _clean(out: Path, manifest: Manifest) -> None:
    """Removes what no record names: unfinished folders of a killed run, replaced stages."""
    kept = {record.folder for record in manifest.stages.values()}
    for path in sorted((out / "stages").glob("*")) if (out / "stages").is_dir() else []:
        if f"stages/{path.name}" not in kept:
            shutil.rmtree(path)
    for path in out.glob(".*.tmp"):
        path.unlink()


def _drop_stale(manifest: Manifest) -> Manifest:
    """Without the stages whose inputs are gone or have changed."""
    stages = dict(manifest.stages)
    changed = True
    while changed:
        outputs = {name: record.output_hash for name, record in stages.items()}
        fresh = {n: r for n, r in stages.items() if all(outputs.get(need) == h for need, h in r.inputs.items())}
        changed = len(fresh) != len(stages)
        stages = fresh
    return Manifest(manifest.settings, manifest.sources, stages)


def _run_stage(
    out: Path, layer: Layer, fingerprint: str, manifest: Manifest, work_of: Callable[[Path, Path], Work]
) -> tuple[str, dict[str, dict[str, Any]], dict[str, int], StageReport]:
    name = f"{layer.name}-{fingerprint[:12]}"
    temporary, final, partial = out / "stages" / f".tmp-{name}", out / "stages" / name, out / "work" / name
    with storage_errors(out):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        work = work_of(temporary, partial)
        reset_peak_memory()
        started = time.perf_counter()
        counts = layer.run(work)
        sync_tree(temporary)
        files = checksums(temporary)
        if final.exists():
            shutil.rmtree(final)
        os.replace(temporary, final)
    work.report.s = time.perf_counter() - started
    work.report.peak_memory_bytes = peak_memory_bytes()
    work.report.counts = counts
    return f"stages/{name}", files, counts, work.report


def build_index(
    out: Path,
    layers: Sequence[Layer],
    settings: Settings,
    sources: Sources,
    models: Models,
    *,
    kept_settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
) -> BuildReport:
    """Brings the stages of `layers` (in dependency order) up to date in the folder `out`.

    fresh: start from nothing, model replies included. kept_settings: what the manifest remembers of the settings.
    Raises IndexLocked when another build writes here, StorageError when the disk refuses, BadInput from the readers.
    """
    progress = progress or Silent()
    started = time.perf_counter()
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    guard_folder(out)
    with WriteLock(out):
        if fresh:
            _erase(out)
        settings = settle(layers, settings, models)
        manifest = Manifest.read(out) if (out / "manifest.json").exists() else Manifest()
        described = {"corpus": [p.name for p in sources.corpus], "openie": [p.name for p in sources.openie]}
        manifest = Manifest(dict(kept_settings or {}), described, manifest.stages)
        _clean(out, manifest)
        reports: dict[str, StageReport] = {}
        for layer in layers:
            manifest, reports[layer.name] = _bring_up_to_date(out, layer, manifest, settings, sources, models, progress)
        manifest = _drop_stale(manifest)
        manifest.write(out)
        _clean(out, manifest)
        shutil.rmtree(out / "work", ignore_errors=True)
        _gather_rejects(out, manifest)
        report = BuildReport(out, manifest, reports, time.perf_counter() - started)
        _write_run(report)
    return report


def _bring_up_to_date(
    out: Path,
    layer: Layer,
    manifest: Manifest,
    settings: Settings,
    sources: Sources,
    models: Models,
    progress: Progress,
) -> tuple[Manifest, StageReport]:
    inputs = {need: manifest.stages[need].output_hash for need in layer.needs}
    params = layer.params(settings, sources)
    described = {role: models.describe(role) for role in layer.roles(settings)}
    fingerprint = fingerprint_of(layer, inputs, params, described)
    old = manifest.stages.get(layer.name)
    if old is not None and is_up_to_date(out, layer, old, fingerprint):
        progress.finish(layer.name, skipped=True)
        return manifest, StageReport(skipped=True, counts=old.counts)
    folders = {name: out / record.folder for name, record in manifest.stages.items() if name in layer.needs}
    previous = _previous(out, layer, old)
    progress.start(layer.name, None, "rows")

    def work_of(temporary: Path, partial: Path) -> Work:
        return Work(temporary, partial, folders, settings, sources, models, progress, StageReport(), previous)

    folder, files, counts, report = _run_stage(out, layer, fingerprint, manifest, work_of)
    record = StageRecord(layer.name, layer.version, fingerprint, folder, inputs, params, described, files, counts)
    manifest = manifest.with_stage(record)
    manifest.write(out)
    progress.finish(layer.name, skipped=False)
    return manifest, report


def _previous(out: Path, layer: Layer, old: StageRecord | None) -> Path | None:
    """The folder of the stage's last state, where its version is this one and every file still has its checksum."""
    if old is None or old.version != layer.version or not is_complete(out, old):
        return None
    return out / old.folder if checksums(out / old.folder) == old.files else None


def _erase(out: Path) -> None:
    for name in (
        "manifest.json",
        "run.json",
        "rejects.jsonl",
        "replies.sqlite",
        "replies.sqlite-wal",
        "replies.sqlite-shm",
    ):
        (out / name).unlink(missing_ok=True)
    for name in ("stages", "work"):
        shutil.rmtree(out / name, ignore_errors=True)


def _gather_rejects(out: Path, manifest: Manifest) -> None:
    parts = [out / record.folder / "rejects.jsonl" for record in manifest.stages.values()]
    write_atomic(out / "rejects.jsonl", b"".join(path.read_bytes() for path in parts if path.is_file()))


def _write_run(report: BuildReport) -> None:
    """run.json: times, memory, host. Outside the digest."""
    stages = {name: vars(stage) for name, stage in report.stages.items()}
    document = {"wall_s": report.wall_s, "host": platform.node(), "python": platform.python_version(), "stages": stages}
    write_atomic(report.out / "run.json", (json.dumps(document, indent=1) + "\n").encode())


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
