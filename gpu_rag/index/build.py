"""Stage runner: finds the stale stages, runs them atomically, and records their costs.

A stage writes into a temporary folder, which is made durable, renamed to `stages/NAME-FINGERPRINT` and only then
entered in the manifest. Where an index stands already, that is a manifest in `work`, and the index's own is replaced
when all stages are done: readers see the old index or the new one. A build killed at any moment leaves the old manifest
or the new one, and both are valid. The next run repeats only the unfinished stage, and in it only the blocks and model
replies that are not yet on disk.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rag_kernels.dispatch import preferring, recording, spelled

from gpu_rag.errors import IndexCorrupt, IndexMismatch, UsageError
from gpu_rag.index.folder import (
    block_sums,
    canonical_json,
    checksums,
    has_readers,
    is_own,
    sealed,
    sha256_text,
    stage_files,
    storage_errors,
    sync,
    write_atomic,
    writing,
)
from gpu_rag.index.manifest import COPY, FILE, Manifest, StageRecord, damage, is_complete
from gpu_rag.index.memory import watched_memory
from gpu_rag.index.recorded import write_sources
from gpu_rag.index.stage import Stage, settle
from gpu_rag.index.tables import keeping_columns
from gpu_rag.index.work import Progress, Silent, Sources, StageReport, Work
from gpu_rag.models.fingerprint import identity
from gpu_rag.settings import Settings

if TYPE_CHECKING:
    from gpu_rag.models.llm.interface import ServerAccount
    from gpu_rag.models.set import ModelSet

ASKED = "work/asked.json"
PROGRESS = "work/manifest.json"  # the manifest of an unfinished build over an index
_YOUNG = 50_000  # new objects after which Python looks for unused ones
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildReport:
    """A StageReport for each stage of a build, in order. servers: servers of its language model, as in `ModelSet`.
    plan: predicted and actual costs, if the build was planned. notes: remarks for people."""

    out: Path
    manifest: Manifest
    stages: dict[str, StageReport]
    wall_s: float
    servers: list[ServerAccount] = field(default_factory=list)
    plan: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def count(self, name: str) -> int:
        """Count by name ("passages", "entities", ...); 0 if no stage counts it."""
        return sum(record.counts.get(name, 0) for record in self.manifest.stages.values())


def guard_folder(out: Path) -> None:
    """Raise UsageError for a folder with files that no build made, so that it is left alone."""
    if out.exists() and not out.is_dir():
        raise UsageError("--out is a file", given=out, expected="a folder that is new, empty, or an index")
    names = [path.name for path in out.iterdir()] if out.exists() else []
    strangers = [name for name in names if not name.startswith(".") and not is_own(name)]
    if strangers and not (out / "manifest.json").exists():
        raise UsageError(
            "--out holds other files and is not an index",
            given=f"{out} with {strangers[0]}",
            expected="a new or empty folder",
        )


def _clean(out: Path, *manifests: Manifest) -> None:
    """Remove folders that no record names: unfinished ones of a killed run, and replaced stages unless a process reads
    them."""
    named = {record.folder for manifest in manifests for record in manifest.stages.values()}
    kept = has_readers(out)
    for path in sorted((out / "stages").glob("*")) if (out / "stages").is_dir() else []:
        if f"stages/{path.name}" not in named and not (kept and not path.name.startswith(".tmp-")):
            shutil.rmtree(path)
    for path in out.glob(".*.tmp"):
        path.unlink()


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python seldom look for unused cycles of objects. Looking after every 700 new objects takes a third of the
    time of a stage that reads rows as objects."""
    before = gc.get_threshold()
    if not 0 < before[0] < _YOUNG:  # the caller has chosen, or another build in this process
        yield
        return
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def build_index(
    out: Path,
    stages: Sequence[Stage],
    settings: Settings,
    sources: Sources,
    models: ModelSet,
    *,
    saved_settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
    forget_replies: bool = False,
    retry_unread: bool = False,
    use_replies: bool = False,
    drop_others: bool = False,
) -> BuildReport:
    """Bring `stages` (in dependency order) up to date in the folder `out`.

    fresh: rebuild from nothing, but with the kept model replies; forget_replies: without them too. retry_unread,
    use_replies: repeat stages that ask a language model. drop_others: stages of sources that are not among these leave
    the index. saved_settings: the settings that the manifest records.
    Raises IndexLocked when another build writes here, StorageError when the disk refuses, BadInput from the readers.
    """
    progress = progress or Silent()
    started = time.perf_counter()
    guard_folder(out)
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with writing(out), keeping_columns(), few_collections():
        if forget_replies:  # before a model opens the reply file
            for end in ("", "-wal", "-shm"):
                (out / f"replies.sqlite{end}").unlink(missing_ok=True)
        settings = settle(stages, settings, models)
        for role in dict.fromkeys(role for stage in stages for role in stage.roles(settings)):
            models.describe(role)  # raises before anything is erased or read
        if fresh or forget_replies:
            _erase(out)
        with storage_errors(out):
            _write_asked(out, stages)
        standing = Manifest.read(out) if (out / "manifest.json").exists() else Manifest()
        manifest = _resumed(out, standing)
        manifest = replace(manifest, settings=dict(saved_settings or {}), sources=described(sources))
        manifest = manifest.without(_damaged_others(out, manifest, stages))
        _clean(out, manifest, standing)
        was_whole = cache(partial(_is_whole, out, standing))  # several stages read one input
        reports: dict[str, StageReport] = {}
        again = retry_unread or use_replies
        for stage in stages:
            manifest, reports[stage.name] = _bring_up_to_date(
                out, stage, manifest, standing, was_whole, settings, sources, models, progress, again
            )
            overwritten = _is_overwritten(standing, manifest, stage.name)
            if overwritten:
                was_whole.cache_clear()
            if not standing.stages or overwritten:
                manifest.write(out)
            elif not reports[stage.name].skipped:
                manifest.write_to(out / PROGRESS)
            folder = Path(manifest.stages[stage.name].folder)
            shutil.rmtree(out / "work" / folder.name, ignore_errors=True)  # its blocks
        dropped = sources.impossible - reports.keys() if drop_others else ()
        manifest = manifest.without(dropped).without_stale()
        with storage_errors(out):
            write_sources(out, sources)
        manifest.write(out)
        _clean(out, manifest)
        shutil.rmtree(out / "work", ignore_errors=True)
        write_atomic(out / "rejects.jsonl", rejects_of(out, manifest))
        wall_s = time.perf_counter() - started
        report = BuildReport(out, manifest, reports, wall_s, models.servers())
        _write_run(report)
    return report


