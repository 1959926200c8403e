"""Removal of documents: no byte of the index folder holds them afterwards, and a receipt proves it."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Unpack

import msgspec
import numpy as np
import pyarrow as pa

from gpu_rag.api.arguments import PathLike, checked_path, checked_paths, checked_text
from gpu_rag.api.changes import (
    Change,
    Changing,
    checked_folder,
    files_below,
    known_sources,
    rebuild,
    rows_in,
)
from gpu_rag.api.corpus import own_texts, write_texts
from gpu_rag.api.parts import has_older_vectors, texts_of_vectors
from gpu_rag.api.standing import check_sources_exist
from gpu_rag.errors import BadInput, GpuRagError, IndexLocked, UsageError
from gpu_rag.index import index as opened
from gpu_rag.index import tables
from gpu_rag.index.folder import EDITS, RECEIPTS, TUNED, is_held, writing
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.receipt import PENDING, Receipt, hashes_in, read_receipt, receipt_of, still_there
from gpu_rag.index.removed import DOCUMENT, FILE, MEMBER, key_of
from gpu_rag.index.stages.passages import are_of_nodes
from gpu_rag.index.stages.rejected import short_name
from gpu_rag.index.stages.search import rows_by_key
from gpu_rag.index.where import matching
from gpu_rag.index.work import Sources
from gpu_rag.methods.registry import hooks
from gpu_rag.models.embed.cache import clear, erase, keys_of
from gpu_rag.models.llm.cache import keep_replies
from gpu_rag.models.packaged import cache_dir

ROW = ("id", "file", "line")  # columns of a document
READERS_S = 30.0  # maximum wait for processes that read the old index


def remove(
    index: PathLike,
    *,
    documents: str | Sequence[str] | None = None,
    files: PathLike | Sequence[PathLike] | None = None,
    named: str | Sequence[str] | None = None,
    where: str | None = None,
    forget: bool = False,
    receipt: PathLike | None = None,
    **keywords: Unpack[Changing],
) -> Change:
    """Remove documents from an index, so that no byte of its folder holds their texts, and write a receipt.

    Documents that another file has too, or that have the same text, stay in the index, see `Change.copies`.

    documents: ids. files: files or folders of the corpus, as the index names them or as paths. named: named sources;
    the receipt does not list knowledge graphs and bases. where: a filter by metadata. Removed documents stay out in
    later builds, until `add` names their file. forget: also erase the vectors of removed texts from the vector cache of
    this machine. The whole cache is cleared if an interrupted removal has left no such texts to read, and for an index
    with a knowledge base, since answering embeds its sentences and paths. receipt: the file to write, by default in the
    folder `receipts` of the index.

    Model replies that no stage needs, plan.json and the results of `tune` leave the index too. Raises BadInput for a
    name that the index lacks, UsageError for nodes of knowledge bases and for the last document, IndexLocked if a
    process still reads the removed texts after READERS_S (the same call completes the removal later), and as `add`.
    """
    if isinstance(index, opened.Index):  # this process would wait for itself
        raise UsageError("an open index reads its texts", given=repr(index), expected="its path", do="delete the Index")
    folder = checked_folder(index)
    old = opened.Index(folder, Manifest.read(folder).without_stale(), "cpu")
    pending = _pending(folder, old)
    ids = [checked_text("documents", id) for id in ([documents] if isinstance(documents, str) else documents or ())]
    names = [str(path) for path in checked_paths("files", files)] if files else []
    sources = known_sources(folder, missing_is_error=False)
    given = [checked_text("named", name) for name in ([named] if isinstance(named, str) else named or ())]
    sources, paths = _without_named(sources, given, pending is not None)
    names += paths
    listed, may_be_none = _listed(sources), pending is not None or bool(given)
    chosen = _chosen(old, sources, listed, ids, names, checked_text("where", where, ""), may_be_none)
    sources = _without(old, sources, listed, chosen, [_name_in(name, sources) for name in names], folder)
    leaving = receipt_of(old, chosen)
    if pending is not None:
        leaving = pending.joined(leaving)
    _begin(folder, leaving)
    files_of, used = _files_of(old, chosen), set[str]()
    texts = {text for id, text in _texts_of(old).items() if id in files_of}
    keys = _keys_of_texts(folder, old.manifest) if forget else None
    change = rebuild(folder, sources, used_replies=used, **keywords)
    if keys is not None:
        are_known = pending is None or pending.caches_cleared
        _erase_vectors(folder, old.manifest, change.index.manifest, keys if are_known else None)
        leaving = msgspec.structs.replace(leaving, caches_cleared=True)
        leaving.write(folder / PENDING)
    _wait_for_readers(folder, change.index.manifest)
    with writing(folder):
        for left_over in _left_over(folder, change.index.manifest):
            shutil.rmtree(folder / left_over)
        keep_replies(folder / "replies.sqlite", used)
    gone, copies = _proved(leaving, old.manifest, change.index, files_of, texts, folder)
    path = checked_path("receipt", receipt or _receipt_file(folder, gone))
    gone.write(path)
    (folder / PENDING).unlink()
    return replace(change, copies=gone.copies, copy_ids=copies, receipt=path)


def _receipt_file(folder: Path, gone: Receipt) -> Path:
    """A new file for a receipt. An index may be in one state after several removals."""
    names = chain([""], (f"-{number}" for number in count(2)))
    files = (folder / RECEIPTS / f"{gone.after[:16]}{name}.json" for name in names)
    return next(file for file in files if not file.exists())


def _keys_of_texts(folder: Path, manifest: Manifest) -> np.ndarray:
    """The vector cache's keys u64[n, 2] of all texts that have vectors in an index."""
    return np.concatenate([keys_of(()), *(keys_of(texts) for _, texts in texts_of_vectors(folder, manifest))])


