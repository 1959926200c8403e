"""Documents of files that did not change, from the tables of an earlier run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_rag.index import tables
from gpu_rag.index.database import Database
from gpu_rag.index.folder import sha256_text
from gpu_rag.index.metadata import FILE as METADATA
from gpu_rag.index.metadata import LANGUAGE, MOST_COLUMNS, read_metadata, rows_of, to_text
from gpu_rag.index.removed import DOCUMENT, has_removed
from gpu_rag.index.stages.held import rejects_of
from gpu_rag.index.stages.node_documents import SCHEMAS, Parts, Taken
from gpu_rag.index.stages.rejected import short_name
from gpu_rag.index.work import Sources, Work
from gpu_rag.sources.rows import shown
from gpu_rag.text.language import ENGLISH
from gpu_rag.types import Reject

_VIEWS = (
    "CREATE VIEW kept_documents AS FROM earlier_documents WHERE file NOT IN (SELECT file FROM gone)",
    "CREATE VIEW kept_passages AS FROM earlier_passages WHERE doc_id IN (SELECT id FROM kept_documents)",
)
_COLUMNS = {
    "documents": f"""* EXCLUDE file_row_number, '{ENGLISH}' AS language
        FROM kept_documents JOIN kept_metadata USING (file_row_number)""",
    "passages": "* EXCLUDE file_row_number FROM kept_passages JOIN earlier_lines USING (file_row_number)",
}
PASSAGE_ID = "its passage id "  # begins the reason of a reject because of the ids of its passages


class _Inputs(msgspec.Struct):
    """The parameters of the stage that tell the sources and what was removed from them."""

    corpus: list[tuple[str, str]]
    readers: dict[str, str]
    removed: list[str] = []


@dataclass(frozen=True)
class Kept:
    """Documents and rejects of an earlier run. folder: its tables; names: of their files, in `hashes`; gone: files of
    its other documents; rejects: in their order; hashes: see `file_hashes`."""

    folder: Path
    names: frozenset[str]
    gone: list[str]
    rejects: list[Reject]
    hashes: dict[str, str]

    def add_to(self, db: Database, sources: Sources, taken: Taken) -> bool:
        """Insert the documents, without those that were removed, and their passages. Returns False, and inserts
        nothing, if another document claimed one of their ids: then one of the two is rejected or named otherwise.

        db: has all other documents; taken: their ids.
        """
        for name in ("documents", "passages", "lines"):
            db.view(f"earlier_{name}", self.folder / f"{name}.parquet")
        db.create("gone", pa.schema([("file", pa.string())]))
        db.add("gone", pa.table({"file": pa.array(self.gone, pa.string())}))
        db.run(*_VIEWS)
        if _meet(db, taken):
            return False
        db.create("kept_metadata", pa.schema([("file_row_number", pa.int64()), ("metadata", pa.large_string())]))
        n = db.count("earlier_documents")
        table = read_metadata(self.folder / METADATA, n) if (self.folder / METADATA).exists() else None
        for first in range(0, n, tables.ROWS_A_GROUP):
            rows = range(first, min(first + tables.ROWS_A_GROUP, n))
            texts = map(to_text, rows_of(table, rows))
            db.add("kept_metadata", pa.table({"file_row_number": rows, "metadata": pa.array(texts, pa.large_string())}))
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
    """The files of an earlier run that did not change, if others come, change or leave, or documents are left out.
    hashes: see `file_hashes`.

    None if something else changed; if rows of the others may have changed theirs, see `_are_apart`; if tables have
    metadata or languages in another form than files, see `_is_exact`; and if ids of documents and passages were in each
    other's way.
    """
    folder, sources, carried = work.previous, work.sources, work.carried(np.uint8)
    if not folder or carried is None or sources.strict:
        return None
    try:
        now, before = (msgspec.convert(params, _Inputs) for params in (work.params, work.previous_params))
        read = msgspec.json.decode(carried.tobytes(), type=dict[str, str])
    except msgspec.MsgspecError:  # of an index that no build wrote
        return None
    keys = {name: sha256_text(name) for name in hashes}  # hashes, since all documents of a file may have been removed
    known = {keys[name]: sha256 for name, sha256 in hashes.items()}
    gone = {key for key, sha256 in read.items() if not sha256 or known.get(key) != sha256}
    new_removals = set(now.removed) - set(before.removed)
    others = _others(work.params)
    same = (
        not {"named", "part"} & others.keys()
        and others == _others(work.previous_params)
        and all(len({name for name, _ in inputs.corpus}) == len(inputs.corpus) for inputs in (now, before))
        and len(gone) < len(read)
        and before.readers.items() <= now.readers.items()
        and set(before.removed) <= set(now.removed)
        and all(key.startswith(DOCUMENT) for key in new_removals)
    )
    # tables name a source only by the first part of the names of its files
    if not same or any(short_name(shown(path), sources.corpus) != path.name for path in sources.corpus):
        return None
    rejects = rejects_of(folder / "rejects.jsonl")
    documents = tables.read_table(folder / "documents.parquet", tables.DOCUMENTS, ["id", "file"])
    files = pc.unique(documents["file"]).to_pylist()
    files_read = {file: _key_in(read, file) for file in (*files, *(reject.file for reject in rejects))}
    if not read.keys() >= {*files_read.values()} or any(reject.reason.startswith(PASSAGE_ID) for reject in rejects):
        return None
    left = {file for file, key in files_read.items() if key in gone}
    some_leave = bool(new_removals or not left.isdisjoint(files))
    if not _is_exact(folder / METADATA, some_leave) or (left and not _are_apart(documents, rejects, left, sources)):
        return None
    stay = [r for r in rejects if r.file not in left and not has_removed(sources, r.id)]
    stays = read.keys() - gone
    names = frozenset(name for name, key in keys.items() if key in stays)
    return Kept(folder, names, sorted(left), stay, hashes)


def _key_in(keys: Collection[str], file: str) -> str:
    """The key of a file in `keys`, hashes of names, or of the archive or source that it lies in."""
    while (key := sha256_text(file)) not in keys and "/" in file:
        file = file.rpartition("/")[0]
    return key


def _are_apart(documents: pa.Table, rejects: list[Reject], gone: set[str], sources: Sources) -> bool:
    """Whether the rows of other files are what they are without those that are `gone`. A row is rejected, or gets the
    id "FILE:ID", if its id is taken. Questions repeat the contexts of others, whose ids are hashes, without a trace."""
    rows = [*zip(documents["id"].to_pylist(), documents["file"].to_pylist()), *((r.id, r.file) for r in rejects)]
    left = {id for id, file in rows if file in gone}
    if any(map(re.compile(r"p_[0-9a-f]{12}").search, left)):
        return False
    stay = [id for id, file in rows if file not in gone]
    own = [id[place + 1 :] for id in stay for place, letter in enumerate(id) if letter == ":"]
    return left.isdisjoint((*own, *(r.id for r in rejects if r.file not in gone))) and not any(
        has_removed(sources, id) for id in own
    )


def _is_exact(path: Path, some_leave: bool) -> bool:
    """Whether a table of metadata, if there is one, tells what the files gave: all documents are in English, no name
    was left out, and no number may have been another. A text may stand for a number that differs in kind from other
    values; it stays a text unless the others leave."""
    if not path.exists():
        return True
    names, kinds = (schema := pq.read_schema(path)).names, set(schema.types)
    return not (some_leave or LANGUAGE in names or len(names) >= MOST_COLUMNS or pa.float64() in kinds)


def _others(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in _Inputs.__struct_fields__}


def in_order(kept: Kept, new: Iterable[Parts | Reject], sources: Sources) -> Iterator[Parts | Reject]:
    """Items of a reading, with kept rejects between them, in the order of the files."""
    place = {sha256_text(name): number for number, name in enumerate(kept.hashes)}
    waiting = iter(kept.rejects)
    next_kept = next(waiting, None)
    for item in new:
        if isinstance(item, Reject):
            here = place.get(_key_in(place, item.file), 0)  # 0: the file came since
            while next_kept and place[_key_in(place, next_kept.file)] < here:
                yield next_kept
                next_kept = next(waiting, None)
        yield item
    if next_kept:
        yield next_kept
        yield from waiting
