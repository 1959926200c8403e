"""An index through a filter of documents. Nothing that only the other documents state counts or shows.

Methods read a view as any index. Tables, vectors and postings are masked: rows that name no removed row are numbered
anew. What several documents make together, such as the spelling of a name and the graph, is computed from these rows. A
stage is made when it is first read, in memory.

A stage equals that of a build from the kept documents, with three differences, none of which shows a text. BM25 keeps
the word statistics, and name vectors keep the spelling, of all documents. Synonyms and other links between kept rows
are those found among all rows. A link to a removed row is not replaced by another. A stage without an entry in
`NARROW`, or among `narrow` of its method, is not in the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_rag.errors import MissingLayer, UsageError
from gpu_rag.index import tables
from gpu_rag.index.folder import EDITS, storage_errors
from gpu_rag.index.index import MAPPED_FROM, Index
from gpu_rag.index.knowledge_base.tables import ORIGINS
from gpu_rag.index.metadata import FILE as METADATA
from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.entities import entities_stage
from gpu_rag.index.stages.graph import graph_stage
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.settings import make_settings

T = TypeVar("T")
Files = dict[str, Any]  # the files of a stage by name: tables, arrays by name, or `Bm25`
Narrow = Callable[["View"], Files]


class View(Index):
    """Some documents of the index `base`, and only what these state. A table is named "STAGE/NAME".

    documents: bool[n documents], at least one True. narrow: {stage: function that gives its files under the filter}.
    Thread-safe, as far as `files` goes.
    """

    def __init__(self, base: Index, documents: np.ndarray, narrow: Mapping[str, Narrow]):
        super().__init__(base.path, base.manifest, base.device)
        self.base, self.threads = base, base.threads
        self._narrow, self._files, self._lock = narrow, dict[str, Files](), RLock()
        self._kept, self._new = dict[str, np.ndarray](), dict[str, np.ndarray]()
        self.keep("passages/documents", np.flatnonzero(documents), len(documents))
        ids = tables.whole_text(base.documents["id"])
        stays = documents[pc.index_in(base.passages["doc_id"].cast(ids.type), value_set=ids).to_numpy()]
        self.keep("passages/passages", np.flatnonzero(stays), base.n_passages)

    def __reduce__(self) -> Any:
        """Raise UsageError, because the functions of methods stay in their process."""
        raise UsageError("a part of an index stays in its process", do="send the index, and filter there")

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that can be read under a filter."""
        inputs = ((name, self.manifest.with_inputs([name])) for name in self.manifest.stages)
        return tuple(name for name, needed in inputs if needed <= self._narrow.keys())

    def files(self, stage: str) -> Files:
        """Files of a stage under the filter, made once. Raises MissingLayer."""
        with self._lock:
            if stage not in self._files:
                if stage not in self.stages:
                    raise MissingLayer("a filtered index lacks a stage", given=f"{self.path} without {stage}")
                self._files[stage] = self._narrow[stage](self)
            return self._files[stage]

    def folder(self, stage: str) -> Path:
        """Raise MissingLayer, because the files of a view are in memory."""
        raise MissingLayer("a filtered index has no folders", given=stage, expected="Index.table, arrays or words")

    def _file(self, stage: str, name: str, read: Callable[[Path], T]) -> T:
        found: T = self.files(stage)[name]
        return found

    @cached_property
    def metadata(self) -> pa.Table | None:
        """Table of the documents' metadata."""
        return self.files("passages").get(METADATA)

    # --- masks -------------------------------------------------------------------------------------

    def keep(self, table: str, rows: np.ndarray, n: int) -> None:
        """Record which of n rows of a table of the base stay; `rows` are in the order of the view."""
        self._kept[table], self._new[table] = rows, np.full(n, -1, np.int64)
        self._new[table][rows] = np.arange(len(rows))

    def kept(self, table: str) -> np.ndarray:
        """Rows of the base, in the order of the view: i64."""
        if table not in self._kept:
            self.files(table.partition("/")[0])
        return self._kept[table]

    def new(self, table: str) -> np.ndarray:
        """Number in the view of each row of the base, -1 for removed rows: i64."""
        self.kept(table)
        return self._new[table]

    def masked(self, table: str, schema: pa.Schema, **of: str) -> Files:
        """A table without the rows that name a removed row. of: {column of row numbers: the table of these rows}."""
        stage, _, name = table.partition("/")
        rows = self.base.table(stage, f"{name}.parquet", schema)
        numbers = {column: self.new(other)[rows[column].to_numpy()] for column, other in of.items()}
        stays = np.logical_and.reduce([new >= 0 for new in numbers.values()])
        self.keep(table, np.flatnonzero(stays), rows.num_rows)
        columns = [
            pa.array(numbers[field.name][stays], field.type) if field.name in numbers
            else rows[field.name].filter(pa.array(stays))
            for field in schema
        ]  # fmt: skip
        return {f"{name}.parquet": pa.table(columns, schema=schema)}

    def taken(self, stage: str, file: str, schema: pa.Schema, table: str) -> Files:
        """The kept rows of a table that has one row for each of `table`."""
        return {file: self.base.table(stage, file, schema).take(pa.array(self.kept(table)))}

    # --- stages that are computed ------------------------------------------------------------------

    @contextmanager
    def scratch(self, *needs: str) -> Iterator[Work]:
        """Inputs of a stage that is made from other stages of the view; no models. Its folders go at the end."""
        no_models: Any = None
        settings, sources = make_settings({}, self.manifest.defaults()), Sources(edits=self.path / EDITS)
        with TemporaryDirectory(prefix="gpu-rag-where-", ignore_cleanup_errors=True) as name:
            out, folders = Path(name) / "out", {need: Path(name) / need for need in needs}
            with storage_errors(out):
                for folder in (out, *folders.values()):
                    folder.mkdir()
            for need, folder in folders.items():
                for file, content in self.files(need).items():
                    tables.write_columns(folder / file, content.schema, content.columns)
            yield Work(out, Path(name) / "work", folders, settings, sources, no_models, Silent(), StageReport())

    def run(self, stage: Stage, *needs: str) -> Files:
        """Files of a stage that needs no model, made from stages of the view that have only tables."""
        with self.scratch(*needs) as work:
            stage.run(work)
            return files_in(work.out)


