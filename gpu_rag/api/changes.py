"""Additions to an index and updates of it; `removal` has the third change.

A change alters the list of sources that the index remembers, and the hashes of removed documents. Then the
ordinary build runs. The digest equals the digest of a new index of the changed list.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import pyarrow.compute as pc

from gpu_rag.api.arguments import IndexLike, PathLike, SettingsLike, checked_path, checked_paths
from gpu_rag.api.builds import run_build
from gpu_rag.api.corpus import columns_of, corpus_files, is_table, own_texts, texts_file, write_texts
from gpu_rag.api.indexes import Index
from gpu_rag.api.standing import check_sources_exist
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index import index as opened
from gpu_rag.index import tables
from gpu_rag.index.folder import EDITS
from gpu_rag.index.manifest import Manifest, mend_manifest
from gpu_rag.index.recorded import remembered, removed_from
from gpu_rag.index.removed import DOCUMENT, FILE, MEMBER, key_of
from gpu_rag.index.stages.rejected import short_name
from gpu_rag.index.work import Progress, Sources
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.sources.corpus import files_to_read, read_corpus, sorted_paths
from gpu_rag.types import Document

_log = logging.getLogger(__name__)


class Changing(TypedDict, total=False):
    """The keyword arguments of a change. They mean the same as for `build`."""

    settings: SettingsLike
    llm: str | LLM | None
    embedder: str | None
    api_key: ApiKeys
    progress: Progress | None


@dataclass(frozen=True)
class Change:
    """A change that was made. added, changed, removed: numbers of documents. copies: documents that stay, because
    another file has them too or because they have the text of a removed one; copy_ids: their ids. receipt: the file
    that proves a removal."""

    index: Index
    added: int
    changed: int
    removed: int
    copies: int = 0
    copy_ids: tuple[str, ...] = ()
    receipt: Path | None = None


def add(index: IndexLike, corpus: Any, **keywords: Unpack[Changing]) -> Change:
    """Add files, or documents in memory with ids, to an index. A file or document that was removed comes back.

    corpus: as for `build`; a document in memory replaces one in memory with the same id. All other sources of the index
    must exist; changed sources are read again. Raises as `build`, and BadInput if the index does not know its sources.
    """
    folder = checked_folder(index)
    sources = known_sources(folder)
    in_memory = is_table(corpus) or (
        isinstance(corpus, Sequence) and not isinstance(corpus, str) and not all(isinstance(p, Path) for p in corpus)
    )
    files = (_with_rows(folder, corpus, sources),) if in_memory else corpus_files(corpus, folder)
    return rebuild(folder, _restored(_with_files(sources, files), files), **keywords)


def update(index: IndexLike, sources: PathLike | Sequence[PathLike] = (), **keywords: Unpack[Changing]) -> Change:
    """Read the sources of an index again: new and changed files enter it, and files that are gone leave it.

    sources: files or folders to add; if the index has a source of the same name, this is its new place. Raises as
    `add`.
    """
    folder = checked_folder(index)
    paths = [path.absolute() for path in corpus_files(list(checked_paths("sources", sources)), folder)]
    known = remembered(folder)
    if known is None:
        known = _forgotten(folder, paths)
    names = {path.name for path in paths}
    moved = {source.name: path for source in known.named for path in paths if source.path.name == path.name}
    named = tuple(replace(source, path=moved.get(source.name, source.path)) for source in known.named)
    kept = tuple(path for path in known.corpus if path.name not in names)
    updated = _with_files(replace(known, corpus=kept, named=named), paths)
    check_sources_exist(updated)
    return rebuild(folder, updated, **keywords)


def checked_folder(index: object) -> Path:
    """The path of an index folder that has an index. Raises BadInput."""
    folder = checked_path("index", index)
    mend_manifest(folder)
    Manifest.read(folder)
    return folder


def known_sources(folder: Path, missing_is_error: bool = True) -> Sources:
    """The sources that an index remembers. Raises BadInput if it knows none on this machine, or if one is gone."""
    sources = remembered(folder)
    if sources is None:
        given = f"{folder}, made on another machine or by an earlier version"
        do = "name them once: gpu-rag update DIR SOURCE..., or gpu-rag index with all of them"
        raise BadInput("the index does not know where its sources lie", given=given, do=do)
    if missing_is_error:
        check_sources_exist(sources)
    return sources


def _forgotten(folder: Path, paths: Sequence[Path]) -> Sources:
    """Empty sources for an index that does not know its own. Raises BadInput if `paths` lacks one of its sources."""
    recorded = Manifest.read(folder).sources
    lacking = sorted({*recorded.get("corpus", ())} - {path.name for path in paths})
    if recorded.get("openie") or recorded.get("named"):
        do = "run gpu-rag index with all of them again"
        raise BadInput("the index does not know where its sources lie", given=folder, do=do)
    if lacking:
        what = "the index does not know where its sources lie, and not all are named"
        raise BadInput(what, given=f"without {', '.join(lacking)}", expected="all of them")
    return Sources(edits=folder / EDITS, removed=removed_from(folder))


def _with_files(sources: Sources, files: Iterable[Path]) -> Sources:
    """The sources with more files, except files that lie in a folder of the corpus."""
    corpus = list(sources.corpus)
    for file in (path.absolute() for path in files):
        if not any(file.is_relative_to(path.absolute()) for path in corpus):
            corpus.append(file)
    return replace(sources, corpus=sorted_paths(corpus))


def _restored(sources: Sources, files: Iterable[Path]) -> Sources:
    """The sources in which these files, and documents in them, no longer count as removed."""
    restored: set[str] = set()
    for file in (path.absolute() for path in files) if sources.removed else ():
        under = next(path for path in sources.corpus if file == path or file.is_relative_to(path))
        for path in (file, *(file / name for name, _ in files_below(file))):
            name = short_name(str(path), sources.corpus)
            restored |= {key_of(kind, name) for kind in (FILE, MEMBER)}
        above = "" if file == under else "".join(f"{part}/" for part in file.relative_to(under).parts[:-1])
        ids = (row.id for row in read_corpus([file]) if isinstance(row, Document))
        restored |= {key_of(DOCUMENT, id) for document in ids for id in (document, f"{above}{document}")}
    return replace(sources, removed=sources.removed - restored)


def _with_rows(folder: Path, corpus: Any, sources: Sources) -> Path:
    """Add documents in memory to their file, and return its path. Raises UsageError for one without an id, BadInput for
    the id of a document that another file holds: which of both is read would depend on the names of the files."""
    path = own_texts(folder, sources.corpus)
    rows = rows_in(path)
    named = (isinstance(row, Mapping) and row.get("id") for row in corpus) if isinstance(corpus, Sequence) else ()
    if not all(named) or (is_table(corpus) and "id" not in (columns_of(corpus) or ())):
        expected = "{'id': ..., 'text': ...}; an id replaces its document"
        raise UsageError("a document to add has no id", expected=expected)
    before = path.read_bytes() if path.is_file() else None
    corpus_files(corpus, folder, path)  # checks the rows and writes them
    added = rows_in(path)
    ids = {str(row.get("id")) for row in added}
    if files := _held_elsewhere(opened.Index(folder, Manifest.read(folder), "cpu"), ids, path.name):
        path.unlink() if before is None else path.write_bytes(before)
        do = "change that file and run gpu-rag update DIR, or give the document another id"
        raise BadInput("a file has a document of this id", given=f"{min(files)} of {files[min(files)]}", do=do)
    if before is not None:
        write_texts([*(row for row in rows if str(row.get("id")) not in ids), *added], path)
    elif path.name != (other := texts_file(folder)).name:
        what = "not a source of this index, so not read"
        _log.warning("gpu-rag: %s: %s; gpu-rag add %s %s adds its documents", what, other, folder, other)
    return path


def _held_elsewhere(index: opened.Index, ids: set[str], own: str) -> dict[str, str]:
    """{id: file} of documents of the index with these ids that another file than `own` holds."""
    rows = {id: index.document_rows.get(id) for id in ids} if "passages" in index.stages else {}
    files = {id: str(index.documents["file"][row].as_py()) for id, row in rows.items() if row is not None}
    return {id: file for id, file in files.items() if file != own}


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of a `texts_file`; [] if there is none."""
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []


def files_below(path: Path) -> list[tuple[str, Path | None]]:
    """`files_to_read` of a folder of the corpus; [] for a file."""
    return list(files_to_read(path)) if path.is_dir() else []


# --- the build -------------------------------------------------------------------------------------


def rebuild(
    folder: Path, sources: Sources, *, used_replies: set[str] | None = None, progress: Progress | None = None,
    **keywords: Any,
) -> Change:  # fmt: skip
    """Build the index from these sources, and count the documents that differ."""
    before, was = _contents(opened.Index(folder, Manifest.read(folder), "cpu"))
    index = run_build(sources, folder, progress=progress, used_replies=used_replies, methods=(), **keywords)
    after, now = _contents(index)
    both, old, new = np.intersect1d(before, after, assume_unique=True, return_indices=True)
    return Change(index, len(after) - len(both), int((was[old] != now[new]).sum()), len(before) - len(both))


def _contents(index: opened.Index) -> tuple[np.ndarray, np.ndarray]:
    """Hashes, for this process, of the id of each document and of its passages: i64[n] each. Memory: 16 bytes a
    passage."""
    hashes, names = [np.zeros((2, 0), np.int64)], ["id", "title", "text"]
    path = index.folder("passages") / "passages.parquet" if "passages" in index.stages else None
    for batch in tables.read_batches(path, tables.PASSAGES, ["doc_id", *names]) if path else ():
        passages = pc.binary_join_element_wise(*(batch[name] for name in names), "\0")
        rows = [list(map(hash, column.to_pylist())) for column in (batch["doc_id"], passages)]
        hashes.append(np.array(rows, np.int64))
    of_documents, of_passages = np.concatenate(hashes, 1)
    documents, document = np.unique(of_documents, return_inverse=True)
    contents = np.zeros(len(documents), np.int64)
    np.bitwise_xor.at(contents, document, of_passages)
    return documents, contents
