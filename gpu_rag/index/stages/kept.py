"""Documents of files that did not change, from the tables of an earlier run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.database import Database
from gpu_rag.index.folder import sha256_text
from gpu_rag.index.removed import DOCUMENT, has_removed
from gpu_rag.index.stages.node_documents import SCHEMAS, Parts, Taken
from gpu_rag.index.stages.rejected import read_rejects, short_name
from gpu_rag.index.work import Sources, Work
from gpu_rag.models.fingerprint import file_sha256
from gpu_rag.sources.rows import shown
from gpu_rag.types import Reject

_VIEWS = (
    "CREATE VIEW kept_documents AS FROM earlier_documents WHERE file NOT IN (SELECT file FROM gone)",
    "CREATE VIEW kept_passages AS FROM earlier_passages WHERE doc_id IN (SELECT id FROM kept_documents)",
)
_COLUMNS = {
    "documents": "* EXCLUDE file_row_number FROM kept_documents JOIN earlier_about USING (file_row_number)",
    "passages": "* EXCLUDE file_row_number FROM kept_passages JOIN earlier_lines USING (file_row_number)",
}
ABOUT = "carried.parquet"  # metadata and language of each document by id, as its file gave them: a column of the
# table of metadata has one type, so it may hold others
_ABOUT = pa.schema([("metadata", pa.string()), ("language", pa.string())])
PASSAGE_ID = "its passage id "  # begins the reason of a reject because of the ids of its passages


class _Parameters(msgspec.Struct):
    """Parameters of the stage that name the sources, and what was removed from them."""

    corpus: list[tuple[str, str]]
    readers: dict[str, str]
    removed: list[str] = []


class _Carried(msgspec.Struct):
    """Checks of what the next run may take over. files: {sha256 of a name: sha256 of the file}; about: sha256 of
    ABOUT."""

    files: dict[str, str]
    about: str


@dataclass(frozen=True)
class Kept:
    """Documents and rejects of an earlier run that stay as they are.

    folder: tables of that run; names: names of the files that stay, as in `hashes`; gone: files whose documents do not
    stay; rejects: rejects of the files that stay, in their order; hashes: hashes of this run, see `file_hashes`.
    """

    folder: Path
    names: frozenset[str]
    gone: list[str]
    rejects: list[Reject]
    hashes: dict[str, str]

    def add_to(self, db: Database, sources: Sources, taken: Taken) -> bool:
        """Insert the documents that were not removed, and their passages. Returns False, and inserts nothing, if
        another document claimed one of their ids, since then one of the two is rejected or renamed.

        db: holds all other documents; taken: their ids.
        """
        for name in ("documents", "passages", "lines"):
            db.view(f"earlier_{name}", self.folder / f"{name}.parquet")
        db.view("earlier_about", self.folder / ABOUT)
        db.create("gone", pa.schema([("file", pa.string())]))
        db.add("gone", pa.table({"file": pa.array(self.gone, pa.string())}))
        db.run(*_VIEWS)
        if _meet(db, taken):
            return False
        db.run(*(f"INSERT INTO {name} BY NAME SELECT {columns}" for name, columns in _COLUMNS.items()))
        if sources.removed:
            db.create("removed", pa.schema([SCHEMAS["documents"].field("id")]))
            for batch in db.batches("SELECT id FROM kept_documents"):
                gone = pa.array([has_removed(sources, id) for id in batch["id"].to_pylist()], pa.bool_())
                db.add("removed", batch.filter(gone))
            for name, key in (("documents", "id"), ("passages", "doc_id")):
                db.run(f"DELETE FROM {name} WHERE {key} IN (SELECT id FROM removed)")
        return True


def _meet(db: Database, taken: Taken) -> bool:
    """Whether new documents and kept ones may have claimed the same id."""
    n_removed = len(taken.documents) - db.count("documents")  # a kept document may have claimed such an id first
    return bool(n_removed) or any(db.count(f"{name} JOIN kept_{name} USING (id)") for name in _COLUMNS)


def kept_files(work: Work, hashes: dict[str, str]) -> Kept | None:
    """The files of an earlier run that did not change, where only other files or the list of removed documents did.
    hashes: see `file_hashes`.

    None if something else changed; if other files may have influenced the rows of these, see `_are_apart`; and if a row
    was rejected because of a passage id.
    """
    folder, sources, carried = work.previous, work.sources, work.carried(np.uint8)
    if not folder or carried is None or sources.strict:
        return None
    try:
        before = msgspec.json.decode(carried.tobytes(), type=_Carried)
        new_removals = _new_removals(work.params, work.previous_params)
    except msgspec.MsgspecError:  # no build of this version wrote this index
        return None
    read = before.files
    keys = {name: sha256_text(name) for name in hashes}  # hashes, since all documents of a file may have been removed
    known = {keys[name]: sha256 for name, sha256 in hashes.items()}
    gone = {key for key, sha256 in read.items() if not sha256 or known.get(key) != sha256}
    if new_removals is None or len(gone) == len(read):
        return None
    if not _are_distinct(sources):
        return None
    rejects = list(read_rejects(folder / "rejects.jsonl"))
    documents = tables.read_table(folder / "documents.parquet", tables.DOCUMENTS, ["id", "file"])
    files = pc.unique(documents["file"]).to_pylist()
    files_read = {file: _key_in(read, file) for file in (*files, *(reject.file for reject in rejects))}
    if not (folder / ABOUT).is_file() or file_sha256(folder / ABOUT) != before.about:
        return None
    if not read.keys() >= {*files_read.values()} or any(reject.reason.startswith(PASSAGE_ID) for reject in rejects):
        return None
    left = {file for file, key in files_read.items() if key in gone}
    if left and not _are_apart(documents, rejects, left, sources):
        return None
    stay = [r for r in rejects if r.file not in left and not has_removed(sources, r.id)]
    stays = read.keys() - gone
    names = frozenset(name for name, key in keys.items() if key in stays)
    return Kept(folder, names, sorted(left), stay, hashes)


def _new_removals(params: Mapping[str, Any], earlier: Mapping[str, Any]) -> set[str] | None:
    """Documents that were removed since the parameters were `earlier`. None if more changed than the sources and these.
    Raises msgspec.ValidationError."""
    now, before = (msgspec.convert(given, _Parameters) for given in (params, earlier))
    others, others_before = (
        {name: value for name, value in given.items() if name not in _Parameters.__struct_fields__}
        for given in (params, earlier)
    )
    new = set(now.removed) - set(before.removed)
    only_sources = (
        not {"named", "part"} & others.keys()
        and others == others_before
        and all(len({name for name, _ in given.corpus}) == len(given.corpus) for given in (now, before))
        and before.readers.items() <= now.readers.items()
        and set(before.removed) <= set(now.removed)
        and all(key.startswith(DOCUMENT) for key in new)
    )
    return new if only_sources else None


def _key_in(keys: Collection[str], file: str) -> str:
    """The key of a file in `keys`, hashes of names, or of the archive or source that it lies in."""
    while (key := sha256_text(file)) not in keys and "/" in file:
        file = file.rpartition("/")[0]
    return key


def _are_apart(documents: pa.Table, rejects: list[Reject], gone: set[str], sources: Sources) -> bool:
    """Whether the rows of other files would be the same without the files that are `gone`. A row whose id is taken is
    rejected, or gets the id "FILE:ID". A context of questions, whose id is a hash, is dropped without a trace if
    another file has it."""
    rows = [*zip(documents["id"].to_pylist(), documents["file"].to_pylist()), *((r.id, r.file) for r in rejects)]
    left = {id for id, file in rows if id and file in gone}
    if any(map(re.compile(r"p_[0-9a-f]{12}").search, left)):
        return False
    stay = [id for id, file in rows if file not in gone]
    own = [id[place + 1 :] for id in stay for place, letter in enumerate(id) if letter == ":"]
    return left.isdisjoint((*own, *(r.id for r in rejects if r.file not in gone))) and not any(
        has_removed(sources, id) for id in own
    )


def _are_distinct(sources: Sources) -> bool:
    """Whether no source has the name of another one, or of a folder above it, so that a name tells the source."""
    names = [short_name(shown(path), sources.corpus) for path in sources.corpus]
    above = {folder for name in names for folder in accumulate(name.split("/")[:-1], "{}/{}".format)}
    return len({*names}) == len(names) and above.isdisjoint(names)


def carry_for_next(work: Work, hashes: dict[str, str], db: Database) -> None:
    """Carry for `kept_files` the hashes of the files, and metadata and languages of the documents in `db`, unless names
    stand for several files."""
    if _are_distinct(work.sources):
        known = {sha256_text(name): sha256 for name, sha256 in hashes.items()}
        with tables.TableWriter(work.out / ABOUT, _ABOUT) as about:
            for batch in db.batches("SELECT metadata, language FROM documents ORDER BY id"):
                about.add(batch.columns)
        carried = _Carried(known, file_sha256(work.out / ABOUT))
        work.carry(np.frombuffer(msgspec.json.encode(carried), np.uint8))


def in_order(kept: Kept, new: Iterable[Parts | Reject]) -> Iterator[Parts | Reject]:
    """The kept rejects between the items of a reading, in the order of the files."""
    place = {sha256_text(name): number for number, name in enumerate(kept.hashes)}
    waiting = iter(kept.rejects)
    next_kept = next(waiting, None)
    for item in new:
        if isinstance(item, Reject):
            here = place.get(_key_in(place, item.file), 0)  # 0: the file came after the hashes were made
            while next_kept and place[_key_in(place, next_kept.file)] < here:
                yield next_kept
                next_kept = next(waiting, None)
        yield item
    if next_kept:
        yield next_kept
        yield from waiting