def files_in(folder: Path) -> Files:
    """The tables and arrays in the folder of a stage, read into memory."""
    found: Files = {path.name: tables.joined_chunks(pq.read_table(path)) for path in folder.glob("*.parquet")}
    for path in folder.glob("*.safetensors"):
        found[path.name] = {name: np.array(array) for name, array in tables.read_arrays(path).items()}
    return found


def narrowed(base: Index, documents: np.ndarray, others: Mapping[str, Narrow]) -> Index:
    """View of an index with some of its documents: bool[n documents], at least one True. others: functions for the
    stages of methods (`registry.stage_narrowers`)."""
    return View(base, documents, {**NARROW, **others})


def vectors_of(stage: str, table: str) -> Narrow:
    """A function that masks a stage of vectors, one for each row of `table`."""

    def narrow(view: View) -> Files:
        return {"vectors.safetensors": {"vectors": _rows(view.base.arrays(stage)["vectors"], view.kept(table))}}

    return narrow


def _rows(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Some rows; many of them lie in a file without a name, not in memory."""
    if len(rows) * vectors[:1].nbytes <= MAPPED_FROM:
        return np.asarray(vectors[rows])
    with storage_errors(Path(gettempdir())), TemporaryFile(prefix="gpu-rag-where-") as file:
        for start in range(0, len(rows), 1 << 16):
            file.write(vectors[rows[start : start + (1 << 16)]].data)
        file.flush()
        return np.memmap(file, vectors.dtype, "c", shape=(len(rows), *vectors.shape[1:]))


# --- the stages that several methods share ---------------------------------------------------------------


def _passages(view: View) -> Files:
    documents, passages = "passages/documents", "passages/passages"
    files = view.taken("passages", "documents.parquet", tables.DOCUMENTS, documents)
    files["passages.parquet"] = tables.joined_chunks(view.base.passages.take(pa.array(view.kept(passages))))
    files |= view.taken("passages", "lines.parquet", tables.LINES, passages)
    if "origins.parquet" in view.manifest.stages["passages"].files:
        files |= view.taken("passages", "origins.parquet", ORIGINS, documents)
    if view.base.metadata is not None:
        files[METADATA] = view.base.metadata.take(pa.array(view.kept(documents)))
    return files


def _extraction(view: View) -> Files:
    files = view.masked("extraction/extractions", tables.EXTRACTIONS, passage="passages/passages")
    if "profiles.parquet" in view.manifest.stages["extraction"].files:  # version 1 had no profiles
        files |= view.masked("extraction/profiles", tables.PROFILES, passage="passages/passages")
    return files


def _entities(view: View) -> Files:
    """Make the entities anew, so that names are written as the kept documents write them."""
    files = view.run(entities_stage, "extraction")
    for name, of_all in (("entities", view.base.entities), ("relations", view.base.relations)):
        ids = files[f"{name}.parquet"]["id"]
        rows = pc.index_in(ids, value_set=tables.whole_text(of_all["id"]).cast(ids.type)).to_numpy()
        view.keep(f"entities/{name}", rows.astype(np.int64), of_all.num_rows)
    return files


def _mentions(view: View) -> Files:
    return view.masked("mentions/mentions", tables.MENTIONS, entity="entities/entities", passage="passages/passages")


def _synonyms(view: View) -> Files:
    return view.masked("synonyms/synonyms", tables.SYNONYMS, left="entities/entities", right="entities/entities")


NARROW: dict[str, Narrow] = {
    "passages": _passages,
    "bm25": lambda view: {"": view.base.bm25.part(view.kept("passages/passages"))},
    "passage_vectors": vectors_of("passage_vectors", "passages/passages"),
    "extraction": _extraction,
    "entities": _entities,
    "entity_vectors": vectors_of("entity_vectors", "entities/entities"),
    "relation_vectors": vectors_of("relation_vectors", "entities/relations"),
    "mentions": _mentions,
    "synonyms": _synonyms,
    "graph": lambda view: view.run(graph_stage, "passages", "entities", "mentions", "synonyms"),
}
