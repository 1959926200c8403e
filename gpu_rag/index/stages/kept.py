"""Documents of sources that did not change, from the tables of an earlier run instead of from their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_rag.index import tables
from gpu_rag.index.database import Database
from gpu_rag.index.metadata import FILE as METADATA
from gpu_rag.index.metadata import LANGUAGE, MOST_COLUMNS, read_metadata, rows_of, to_text
from gpu_rag.index.removed import DOCUMENT, has_removed
from gpu_rag.index.stages.held import rejects_of, source_name
from gpu_rag.index.stages.node_documents import SCHEMAS, Parts, Taken
from gpu_rag.index.stages.rejected import short_name
from gpu_rag.index.work import Sources, Work
from gpu_rag.sources.rows import shown
from gpu_rag.text.language import ENGLISH
from gpu_rag.types import Reject

_COLUMNS = {
    "documents": f"""* EXCLUDE file_row_number, '{ENGLISH}' AS language
        FROM kept_documents JOIN kept_metadata USING (file_row_number)""",
    "passages": "* EXCLUDE file_row_number FROM kept_passages JOIN kept_lines USING (file_row_number)",
}
PASSAGE_ID = "its passage id "  # begins the reason of a reject because of the ids of its passages


class _Inputs(msgspec.Struct):
    """The parameters of the stage that tell the files and what was removed from them."""

    corpus: list[tuple[str, str]]
    readers: dict[str, str]
    removed: list[str] = []


@dataclass(frozen=True)
class Kept:
    """Documents and rejects of an earlier run. folder: its tables; paths: their sources; rejects: in their order."""

    folder: Path
    paths: frozenset[Path]
    rejects: list[Reject]

    def add_to(self, db: Database, sources: Sources, taken: Taken) -> bool:
        """Insert the documents, without those that were removed, and their passages. Returns False, and inserts
        nothing, if another document claimed one of their ids: then one of the two is rejected or named otherwise.

        db: has all other documents; taken: their ids.
        """
        for name in ("documents", "passages", "lines"):
            db.view(f"kept_{name}", self.folder / f"{name}.parquet")
        if _meet(db, taken):
            return False
        db.create("kept_metadata", pa.schema([("file_row_number", pa.int64()), ("metadata", pa.large_string())]))
        n = db.count("kept_documents")
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


def kept_sources(work: Work) -> Kept | None:
    """The sources of an earlier run, if this run reads all of them and others, or leaves more documents out.

    None if something else changed; if tables have metadata or languages in another form than files, see `_is_exact`;
    and if ids of documents and passages were in each other's way.
    """
    folder, sources = work.previous, work.sources
    if not folder or sources.strict:
        return None
    try:
        now, before = (msgspec.convert(params, _Inputs) for params in (work.params, work.previous_params))
    except msgspec.ValidationError:  # of a manifest that no build wrote
        return None
    corpus, read = dict(now.corpus), dict(before.corpus)
    new_removals = set(now.removed) - set(before.removed)
    others = _others(work.params)
    same = (
        not {"named", "part"} & others.keys()
        and others == _others(work.previous_params)
        and len(corpus) == len(now.corpus)
        and read.items() <= corpus.items()
        and before.readers.items() <= now.readers.items()
        and set(before.removed) <= set(now.removed)
        and all(key.startswith(DOCUMENT) for key in new_removals)
        and _is_exact(folder / METADATA, bool(new_removals))
    )
    # tables name a source only by the first part of the names of its files
    if not same or any(short_name(shown(path), sources.corpus) != path.name for path in sources.corpus):
        return None
    rejects = rejects_of(folder / "rejects.jsonl")
    files = pc.unique(tables.read_table(folder / "documents.parquet", tables.DOCUMENTS, ["file"])["file"]).to_pylist()
    names = {source_name(file) for file in (*files, *(reject.file for reject in rejects))}
    if names != read.keys() or any(reject.reason.startswith(PASSAGE_ID) for reject in rejects):
        return None
    rejects = [reject for reject in rejects if not has_removed(sources, reject.id)]
    return Kept(folder, frozenset(path for path in sources.corpus if path.name in read), rejects)


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


def in_order(kept: Iterable[Reject], new: Iterable[Parts | Reject], sources: Sources) -> Iterator[Parts | Reject]:
    """Items of a reading, with kept rejects between them, in the order of the sources."""
    place = {path.name: number for number, path in enumerate(sources.corpus)}
    waiting = iter(kept)
    next_kept = next(waiting, None)
    for item in new:
        if isinstance(item, Reject):
            while next_kept and place[source_name(next_kept.file)] < place[source_name(item.file)]:
                yield next_kept
                next_kept = next(waiting, None)
        yield item
    if next_kept:
        yield next_kept
        yield from waiting
