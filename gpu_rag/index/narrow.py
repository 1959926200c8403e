"""An index through a filter of documents. Nothing that only the other documents state counts or shows.

Methods read this view like any index. Tables, vectors and postings are masked: rows that refer to a removed row leave,
and the others get new numbers. Results of several documents, such as the spelling of a name and the graph, are computed
from these rows. A stage is made in memory when it is first read.

A stage equals the stage of a build from the kept documents, with three differences, none of which shows a text. BM25
keeps the word statistics of all documents, and name vectors keep their spelling. Synonyms and other links between kept
rows are those among all rows. A link to a removed row is not replaced by another. A stage without an entry in `NARROW`,
or in `narrow` of its method, is not in the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from gpu_rag.index.names import TextColumn
from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.entities import entities_stage
from gpu_rag.index.stages.graph import graph_stage, relation_graph_stage
from gpu_rag.index.stages.names import entity_names_stage, title_names_stage
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.settings import make_settings

T = TypeVar("T")
Files = dict[str, Any]  # the files of a stage by name: tables, arrays by name, or `Bm25`
Masks = Mapping[str, str | Mapping[str, str]]
"""{file of a stage: the table whose rows it follows, with one row, vector or list for each; "" for a file that stays
whole; {column of row numbers: the table of these rows} for a table of its own}. A table is named "STAGE/NAME"."""
Narrow = Masks | Callable[["View"], Files]
DOCUMENTS, PASSAGES, ENTITIES = "passages/documents", "passages/passages", "entities/entities"


class View(Index):
    """Some documents of the index `base`, and only what these state.

    documents: bool[n documents], at least one True. narrow: {stage: its masks, or a function that computes its files}.
    Thread-safe if `make` and `files` are.
    """

    def __init__(self, base: Index, documents: np.ndarray, narrow: Mapping[str, Narrow]):
        super().__init__(base.path, base.manifest, base.device)
        self.base, self.threads = base, base.threads
        self._narrow, self._files, self._lock = narrow, dict[str, Files](), RLock()
        self._kept, self._new = dict[str, np.ndarray](), dict[str, np.ndarray]()
        self.keep(DOCUMENTS, np.flatnonzero(documents), len(documents))
        self.keep(PASSAGES, np.flatnonzero(documents[base.passage_documents]), base.n_passages)

    def __reduce__(self) -> Any:
        """Raise UsageError, because a view may be as large as its index."""
        raise UsageError("a part of an index stays in its process", do="send the index, and filter there")

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that can be read under a filter."""
        inputs = ((name, self.manifest.with_inputs([name])) for name in self.manifest.stages)
        return tuple(name for name, needed in inputs if needed <= self._narrow.keys())

    def make(self, stage: str) -> None:
        """Compute a stage that masks do not make, before it is read."""
        if callable(self._narrow[stage]):
            self.files(stage)

    def files(self, stage: str) -> Files:
        """Files of a stage under the filter; those that are computed are made once. Raises MissingLayer."""
        if stage not in self.stages:
            raise MissingLayer("a filtered index lacks a stage", given=f"{self.path} without {stage}")
        narrow = self._narrow[stage]
        if not callable(narrow):
            names = narrow.keys() & self.manifest.stages[stage].files.keys()
            return {name: self._file(stage, name, _read) for name in names}
        with self._lock:
            if stage not in self._files:
                self._files[stage] = narrow(self)
            return self._files[stage]

    def folder(self, stage: str) -> Path:
        """Raise MissingLayer, because a view has no files."""
        raise MissingLayer("a filtered index has no folders", given=stage, expected="Index.table, arrays or words")

    def _file(self, stage: str, name: str, read: Callable[[Path], T]) -> Any:
        narrow = self._narrow.get(stage)
        if narrow is None or callable(narrow):
            return self.files(stage)[name]
        content: Any = read(self.base.folder(stage) / name)
        if isinstance(target := narrow[name], str):
            return masked_rows(content, self.kept(target)) if target else content
        return self.masked(f"{stage}/{name.removesuffix('.parquet')}", content, target)

    def _entries(self, stage: str, name: str, schema: pa.Schema, column: str) -> TextColumn[Any]:
        return TextColumn(self._column(stage, name, schema, column))

    @cached_property
    def passages(self) -> pa.Table:
        """Table of passages."""
        return tables.joined_chunks(self.base.passages.take(pa.array(self.kept(PASSAGES))))

    @cached_property
    def n_passages(self) -> int:
        """Number of passages."""
        return len(self.kept(PASSAGES))

    @cached_property
    def passage_documents(self) -> np.ndarray:
        """i64[n_passages]: row of the document of each passage."""
        of_kept: np.ndarray = self.new(DOCUMENTS)[self.base.passage_documents[self.kept(PASSAGES)]]
        return of_kept

    def _documents(self, rows: Sequence[int], part: Sequence[dict[str, Any]]) -> list[int]:
        documents: list[int] = self.passage_documents[list(rows)].tolist()
        return documents

    def passage_rows(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Rows of the table of passages."""
        return self.base.passage_rows(self.kept(PASSAGES)[list(rows)].tolist())

    def _document_rows(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return self.base._document_rows(self.kept(DOCUMENTS)[list(rows)].tolist())

    def take(
        self, stage: str, file: str, schema: pa.Schema, rows: Iterable[int], columns: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Rows of a table, in the order given; the table is read whole."""
        table = self.table(stage, file, schema).select(columns or schema.names)
        taken: list[dict[str, Any]] = table.take(pa.array(rows, pa.int64())).to_pylist()
        return taken

    @cached_property
    def metadata(self) -> pa.Table | None:
        """Table of the documents' metadata."""
        of_all = self.base.metadata
        return None if of_all is None else of_all.take(pa.array(self.kept(DOCUMENTS)))

    # --- masks -------------------------------------------------------------------------------------

    def keep(self, table: str, rows: np.ndarray, n: int) -> None:
        """Record which of n rows of a table of the base stay; `rows` are in the order of the view."""
        new = np.full(n, -1, np.int64)
        new[rows] = np.arange(len(rows))
        self._kept[table], self._new[table] = rows, new

    def kept(self, table: str) -> np.ndarray:
        """Rows of the base, in the order of the view: i64."""
        with self._lock:
            if table not in self._kept:
                stage, _, name = table.partition("/")
                narrow = self._narrow[stage]
                if callable(narrow):
                    self.files(stage)
                elif not isinstance(columns := narrow[f"{name}.parquet"], str):
                    path = self.base.folder(stage) / f"{name}.parquet"
                    self.masked(table, pq.read_table(path, columns=[*columns]), columns)
            return self._kept[table]

    def new(self, table: str) -> np.ndarray:
        """Number in the view of each row of the base, -1 for removed rows: i64."""
        self.kept(table)
        return self._new[table]

    def masked(self, table: str, rows: pa.Table, columns: Mapping[str, str]) -> pa.Table:
        """Rows of a table of the base that name no removed row. columns: {column of row numbers: table of these}."""
        numbers = {column: self.new(other)[rows[column].to_numpy()] for column, other in columns.items()}
        stays = np.logical_and.reduce([new >= 0 for new in numbers.values()])
        self.keep(table, np.flatnonzero(stays), rows.num_rows)
        rows = rows.filter(pa.array(stays))
        for column, new in numbers.items():
            place = rows.schema.get_field_index(column)
            rows = rows.set_column(place, rows.schema[place], pa.array(new[stays], rows.schema.types[place]))
        return tables.joined_chunks(rows)

    # --- stages that are computed ------------------------------------------------------------------

    @contextmanager
    def scratch(self, *needs: str) -> Iterator[Work]:
        """Inputs of a stage that is made from tables of the view; no models. Its folders go at the end."""
        no_models: Any = None
        settings, sources = make_settings({}, self.manifest.defaults()), Sources(edits=self.path / EDITS)
        with TemporaryDirectory(prefix="gpu-rag-where-", ignore_cleanup_errors=True) as name:
            out, folders = Path(name) / "out", {need: Path(name) / need for need in needs}
            with storage_errors(out):
                out.mkdir()
                for need, folder in folders.items():
                    folder.mkdir()
                    for file, content in self.files(need).items():
                        pq.write_table(content, folder / file)
            yield Work(out, Path(name) / "work", folders, settings, sources, no_models, Silent(), StageReport())

    def run(self, stage: Stage, *needs: str) -> Files:
        """Files of a stage that needs no model, made from stages of the view that have only tables."""
        with self.scratch(*needs) as work:
            stage.run(work)
            return {
                path.name: _read(path) for path in work.out.iterdir() if path.suffix in (".parquet", ".safetensors")
            }


def _read(path: Path) -> Any:
    """A table or arrays, in memory."""
    if path.suffix == ".parquet":
        return tables.joined_chunks(pq.read_table(path))
    return {name: np.array(array) for name, array in tables.read_arrays(path).items()}


def masked_rows(content: Any, rows: np.ndarray) -> Any:
    """Some rows of a table, or of vectors. Many vectors lie in a file without a name, not in
    memory."""
    if isinstance(content, pa.Table):
        return content.take(pa.array(rows))
    vectors = content["vectors"]
    if len(rows) * vectors[:1].nbytes <= MAPPED_FROM:
        return {"vectors": vectors[rows]}
    with storage_errors(Path(gettempdir())), TemporaryFile(prefix="gpu-rag-where-") as file:
        for start in range(0, len(rows), 1 << 16):
            file.write(vectors[rows[start : start + (1 << 16)]].data)
        file.flush()
        return {"vectors": np.memmap(file, vectors.dtype, "c", shape=(len(rows), *vectors.shape[1:]))}


def narrowed(base: Index, documents: np.ndarray, others: Mapping[str, Narrow]) -> Index:
    """View of an index with some of its documents: bool[n documents], at least one True. others: masks and functions
    for the stages of methods (`registry.stage_narrowers`)."""
    return View(base, documents, {**NARROW, **others})


def _entities(view: View) -> Files:
    """Make the entities again, so that names are written as the kept documents write them."""
    files, base = view.run(entities_stage, "extraction"), view.base
    names, all_names = files["entities.parquet"]["id"], base.entities["id"]
    facts, all_facts = _fact_ids(files["relations.parquet"], names), _fact_ids(base.relations, all_names)
    for table, ids, all_ids in (("entities", names, all_names), ("relations", facts, all_facts)):
        rows = pc.index_in(ids, value_set=tables.whole_text(all_ids).cast(ids.type)).to_numpy()
        view.keep(f"entities/{table}", rows.astype(np.int64), len(all_ids))
    return files


def _fact_ids(relations: pa.Table, names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each relation as "subject | label | object". names: normalised, of the entities."""
    ends = (tables.whole_text(names).take(relations[end]).cast(pa.string()) for end in ("subject", "object"))
    subjects, objects = ends
    return pc.binary_join_element_wise(subjects, relations["label"], objects, " | ")


NARROW: dict[str, Narrow] = {  # views of the stages that several methods share
    "passages": {
        "documents.parquet": DOCUMENTS, "passages.parquet": PASSAGES, "lines.parquet": PASSAGES,
        "origins.parquet": DOCUMENTS,
    },
    "title_names": lambda view: view.run(title_names_stage, "passages"),
    "bm25": lambda view: {"": view.base.bm25.part(view.kept(PASSAGES))},
    "passage_vectors": {"vectors.safetensors": PASSAGES},
    "extraction": {"extractions.parquet": {"passage": PASSAGES}, "profiles.parquet": {"passage": PASSAGES}},
    "entities": _entities,
    "entity_names": lambda view: view.run(entity_names_stage, "extraction", "entities"),
    "entity_vectors": {"vectors.safetensors": ENTITIES},
    "relation_vectors": {"vectors.safetensors": "entities/relations"},
    "mentions": {"mentions.parquet": {"entity": ENTITIES, "passage": PASSAGES}},
    "synonyms": {"synonyms.parquet": {"left": ENTITIES, "right": ENTITIES}},
    "graph": lambda view: view.run(graph_stage, *graph_stage.needs),
    "relation_graph": lambda view: view.run(relation_graph_stage, *relation_graph_stage.needs),
}  # fmt: skip
