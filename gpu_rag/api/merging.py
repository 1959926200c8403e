"""Merges: one index of several that were built apart, equal to one build of all their sources."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Unpack

import msgspec

from gpu_rag.api.arguments import PathLike, checked_path, checked_paths, checked_settings
from gpu_rag.api.builds import run_build
from gpu_rag.api.changes import Changing, check_there, checked_folder
from gpu_rag.api.indexes import Index
from gpu_rag.api.parts import pool
from gpu_rag.errors import BadInput, IndexMismatch, UsageError
from gpu_rag.index.build import described, guard_folder
from gpu_rag.index.folder import EDITS, storage_errors, write_atomic
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.manifest import checked_folder as checked_stage
from gpu_rag.index.recorded import read_record, remembered
from gpu_rag.index.work import HeldSource, NamedSource, Sources
from gpu_rag.methods.registry import all_stages
from gpu_rag.models.llm.interface import LLM
from gpu_rag.settings import Settings


def merge(indexes: Sequence[PathLike], out: PathLike, **keywords: Unpack[Changing]) -> Index:
    """Make one index of several, equal to one build of all their sources for the methods of all of them.

    The replies and vectors of the indexes are used, so that a model is asked only for what none of them has. All else
    is made by the ordinary stages: a document that several indexes have is counted once, and names are resolved across
    all. What was removed from one index stays out. The indexes are not changed. The documents of an index whose files
    are not here, such as one from another machine, are taken from its tables.

    indexes: index folders, in any order. out: a new folder, or the same merge that was interrupted. The keyword
    arguments mean the same as for `add`. Raises UsageError for settings that differ, IndexMismatch for models that
    differ, and as `add`.
    """
    folders = [checked_folder(path) for path in checked_paths("indexes", indexes)]
    target = checked_path("out", out)
    if target.resolve() in {folder.resolve() for folder in folders}:
        raise UsageError("--out is one of the indexes", given=target, expected="a new folder")
    guard_folder(target)
    manifests = {folder: Manifest.read(folder).without_stale() for folder in folders}
    for (a, first), (b, second) in combinations(manifests.items(), 2):
        _check_settings(a, first.defaults(), b, second.defaults())
        _check_models(a, first, b, second)
    sources = _joined({folder: _sources_of(folder, manifest) for folder, manifest in manifests.items()}, target)
    if (target / "manifest.json").is_file() and Manifest.read(target).sources != described(sources):
        raise UsageError("--out is an index of other sources", given=target, expected="a new folder")
    settings, llm = _settings(manifests[folders[0]], **keywords)
    _join_edits(folders, target)
    pool(folders, target)
    given: dict[str, Any] = {"settings": settings, "llm": llm, "api_key": keywords.get("api_key"), "methods": ()}
    return run_build(sources, target, progress=keywords.get("progress"), parts=folders, **given)


def _settings(
    saved: Manifest, *, settings: Any = None, llm: Any = None, embedder: Any = None, **others: Any
) -> tuple[Settings, LLM | None]:
    """The settings of the indexes, which the given ones override, and a language model that is an object."""
    return checked_settings(settings, saved.defaults(), llm=llm, embedder=embedder)


def _check_settings(a: Path, first: Mapping[str, Any], b: Path, second: Mapping[str, Any]) -> None:
    """Raise UsageError for the first setting that two indexes were not built with alike."""
    for section in sorted({*first, *second}):
        values, others = first.get(section, {}), second.get(section, {})
        for name in sorted({*values, *others}):
            if values.get(name) != others.get(name):
                shown = [f"{own.get(name, 'the default')!r} in {folder}" for own, folder in ((values, a), (others, b))]
                do = "build one of them again with the setting of the other: gpu-rag index ... --set"
                raise UsageError(f"the indexes were built with another {section}.{name}", given=", ".join(shown), do=do)


def _check_models(a: Path, first: Manifest, b: Path, second: Manifest) -> None:
    """Raise IndexMismatch for a stage that two indexes have, made by other models."""
    for name in sorted(first.stages.keys() & second.stages.keys()):
        models, others = first.stages[name].models, second.stages[name].models
        for role in sorted({*models, *others}):
            if models.get(role, {}).get("content_hash") != others.get(role, {}).get("content_hash"):
                pairs = ((models, a), (others, b))
                shown = [f"{own[role]['name'] if role in own else 'none'} in {folder}" for own, folder in pairs]
                raise IndexMismatch(
                    f"the stage {name} was made by another {role}",
                    given=", ".join(shown),
                    do="build one of them again with the model of the other: gpu-rag index ... --fresh",
                )


def _sources_of(folder: Path, manifest: Manifest) -> tuple[Sources, dict[Path, str]]:
    """The sources of an index, and the hashes of its files and folders of documents.

    Its tables stand for them if they are not all here, or if another machine recorded them. Raises BadInput if they
    cannot.
    """
    record, passages = read_record(folder), manifest.stages.get("passages")
    params = passages.params if passages else {}
    try:
        hashes = msgspec.convert(params.get("corpus"), list[tuple[str, str]])
        readers = msgspec.convert(params.get("readers"), dict[str, str])
    except msgspec.ValidationError:  # from an earlier version
        hashes, readers = [], {}
    paths = tuple(map(Path, record.corpus))
    sha256_of = {path: sha256 for path, (_, sha256) in zip(paths, hashes)}
    sources = remembered(folder)
    if sources is not None and all(path.exists() for path in paths):
        check_there(sources)
        return sources, sha256_of
    names = [path.name for path in paths]
    whole = names == [name for name, _ in hashes] and len(names) == len(set(names)) > 0
    is_current = passages is not None and passages.version == all_stages()["passages"].version
    if record.openie or record.named or not (whole and is_current):
        do = "bring the files to the same place here, and run: gpu-rag update DIR SOURCE..."
        raise BadInput("the files of an index are not here, and its tables cannot stand for them", given=folder, do=do)
    tables = checked_stage(folder, manifest, "passages")
    held = tuple(HeldSource(path, tables, sha256_of[path], readers) for path in paths)
    return Sources(paths, removed=frozenset(record.removed), held=held), sha256_of


def _joined(parts: Mapping[Path, tuple[Sources, dict[Path, str]]], out: Path) -> Sources:
    """All sources, each once. Raises UsageError for two sources of one path or of one name."""
    corpus, openie, removed = set[Path](), set[Path](), set[str]()
    sha256_of, held, named = dict[Path, str](), dict[Path, HeldSource](), dict[str, NamedSource]()
    readers: dict[str, str] = {}
    for folder, (part, hashes) in parts.items():
        for path, sha256 in hashes.items():
            if sha256_of.setdefault(path, sha256) != sha256:
                do = "run gpu-rag update on the older index; or, if they are two files, give one another name first"
                raise UsageError("two indexes have one file with other content", given=f"{path} in {folder}", do=do)
        for source in part.held:
            held.setdefault(source.path, source)
            for library, version in source.readers.items():
                if readers.setdefault(library, version) != version:
                    given = f"{library} {readers[library]} and {version}"
                    raise UsageError("the files of two indexes were read by other versions of a library", given=given)
        corpus.update(part.corpus)
        openie.update(part.openie)
        removed |= part.removed
        for named_source in part.named:
            other = named.setdefault(named_source.name, named_source)
            if (other.kind, other.path) != (named_source.kind, named_source.path):
                given = f"{other.name}: {other.path} and {named_source.path}"
                raise UsageError("one name stands for two sources", given=given, do="build one with another name")
    here = {path for part, _ in parts.values() if not part.held for path in part.corpus}
    files, results = (tuple(sorted(paths, key=os.fsencode)) for paths in (corpus, openie))
    kept = tuple(source for path, source in held.items() if path not in here)
    sources = Sources(files, results, False, out / EDITS, removed=frozenset(removed), held=kept)
    return replace(sources, named=tuple(named[name] for name in sorted(named)))


def _join_edits(folders: Sequence[Path], out: Path) -> None:
    """Give the new index the manual changes of all: each line once, in the order of the alphabet if they differ."""
    files: dict[str, set[bytes]] = {}
    for path in (path for folder in folders for path in sorted((folder / EDITS).glob("*")) if path.is_file()):
        files.setdefault(path.name, set()).add(path.read_bytes())
    for name, contents in files.items():
        lines = sorted({line for content in contents for line in content.splitlines()})
        joined = contents.pop() if len(contents) == 1 else b"".join(line + b"\n" for line in lines)
        with storage_errors(out):
            (out / EDITS).mkdir(parents=True, exist_ok=True)
        write_atomic(out / EDITS / name, joined)
