"""Changes of an index: documents that are added, updated and removed.

A change alters the list of sources that the index remembers, and the hashes of what was removed from them. Then the
ordinary build runs. The digest is that of a build of the changed list from nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gpu_rag.api.arguments import PathLike, SettingsLike, checked_path, checked_paths, checked_text
from gpu_rag.api.builds import run_build
from gpu_rag.api.corpus import corpus_files, texts_file, written
from gpu_rag.api.indexes import Index
from gpu_rag.errors import BadInput, GpuRagError, IndexLocked, UsageError
from gpu_rag.index import index as opened
from gpu_rag.index import tables
from gpu_rag.index.folder import EDITS, RECEIPTS, TUNED, WriteLock, has_readers
from gpu_rag.index.manifest import Manifest, mend_manifest
from gpu_rag.index.receipt import PENDING, Receipt, hashes_in, read_receipt, receipt_of, still_there
from gpu_rag.index.recorded import remembered, removed_from
from gpu_rag.index.removed import DOCUMENT, FILE, MEMBER, key_of
from gpu_rag.index.stages.passages import are_of_nodes
from gpu_rag.index.stages.rejected import short_name
from gpu_rag.index.where import matching
from gpu_rag.index.work import Progress, Sources
from gpu_rag.methods.registry import hooks
from gpu_rag.models.embed.cache import clear
from gpu_rag.models.llm.cache import keep_replies
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.models.packaged import cache_dir
from gpu_rag.sources.corpus import files_to_read, read_corpus
from gpu_rag.types import Document

ROW = ("id", "file", "line")  # of a document


class Changing(TypedDict, total=False):
    """The keyword arguments of a change. They mean the same as for `build`."""

    settings: SettingsLike
    llm: str | LLM | None
    embedder: str | None
    api_key: ApiKeys
    progress: Progress | None


@dataclass(frozen=True)
class Change:
    """A change that was made. added, changed, removed: numbers of documents. copies: removed documents that another
    file has too, and that come from it now. receipt: of a removal."""

    index: Index
    added: int
    changed: int
    removed: int
    copies: int = 0
    receipt: Path | None = None


def add(index: PathLike, corpus: Any, **keywords: Unpack[Changing]) -> Change:
    """Add files, or documents in memory with ids, to an index. A file or document that was removed comes back.

    corpus: as for `build`; a document in memory replaces the one of its id. Files that the index has already are read
    again, and so are all its other sources. Raises as `build`, and BadInput if the index does not know its sources.
    """
    folder = _checked(index)
    sources = _sources_of(folder)
    in_memory = hasattr(corpus, "columns") or (
        isinstance(corpus, Sequence) and not isinstance(corpus, str) and not all(isinstance(p, Path) for p in corpus)
    )
    files = (_with_rows(folder, corpus),) if in_memory else corpus_files(corpus, folder)
    return _changed(folder, _lifted(_with_files(sources, files), files), **keywords)


def update(index: PathLike, sources: PathLike | Sequence[PathLike] = (), **keywords: Unpack[Changing]) -> Change:
    """Read the sources of an index again: new and changed files enter it, and files that are gone leave it.

    sources: files or folders that are added, or, if the index has a source of the same name, lie there now. Raises as
    `add`.
    """
    folder = _checked(index)
    paths = [path.absolute() for path in corpus_files(list(checked_paths("sources", sources)), folder)]
    known = remembered(folder)
    if known is None:
        known = _named_again(folder, paths)
    names = {path.name for path in paths}
    moved = {source.name: path for source in known.named for path in paths if source.path.name == path.name}
    named = tuple(replace(source, path=moved.get(source.name, source.path)) for source in known.named)
    kept = tuple(path for path in known.corpus if path.name not in names)
    return _changed(folder, _with_files(replace(known, corpus=kept, named=named), paths), **keywords)


def remove(
    index: PathLike,
    *,
    documents: str | Sequence[str] = (),
    files: PathLike | Sequence[PathLike] = (),
    where: str = "",
    forget: bool = False,
    receipt: PathLike | None = None,
    **keywords: Unpack[Changing],
) -> Change:
    """Remove documents from an index, so that no byte of its folder holds their texts, and write a receipt.

    A document that leaves with its file, and that another file has too, stays, see `Change.copies`.

    documents: ids. files: files or folders of the corpus, as the index names them or as paths. where: a filter by
    metadata. Removed documents stay out in later builds, until `add` names their file. forget: also clear the vector
    cache of this machine. receipt: its file; by default one in the folder `receipts` of the index.

    Model replies that no stage needs, plan.json and the results of `tune` leave the index too. Raises BadInput for a
    name that the index lacks, UsageError for nodes of knowledge bases and for the last document, IndexLocked while a
    process reads the index, and as `add`.
    """
    folder = _checked(index)
    if has_readers(folder):
        do = "end it (in Python: delete the Index), then run again"
        raise IndexLocked("a process reads the index, and would keep what is removed", given=folder, do=do)
    old = opened.Index(folder, Manifest.read(folder).without_stale(), "cpu")
    pending = _pending(folder, old)
    ids = [checked_text("documents", id) for id in ([documents] if isinstance(documents, str) else documents)]
    names = [str(path) for path in checked_paths("files", files)] if files else []
    sources = _sources_of(folder, missing_is_error=False)
    chosen = _chosen(old, sources, ids, names, checked_text("where", where), pending is not None)
    sources = _without(old, sources, chosen, [_name_in(name, sources) for name in names], folder)
    leaving = receipt_of(old, chosen)
    if pending is not None:
        leaving = _joined(leaving, pending)
    with WriteLock(folder):
        leaving.write(folder / PENDING)
        for name in ("plan.json", TUNED):
            (folder / name).unlink(missing_ok=True)
        for forget_names in hooks("forget"):
            forget_names(folder / EDITS, leaving.names)
    before = {record.folder for record in old.manifest.stages.values()}
    files_of = _files_of(old, chosen)
    used: set[str] = set()
    change = _changed(folder, sources, used_replies=used, **keywords)
    with WriteLock(folder):
        keep_replies(folder / "replies.sqlite", used)
    if forget:
        clear(cache_dir())
    new = change.index
    now = _files_of(new, np.ones(new.documents.num_rows, bool))
    copies = np.array([id in files_of and file != files_of[id] for id, file in now.items()])
    stays, present = receipt_of(new, copies), hashes_in(new)
    gone = msgspec.structs.replace(
        leaving,
        documents=leaving.documents - stays.documents,
        passages=leaving.passages - stays.passages,
        names=leaving.names - present.names,
        after=new.manifest.digest(),
    )
    faults = [*still_there(gone, new), *_left_over(folder, new.manifest)]
    if faults:
        do = "run the same command again when no other process uses the index"
        raise GpuRagError("the removal is not complete", given="; ".join(faults), do=do)
    made = (r for r in new.manifest.stages.values() if r.folder not in before)
    rewritten = tuple(sorted(f"{record.folder}/{file}" for record in made for file in record.files))
    gone = msgspec.structs.replace(gone, files=rewritten, caches_cleared=forget)
    path = checked_path("receipt", receipt or folder / RECEIPTS / f"{gone.after[:16]}.json")
    gone.write(path)
    (folder / PENDING).unlink()
    return replace(change, copies=int(copies.sum()), receipt=path)


def _checked(index: object) -> Path:
    """The folder of an index that was made. Raises BadInput."""
    folder = checked_path("index", index)
    mend_manifest(folder)
    Manifest.read(folder)
    return folder


def _sources_of(folder: Path, missing_is_error: bool = True) -> Sources:
    """The sources that an index remembers. Raises BadInput if it knows none on this machine, or if one is gone."""
    sources = remembered(folder)
    if sources is None:
        given = f"{folder}, made on another machine or by an earlier version"
        do = "name them once: gpu-rag update DIR SOURCE..., or gpu-rag index with all of them"
        raise BadInput("the index does not know where its sources lie", given=given, do=do)
    if missing_is_error:
        _check_there(sources)
    return sources


def _check_there(sources: Sources) -> None:
    paths = [*sources.corpus, *sources.openie, *(source.path for source in sources.named)]
    for path in paths:
        if not path.exists():
            do = "bring it back; or name its new place: gpu-rag update DIR PATH; or gpu-rag remove DIR --file NAME"
            raise BadInput("a source of the index is gone, and its documents are read from it", given=path, do=do)


def _named_again(folder: Path, paths: Sequence[Path]) -> Sources:
    """No sources, for an index whose sources `paths` names again. Raises BadInput if one of them is missing."""
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
    """The sources with further files. A file in a folder of the corpus is read with it."""
    corpus = list(sources.corpus)
    for file in (path.absolute() for path in files):
        if not any(file == path or file.is_relative_to(path) for path in corpus):
            corpus.append(file)
    return replace(sources, corpus=tuple(sorted(corpus, key=os.fsencode)))


def _lifted(sources: Sources, files: Iterable[Path]) -> Sources:
    """The sources without removals of these files, and of documents in them."""
    lifted: set[str] = set()
    for file in (path.absolute() for path in files) if sources.removed else ():
        under = next(path for path in sources.corpus if file == path or file.is_relative_to(path))
        for path in (file, *(file / name for name, _ in _files(file))):
            name = short_name(str(path), sources.corpus)
            lifted |= {key_of(kind, name) for kind in (FILE, MEMBER)}
        above = "" if file == under else "".join(f"{part}/" for part in file.relative_to(under).parts[:-1])
        ids = (row.id for row in read_corpus([file]) if isinstance(row, Document))
        lifted |= {key_of(DOCUMENT, id) for document in ids for id in (document, f"{above}{document}")}
    return replace(sources, removed=sources.removed - lifted)


def _with_rows(folder: Path, corpus: Any) -> Path:
    """Add documents in memory to their file, and return its path. Raises UsageError for one without an id."""
    path, rows = texts_file(folder), _rows(texts_file(folder))
    named = (isinstance(row, Mapping) and row.get("id") for row in corpus) if isinstance(corpus, Sequence) else ()
    if not all(named) or "id" not in getattr(corpus, "columns", ("id",)):
        raise UsageError(
            "a document to add has no id", expected="{'id': ..., 'text': ...}; an id replaces its document"
        )
    before = path.read_bytes() if path.is_file() else None
    corpus_files(corpus, folder)  # checks the rows and writes them
    added = _rows(path)
    ids = {str(row.get("id")) for row in added}
    if before is not None:
        written([*(row for row in rows if str(row.get("id")) not in ids), *added], folder)
    return path


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []


# --- documents to remove ---------------------------------------------------------------------------


def _chosen(
    old: opened.Index, sources: Sources, ids: Sequence[str], files: Sequence[str], where: str, may_be_none: bool
) -> np.ndarray:
    """bool[n documents]: True for documents that leave the index. Raises BadInput and UsageError."""
    table = old.documents
    chosen = np.zeros(table.num_rows, bool)
    for id in ids:
        row = old.document_rows.get(id)
        if row is None and not may_be_none:
            raise BadInput("no such document", given=id, expected="the id of a document of the index")
        if row is not None:
            chosen[row] = True
    file_of, listed = table["file"].to_pylist(), _listed(sources)
    for given in files:
        name = _name_in(given, sources)
        rows = [row for row, file in enumerate(file_of) if _is_of(file, name)]
        if not (rows or any(_is_of(file, name) for file in listed) or may_be_none):
            expected = f"a file as the index names it, such as {file_of[0]}" if file_of else "a file of the corpus"
            raise BadInput("no document of the index is from this file", given=given, expected=expected)
        chosen[rows] = True
    if where:
        chosen |= matching(where, old.metadata)
    if not (ids or files or where or may_be_none):
        raise UsageError("nothing is named to remove", expected="--doc ID, --file F or --where EXPR")
    if (chosen & are_of_nodes(old.folder("passages"), table["id"])).any():
        do = "remove it from the files of the knowledge base, then run gpu-rag update DIR"
        raise UsageError("the text of a node is no document of the corpus", do=do)
    if len(chosen) and chosen.all() and not sources.named:
        raise UsageError("these are all documents of the index", do="remove its folder")
    return chosen


def _name_in(given: str, sources: Sources) -> str:
    """A file as the index names it."""
    path = Path(given).absolute()
    inside = any(path == source or path.is_relative_to(source) for source in sources.corpus)
    return short_name(str(path), sources.corpus) if inside else given.rstrip("/")


def _without(old: opened.Index, sources: Sources, chosen: np.ndarray, named: Sequence[str], folder: Path) -> Sources:
    """The sources without the chosen documents and the files `named`.

    A source that is named, or is one removed document, is dropped. A named file, or one that is a removed document,
    counts as missing from its folder, so that the index equals one of a corpus without it. Rows that this program wrote
    leave their file. Other rows stay out by their ids.
    """
    table, own = old.documents, texts_file(folder)
    removed, rows, dropped = set(sources.removed), set[str](), set[str]()
    sizes = Counter(table["file"].to_pylist())
    listed, files = _listed(sources), list(named)
    for id, file, line in (row for out, row in zip(chosen, zip(*(table[n].to_pylist() for n in ROW))) if out):
        if any(_is_of(file, name) for name in named):
            continue
        if file == own.name and own.absolute() in sources.corpus:
            rows.add(id)
        elif line or sizes[file] > 1 or file not in listed:
            removed.add(key_of(DOCUMENT, id))
        else:
            files.append(file)
    for file in files:
        if file in {path.name for path in sources.corpus}:
            dropped.add(file)
        else:
            is_listed = any(_is_of(name, file) for name in listed)
            removed.add(key_of(FILE if is_listed else MEMBER, file))
    corpus = tuple(path for path in sources.corpus if path.name not in dropped)
    kept = tuple(source for source in sources.named if source.kind != "documents" or source.path in corpus)
    left = replace(sources, corpus=corpus, named=kept, removed=frozenset(removed))
    _check_there(left)  # before anything is written
    if rows:
        written([row for row in _rows(own) if str(row.get("id")) not in rows], folder)
    if own.absolute() in sources.corpus and own.name in dropped:
        own.unlink(missing_ok=True)
    return left


def _listed(sources: Sources) -> set[str]:
    """All files and sources of the corpus, as the index names them."""
    below = (short_name(str(path / name), sources.corpus) for path in sources.corpus for name, _ in _files(path))
    return {*(path.name for path in sources.corpus), *below}


def _files(path: Path) -> list[tuple[str, Path | None]]:
    return list(files_to_read(path)) if path.is_dir() else []


def _is_of(file: str, source: str) -> bool:
    """Whether a file, as the index names it, is a source or lies in it."""
    return file == source or file.startswith(f"{source}/")


def _files_of(index: opened.Index, chosen: np.ndarray) -> dict[str, str]:
    """{id: file} of documents. chosen: bool[n documents]."""
    table = index.documents.filter(pa.array(chosen)) if len(chosen) else index.documents
    return dict(zip(table["id"].to_pylist(), table["file"].to_pylist()))


def _pending(folder: Path, old: opened.Index) -> Receipt | None:
    """The removal that was interrupted after its documents had left the index, or None."""
    if not (folder / PENDING).is_file():
        return None
    receipt, present = read_receipt(folder / PENDING), hashes_in(old)
    rest = {kind: getattr(receipt, kind) - getattr(present, kind) for kind in ("documents", "passages", "names")}
    return msgspec.structs.replace(receipt, **rest) if rest["documents"] else None


def _joined(one: Receipt, other: Receipt) -> Receipt:
    sets = {kind: getattr(one, kind) | getattr(other, kind) for kind in ("documents", "passages", "names")}
    return msgspec.structs.replace(one, before=other.before, **sets)


def _left_over(folder: Path, manifest: Manifest) -> list[str]:
    """Folders of stages that the index no longer names."""
    named = {record.folder for record in manifest.stages.values()}
    return sorted({f"stages/{path.name}" for path in (folder / "stages").iterdir()} - named)


# --- the build -------------------------------------------------------------------------------------


def _changed(
    folder: Path, sources: Sources, *, used_replies: set[str] | None = None, progress: Progress | None = None,
    **keywords: Any,
) -> Change:  # fmt: skip
    """Build the index of these sources, and count the documents that differ."""
    before = _contents(opened.Index(folder, Manifest.read(folder), "cpu"))
    index = run_build(sources, folder, progress=progress, used_replies=used_replies, methods=(), **keywords)
    after = _contents(index)
    n_changed = sum(before.get(id, content) != content for id, content in after.items())
    return Change(index, len(after.keys() - before.keys()), n_changed, len(before.keys() - after.keys()))


def _contents(index: opened.Index) -> dict[str, int]:
    """A hash of the passages of each document, by its id. Memory: about 150 bytes a document."""
    contents: dict[str, int] = {}
    if "passages" not in index.stages:
        return contents
    path, names = index.folder("passages") / "passages.parquet", ["doc_id", "id", "title", "text"]
    for batch in tables.read_batches(path, tables.PASSAGES, names):
        for document, *passage in zip(*(batch[name].to_pylist() for name in names)):
            content = xxhash.xxh3_64_intdigest("\0".join(passage).encode("utf-8", "surrogatepass"))
            contents[document] = contents.get(document, 0) ^ content
    return contents