def _erase_vectors(folder: Path, old: Manifest, new: Manifest, keys: np.ndarray | None) -> None:
    """Erase the vectors of texts that left the index from the cache. keys: keys of all its old texts; None: not
    known."""
    if keys is None or "kb" in old.stages or has_older_vectors(old):
        clear(cache_dir())
    else:
        erase(cache_dir(), keys[rows_by_key(keys, _keys_of_texts(folder, new)) < 0])


def _begin(folder: Path, leaving: Receipt) -> None:
    """Record that a removal begins, and delete files outside the stages that may hold removed texts."""
    with writing(folder):
        leaving.write(folder / PENDING)
        for name in ("plan.json", TUNED):
            (folder / name).unlink(missing_ok=True)
        for forget_names in hooks("forget"):
            forget_names(folder / EDITS, leaving.names)


def _wait_for_readers(folder: Path, manifest: Manifest) -> None:
    """Wait until no process reads old passages. Raises IndexLocked."""
    until = time.monotonic() + READERS_S
    while any(is_held(folder / old) for old in _left_over(folder, manifest) if old.startswith("stages/passages-")):
        if time.monotonic() > until:
            what = "the documents have left the index, but a process still reads its old files"
            do = "end it (in Python: delete the Index), then run the same command again"
            raise IndexLocked(what, given=folder, do=do)
        time.sleep(0.1)


def _proved(
    leaving: Receipt,
    before: Manifest,
    new: opened.Index,
    files_of: Mapping[str, str],
    texts: set[int],
    folder: Path,
) -> tuple[Receipt, tuple[str, ...]]:
    """The receipt of a removal after its build, and the ids of its copies.

    files_of: the file of each document to remove; texts: their `_texts_of`. Raises GpuRagError if something is left.
    """
    now, texts_now = _files_of(new, np.ones(new.documents.num_rows, bool)), _texts_of(new)
    is_copy = [file != files_of[id] if id in files_of else texts_now[id] in texts for id, file in now.items()]
    copies = np.array(is_copy, bool)
    present = hashes_in(new)
    stays = msgspec.structs.replace(receipt_of(new, copies), names=present.names)
    gone = msgspec.structs.replace(leaving.without(stays), after=new.manifest.digest())
    faults = [*still_there(gone, new, present), *_left_over(folder, new.manifest)]
    if faults:
        do = "run the same command again when no other process uses the index"
        raise GpuRagError("the removal is not complete", given="; ".join(faults), do=do)
    old_folders = {record.folder for record in before.stages.values()}
    made = (record for record in new.manifest.stages.values() if record.folder not in old_folders)
    rewritten = tuple(sorted(f"{record.folder}/{file}" for record in made for file in record.files))
    copy_ids = tuple(id for id, copy in zip(now, is_copy) if copy)
    return msgspec.structs.replace(gone, files=rewritten, copies=len(copy_ids)), copy_ids


