"""Merges: one index of several that were built apart, equal to one build of all their sources."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Unpack

import msgspec

from gpu_rag.api.arguments import IndexLike, PathLike, checked_path, checked_paths, checked_settings
from gpu_rag.api.builds import run_build
from gpu_rag.api.changes import Changing, checked_folder
from gpu_rag.api.indexes import Index
from gpu_rag.api.parts import pool
from gpu_rag.api.standing import check_sources_exist
from gpu_rag.errors import BadInput, IndexMismatch, UsageError
from gpu_rag.index.build import described, guard_folder
from gpu_rag.index.folder import EDITS, storage_errors, write_atomic
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.manifest import checked_folder as checked_stage
from gpu_rag.index.recorded import read_record, remembered
from gpu_rag.index.removed import FILE
from gpu_rag.index.work import HeldSource, NamedSource, Sources
from gpu_rag.methods.registry import all_stages
from gpu_rag.models.llm.interface import LLM
from gpu_rag.settings import Settings


def merge(indexes: Sequence[IndexLike], out: PathLike, **keywords: Unpack[Changing]) -> Index:
    """Make one index of several. It equals one build of all their sources, for all methods of the indexes.

    Replies and vectors of the indexes are reused: models compute only what no index has. The ordinary stages make the
    rest: a document that several indexes have counts once, and names are resolved across all. Documents that were
    removed from one index stay out. The indexes do not change. If the files of an index are not here, because it comes
    from another machine, its documents are read from its tables.

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
    """(the saved settings, overridden by the given ones; the language model, if it is given as an object)."""
    return checked_settings(settings, saved.defaults(), llm=llm, embedder=embedder)


def _check_settings(a: Path, first: Mapping[str, Any], b: Path, second: Mapping[str, Any]) -> None:
    """Raise UsageError for the first setting in which two indexes differ. first, second: the settings of a and b."""
    for section in sorted({*first, *second}):
        values, others = first.get(section, {}), second.get(section, {})
        for name in sorted({*values, *others}):
            if values.get(name) != others.get(name):
                shown = [f"{own.get(name, 'the default')!r} in {folder}" for own, folder in ((values, a), (others, b))]
                do = "build one of them again with the setting of the other: gpu-rag index ... --set"
                raise UsageError(f"the indexes were built with another {section}.{name}", given=", ".join(shown), do=do)


def _check_models(a: Path, first: Manifest, b: Path, second: Manifest) -> None:
    """Raise IndexMismatch for a stage that two indexes made with different models. first, second: their
    manifests."""
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
    """(the sources of an index, {path: SHA-256} of its files and folders of documents).

    If some files are missing, or if another machine recorded them, the sources are held: documents come from the
    tables of the index. Raises BadInput if the tables cannot replace the files.
    """
    record, passages = read_record(folder), manifest.stages.get("passages")
    params = passages.params if passages else {}
    try:
        hashes = msgspec.convert(params.get("corpus"), list[tuple[str, str]])
        readers = msgspec.convert(params.get("readers"), dict[str, str])
    except msgspec.ValidationError:  # an earlier version wrote it
        hashes, readers = [], {}
    paths = tuple(map(Path, record.corpus))
    sha256_of = {path: sha256 for path, (_, sha256) in zip(paths, hashes)}
    sources = remembered(folder)
    if sources is not None and all(path.exists() for path in paths):
        check_sources_exist(sources)
        return sources, sha256_of
    names = [path.name for path in paths]
    # tables name a source only by the name of its path
    names_fit = names == [name for name, _ in hashes] and len(names) == len(set(names)) > 0
    is_current = passages is not None and passages.version == all_stages()["passages"].version
    if record.openie or record.named or not (names_fit and is_current):
        do = "bring the files to the same place here, and run: gpu-rag update DIR SOURCE..."
        raise BadInput("the files of an index are not here, and its tables cannot stand for them", given=folder, do=do)
    stage_folder = checked_stage(folder, manifest, "passages")
    held = tuple(HeldSource(path, stage_folder, sha256_of[path], readers) for path in paths)
    return Sources(paths, removed=frozenset(record.removed), held=held), sha256_of


def _joined(parts: Mapping[Path, tuple[Sources, dict[Path, str]]], out: Path) -> Sources:
    """The sources of all indexes, each once. parts: results of `_sources_of`; out: the new index.

    Raises UsageError for different files with one path, different sources with one name, and different versions of a
    library that read the files.
    """
    corpus, openie, removed = set[Path](), set[Path](), set[str]()
    sha256_of, held, named = dict[Path, list[tuple[str, Any]]](), dict[Path, HeldSource](), dict[str, NamedSource]()
    readers: dict[str, str] = {}
    for folder, (part, hashes) in parts.items():
        # a hash leaves out files that were removed; files that are here are read again, without what any index removed
        left_out = None if part.held else frozenset(key for key in part.removed if key.startswith(FILE))
        for path, sha256 in hashes.items():
            others = sha256_of.setdefault(path, [])
            if any(sha != sha256 and (None in (left_out, without) or left_out == without) for sha, without in others):
                do = "run gpu-rag update on the older index; or, if they are two files, give one another name first"
                raise UsageError("two indexes have one file with other content", given=f"{path} in {folder}", do=do)
            others.append((sha256, left_out))
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
    corpus_paths, openie_paths = (tuple(sorted(paths, key=os.fsencode)) for paths in (corpus, openie))
    still_held = tuple(source for path, source in held.items() if path not in here)
    sources = Sources(corpus_paths, openie_paths, False, out / EDITS, removed=frozenset(removed), held=still_held)
    return replace(sources, named=tuple(named[name] for name in sorted(named)))


def _is_own_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()  # the index may belong to another user


def _join_edits(folders: Sequence[Path], out: Path) -> None:
    """Write the manual changes of all indexes to the new one. Files that differ are joined: each line once, sorted."""
    files: dict[str, set[bytes]] = {}
    for path in (path for folder in folders for path in sorted((folder / EDITS).glob("*")) if _is_own_file(path)):
        files.setdefault(path.name, set()).add(path.read_bytes())
    for name, contents in files.items():
        lines = sorted({line for content in contents for line in content.splitlines()})
        joined = contents.pop() if len(contents) == 1 else b"".join(line + b"\n" for line in lines)
        with storage_errors(out):
            (out / EDITS).mkdir(parents=True, exist_ok=True)
        write_atomic(out / EDITS / name, joined)