def _resumed(out: Path, standing: Manifest) -> Manifest:
    """The manifest that an interrupted build over an index left; else the manifest of the index."""
    try:
        return Manifest.read_from(out / PROGRESS, "") if standing.stages else standing
    except (IndexCorrupt, IndexMismatch):  # missing or unusable: its stages are made again
        return standing


def _is_overwritten(standing: Manifest, manifest: Manifest, stage: str) -> bool:
    """Whether a stage was made again in the folder of the standing index, with other content."""
    old, new = standing.stages.get(stage), manifest.stages[stage]
    return old is not None and old.folder == new.folder and old.files != new.files


def _write_asked(out: Path, stages: Sequence[Stage]) -> None:
    """Write the names of this build's stages to `work`, which only a finished build removes: see `unfinished`."""
    (out / "work").mkdir(exist_ok=True)
    write_atomic(out / ASKED, canonical_json([stage.name for stage in stages]).encode())


def unfinished(out: Path) -> list[str]:
    """Stages of the last build if it was interrupted; [] if it finished."""
    try:
        names = json.loads((out / ASKED).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def built_stages(out: Path) -> list[str]:
    """Names of the stages that an index has, and that an interrupted build was to make."""
    return [*(Manifest.read(out).stages if (out / "manifest.json").is_file() else ()), *unfinished(out)]


def described(sources: Sources) -> dict[str, Any]:
    """Sources as the manifest records them: names without folders."""
    names: dict[str, Any] = {
        "corpus": [path.name for path in sources.corpus],
        "openie": [path.name for path in sources.openie],
    }
    if sources.named:
        names["named"] = [[source.name, source.kind, source.path.name] for source in sources.named]
    return names


def _bring_up_to_date(
    out: Path,
    stage: Stage,
    manifest: Manifest,
    standing: Manifest,
    was_whole: Callable[[str], bool],
    settings: Settings,
    sources: Sources,
    models: ModelSet,
    progress: Progress,
    again: bool,
) -> tuple[Manifest, StageReport]:
    """Run a stage unless its output is up to date; returns the manifest with the stage, and a report.

    manifest: with all stages that the stage needs; standing: from before the build, for the inputs of an earlier run;
    was_whole: whether a stage of `standing` is undamaged.
    again: run a stage that asks an LLM even if it is up to date.
    """
    needs = stage.needs_of(sources)
    inputs = {need: manifest.stages[need].output_hash for need in needs}
    params = stage.params(settings, sources)
    made_by = {role: identity(models.describe(role)) for role in stage.roles(settings)}
    fingerprint = fingerprint_of(stage, inputs, params, made_by)
    old = manifest.stages.get(stage.name)
    is_standing = old is not None and old == standing.stages.get(stage.name)
    whole = old is not None and (was_whole(stage.name) if is_standing else _is_whole(out, manifest, stage.name))
    again = again and "llm" in made_by
    if old is not None and whole and not again and is_up_to_date(out, stage, old, fingerprint):
        progress.finish(stage.name, skipped=True)
        blocks = manifest.blocks.get(stage.name) or block_sums(out / old.folder, old.files)
        return manifest.with_stage(old, blocks), StageReport(skipped=True, counts=old.counts)
    folders = {name: out / record.folder for name, record in manifest.stages.items() if name in needs}
    before, before_inputs = None, dict[str, Path]()
    if old is not None and whole and old.version == stage.version:
        before = out / old.folder
        if (old.params, old.models) == (params, made_by):
            before_inputs = _inputs_of(out, manifest, standing, was_whole, old)
    report = StageReport()
    progress.start(stage.name, None, "rows")
    name = f"{stage.name}-{fingerprint[:12]}"
    temporary, final, partial = out / "stages" / f".tmp-{name}", out / "stages" / name, out / "work" / name
    work = Work(temporary, partial, folders, settings, sources, models, progress, report, before, before_inputs)
    work.params, work.previous_params = params, {} if old is None else old.params
    work.previous_counts = {} if old is None else old.counts
    with storage_errors(out):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        with watched_memory() as peak_memory_bytes:
            started = time.perf_counter()
            models.use(made_by)
            with preferring(settings.graph.preferences()), recording() as ran:
                counts = stage.run(work)
            sync(*temporary.rglob("*"), temporary)
            files = checksums(temporary)
            blocks = block_sums(temporary, files)
            _put_in_place(temporary, final, files)
            report.s, report.peak_memory_bytes = time.perf_counter() - started, peak_memory_bytes()
    report.counts, report.graph_ops = counts, spelled(ran)
    folder = f"stages/{name}"
    record = StageRecord(stage.name, stage.version, fingerprint, folder, inputs, params, made_by, files, counts)
    manifest = manifest.with_stage(record, blocks)
    progress.finish(stage.name, skipped=False)
    return manifest, report


def _put_in_place(temporary: Path, final: Path, files: Mapping[str, Any]) -> None:
    """Make a finished folder of a stage the final one. files: its checksums. Equal files stay: they may be in use."""
    if final.exists() and checksums(final) == files:
        shutil.rmtree(temporary)
    else:
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        sync(final.parent)


def _inputs_of(
    out: Path, manifest: Manifest, standing: Manifest, was_whole: Callable[[str], bool], record: StageRecord
) -> dict[str, Path]:
    """Folders of the stages that a stage was made from, by name; empty if one of them is gone, damaged or of another
    version than that of `manifest`, since its tables may have other columns."""
    records = {name: standing.stages.get(name) for name in record.inputs}
    if any(made and made.version != manifest.stages.get(name, made).version for name, made in records.items()):
        return {}
    if any(made is None or made.output_hash != record.inputs[name] for name, made in records.items()):
        return {}
    return {name: out / made.folder for name, made in records.items() if made} if all(map(was_whole, records)) else {}


def fingerprint_of(
    stage: Stage | StageRecord,
    inputs: Mapping[str, str],
    params: Mapping[str, Any],
    models: Mapping[str, Mapping[str, Any]],
) -> str:
    """Hash of everything that a stage's output depends on. A stage is up to date while it stays the same."""
    identity = {
        "name": stage.name,
        "version": stage.version,
        "inputs": inputs,
        "params": params,
        "models": {role: model["content_hash"] for role, model in models.items()},
    }
    return sha256_text(canonical_json(identity))


def is_up_to_date(out: Path, stage: Stage, record: StageRecord, fingerprint: str) -> bool:
    """Whether a finished stage need not run again: same fingerprint, nothing to retry, all files present."""
    to_retry = any(record.counts.get(name) for name in stage.retry)
    return record.fingerprint == fingerprint and not to_retry and is_complete(out, record)


def _is_whole(out: Path, manifest: Manifest, stage: str) -> bool:
    """Whether the folder of a stage holds exactly the files of the stage, with their checksums."""
    base, files = out / manifest.stages[stage].folder, manifest.stages[stage].files
    if fault := damage(out, manifest, stage):
        _log.warning("gpu-rag: damaged, and made again: %s", fault)
    return not fault and {path.relative_to(base).as_posix() for path in stage_files(base)} == set(files)


def _damaged_others(out: Path, manifest: Manifest, stages: Sequence[Stage]) -> list[str]:
    """Damaged stages that this build does not make. They leave the index until a build makes them again."""
    others = manifest.stages.keys() - {stage.name for stage in stages}
    return [name for name in sorted(others) if not _is_whole(out, manifest, name)]


def _erase(out: Path) -> None:
    for name in (FILE, COPY, "run.json", "rejects.jsonl"):
        (out / name).unlink(missing_ok=True)
    for name in ("work",) if has_readers(out) else ("stages", "work"):
        shutil.rmtree(out / name, ignore_errors=True)


def rejects_of(out: Path, manifest: Manifest) -> bytes:
    """Rejects of all stages: the content of the index's rejects.jsonl."""
    parts = [out / record.folder / "rejects.jsonl" for record in manifest.stages.values()]
    return b"".join(path.read_bytes() for path in parts if path.is_file())


def _write_run(report: BuildReport) -> None:
    """Write run.json: times, memory, host. It is not part of the digest."""
    stages = {name: vars(stage) for name, stage in report.stages.items()}
    document = {"wall_s": report.wall_s, "host": platform.node(), "python": platform.python_version(), "stages": stages}
    write_atomic(report.out / "run.json", sealed(document))