def _chosen(
    old: opened.Index,
    sources: Sources,
    listed: set[str],
    ids: Sequence[str],
    files: Sequence[str],
    where: str,
    may_be_none: bool,
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
    file_of = table["file"].to_pylist()
    for given in files:
        name = _name_in(given, sources)
        rows = [row for row, file in enumerate(file_of) if _is_of(file, name)]
        if not (rows or any(_is_of(file, name) for file in listed) or may_be_none):
            near = next((file for file in file_of if file.endswith(f"/{given}")), file_of[0] if file_of else "")
            expected = f"a file as the index names it, such as {near}" if file_of else "a file of the corpus"
            raise BadInput("no document of the index is from this file", given=given, expected=expected)
        chosen[rows] = True
    if where:
        chosen |= matching(where, old.metadata)
    if not (ids or files or where or may_be_none):
        raise UsageError("nothing is named to remove", expected="--doc ID, --file F, --source NAME or --where EXPR")
    if (chosen & are_of_nodes(old.folder("passages"), table["id"])).any():
        do = "remove it from the files of the knowledge base, then run gpu-rag update DIR"
        raise UsageError("the text of a node is not a document of the corpus", do=do)
    if len(chosen) and chosen.all() and not sources.named:
        raise UsageError("these are all documents of the index", do="remove its folder")
    return chosen


def _without_named(sources: Sources, names: Sequence[str], may_be_none: bool) -> tuple[Sources, list[str]]:
    """(sources without the knowledge graphs and bases of these names, paths of the document sources of these names, to
    be removed as files). may_be_none: names may be gone, because an interrupted removal goes on.

    Raises BadInput for an unknown name, UsageError if no source would stay.
    """
    known = {source.name: source for source in sources.named}
    unknown = [name for name in names if name not in known]
    if unknown and not may_be_none:
        expected = ", ".join(sorted(known)) or "an index with named sources"
        raise BadInput("no such source", given=unknown[0], expected=expected)
    staying = tuple(source for source in sources.named if source.name not in names or source.kind == "documents")
    if not staying and not sources.corpus:
        raise UsageError("these are all sources of the index", do="remove its folder")
    chosen = (known[name] for name in names if name in known)
    return replace(sources, named=staying), [str(source.path) for source in chosen if source.kind == "documents"]


def _name_in(given: str, sources: Sources) -> str:
    """A file as the index names it."""
    path = Path(given).absolute()
    inside = any(path == source or path.is_relative_to(source) for source in sources.corpus)
    return short_name(str(path), sources.corpus) if inside else given.rstrip("/")


def _without(
    old: opened.Index,
    sources: Sources,
    listed: set[str],
    chosen: np.ndarray,
    named: Sequence[str],
    folder: Path,
) -> Sources:
    """The sources without the chosen documents and the files `named`.

    A source is dropped if it is named or is itself a removed document; a file in a folder then counts as missing, so
    that the index equals one of a corpus without the file. Rows of `own_texts` leave their file. Other rows stay out
    by their ids.
    """
    table, own = old.documents, own_texts(folder, sources.corpus)
    removed, rows, dropped = set(sources.removed), set[str](), set[str]()
    sizes = Counter(table["file"].to_pylist())
    files = list(named)
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
    check_sources_exist(left)  # before anything is written
    if rows:
        write_texts([row for row in rows_in(own) if str(row.get("id")) not in rows], own)
    if own.absolute() in sources.corpus and own.name in dropped:
        own.unlink(missing_ok=True)
    return left


def _listed(sources: Sources) -> set[str]:
    """All files and sources of the corpus, as the index names them."""
    below = (short_name(str(path / name), sources.corpus) for path in sources.corpus for name, _ in files_below(path))
    return {*(path.name for path in sources.corpus), *below}


def _is_of(file: str, source: str) -> bool:
    """Whether a file, as the index names it, is a source or lies in it."""
    return file == source or file.startswith(f"{source}/")


def _files_of(index: opened.Index, chosen: np.ndarray) -> dict[str, str]:
    """{id: file} of documents. chosen: bool[n documents]."""
    table = index.documents.filter(pa.array(chosen)) if len(chosen) else index.documents
    return dict(zip(table["id"].to_pylist(), table["file"].to_pylist()))


def _texts_of(index: opened.Index) -> dict[str, int]:
    """{id: hash for this process of the passages} of documents."""
    path, texts = index.folder("passages") / "passages.parquet", dict[str, int]()
    for batch in tables.read_batches(path, tables.PASSAGES, ("doc_id", "text")):
        for document, text in zip(batch["doc_id"].to_pylist(), batch["text"].to_pylist()):
            texts[document] = hash((texts.get(document), text))
    return texts


def _pending(folder: Path, old: opened.Index) -> Receipt | None:
    """The removal that was interrupted after its documents had left the index, or None."""
    if not (folder / PENDING).is_file():
        return None
    receipt = read_receipt(folder / PENDING).without(hashes_in(old))
    return receipt if receipt.documents else None


def _left_over(folder: Path, manifest: Manifest) -> list[str]:
    """Stage folders that the index no longer uses."""
    named = {record.folder for record in manifest.stages.values()}
    return sorted({f"stages/{path.name}" for path in (folder / "stages").iterdir()} - named)
