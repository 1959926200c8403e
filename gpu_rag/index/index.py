"""An index in memory: tables read on first use, vectors and graph on the device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from gpu_rag.errors import BadInput, GpuRagError, IndexCorrupt, IndexMismatch, MissingLayer
from gpu_rag.graph.pagerank import PageRankGraph, prepared
from gpu_rag.index import metadata, tables
from gpu_rag.index.folder import Reading
from gpu_rag.index.manifest import Manifest, checked_folder
from gpu_rag.index.names import SortedRows, TextColumn, rows_of
from gpu_rag.index.walk import STORED, walk_of
from gpu_rag.lazy import torch
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import CSR, Evidence, Scalar

T = TypeVar("T")
GRAPH = "graph.safetensors"  # the file of a stage of a graph
MAPPED_FROM = 1 << 28  # larger vectors, in bytes, are mapped on a CPU, not copied into memory


def table_of(stage: str, name: str, schema: pa.Schema) -> cached_property[pa.Table]:
    """A property of an index: a table of a stage."""
    return cached_property(lambda index: index.table(stage, f"{name}.parquet", schema))


def column_of(stage: str, name: str, schema: pa.Schema, column: str) -> cached_property[TextColumn[Any]]:
    """A property of an index: a column of a table, without the others. It stays in its table."""
    return cached_property(lambda index: index._entries(stage, name, schema, column))


def rows_by(stage: str, name: str, schema: pa.Schema) -> cached_property[SortedRows]:
    """A property of an index: the row of each id of a table."""
    return cached_property(lambda index: SortedRows(index._column(stage, name, schema, "id")))


class Index:
    """A finished index folder, opened for reading. Never writes into the folder.

    device: device of vectors and graphs, "cpu", "cuda" or "cuda:N". Setting it drops the copies on the old device.
    threads: CPU threads of a graph op over this index.
    """

    def __init__(self, path: Path, manifest: Manifest, device: str):
        self.path, self.manifest, self._device = path, manifest, device
        self.threads = 1
        self._reading: list[Reading] = []
        self._vectors: dict[str, torch.Tensor] = {}
        self._parts: dict[str, Any] = {}
        self._words: dict[str, Bm25] = {}
        self._checked: set[str] = set()  # stages whose files were checked

    @classmethod
    def open(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """Open an index. Raises BadInput if `path` is not an index, IndexMismatch for another format version."""
        if not isinstance(path, str | Path):
            raise BadInput("path is not a path", given=repr(path)[:80], expected="the folder of an index")
        folder = Path(path)
        reading = [Reading(folder / "stages")]  # before the manifest is read: a build may replace stages at any time
        manifest, passages = Manifest.read(folder).without_stale(), None  # a build may have stopped half-way
        # the stage may be replaced before it is held: hold it again until the manifest still names it
        while (record := manifest.stages.get("passages")) and record.folder != passages:
            passages = record.folder
            reading[1:] = [Reading(folder / passages)]
            manifest = Manifest.read(folder).without_stale()
        index = cls(folder, manifest, device)
        index._reading = reading
        return index

    def __reduce__(self) -> Any:
        """Reopen the index in another process; nothing in memory is sent."""
        return partial(type(self).open, device=self._device), (self.path.resolve(),)

    @property
    def device(self) -> str:
        """Device of vectors and graphs."""
        return self._device

    @device.setter
    def device(self, device: str) -> None:
        if device != self._device:
            self._vectors, self._parts = {}, {}  # read again on next use
        self._device = device

    def check_embedder(self, name: str, content_hash: str) -> None:
        """Raise IndexMismatch unless this embedder, by content, made the vectors."""
        built = self.manifest.model("embedder")
        if built is not None and built["content_hash"] != content_hash:
            raise IndexMismatch(
                "the index was embedded with another model",
                given=f"{name} ({content_hash[:12]})",
                expected=f"{built['name']} ({built['content_hash'][:12]})",
                do=f"use --set models.embedder={built['name']}, or build the index again with --fresh",
            )

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the finished stages."""
        return tuple(self.manifest.stages)

    def folder(self, stage: str) -> Path:
        """Folder of a stage; its files are compared with their checksums on first use.

        Raises MissingLayer if it was not built, IndexCorrupt if a file is missing or altered, IndexMismatch if another
        build has replaced it.
        """
        record = self.manifest.stages.get(stage)
        if record is None:
            raise MissingLayer("the index lacks a stage", given=f"{self.path} without {stage}")
        if stage not in self._checked:
            try:
                checked_folder(self.path, self.manifest, stage)
            except IndexCorrupt as error:
                if self._stands(stage):
                    raise
                what = "the index was rebuilt while it was open"
                raise IndexMismatch(what, given=f"{self.path}: {stage}", do="open it again") from error
            self._checked.add(stage)
        return self.path / record.folder

    def check_as(self, earlier: Index) -> None:
        """Check the files of the stages that an earlier state of this index has checked. Stages that did not change are
        not read again. Raises as `folder`."""
        for stage in self.manifest.stages.keys() & set(earlier._checked):
            if self.manifest.stages[stage] == earlier.manifest.stages[stage]:
                self._checked.add(stage)
            else:
                self.folder(stage)

    def _stands(self, stage: str) -> bool:
        """Whether the manifest on the disk still has the stage that this one names."""
        try:
            return Manifest.read(self.path).stages.get(stage) == self.manifest.stages[stage]
        except GpuRagError:  # a build from the beginning has removed it
            return False

    def table(self, stage: str, file: str, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
        """A table of a stage, with at least these columns. Raises MissingLayer, IndexCorrupt."""
        return self._file(stage, file, partial(tables.read_table, schema=schema, columns=columns))

    def _column(self, stage: str, name: str, schema: pa.Schema, column: str) -> pa.ChunkedArray:
        """One column of the table `name`; the others are not read."""
        return self.table(stage, f"{name}.parquet", schema, [column])[column]

    def _entries(self, stage: str, name: str, schema: pa.Schema, column: str) -> TextColumn[Any]:
        """One column of the table `name`, read by row group."""
        return tables.StoredColumn(self.folder(stage) / f"{name}.parquet", schema, column)

    def arrays(self, stage: str, file: str = "vectors.safetensors", *names: str) -> dict[str, np.ndarray]:
        """The arrays of a file of a stage, by name. Raises MissingLayer, IndexCorrupt, IndexMismatch without one of
        `names`."""
        arrays = self._file(stage, file, tables.read_arrays)
        if missing := set(names) - arrays.keys():
            what, given = "a stage of the index is of another version", f"{stage}/{file} without {sorted(missing)}"
            raise IndexMismatch(what, given=given, do="run gpu-rag index again: it makes this stage again")
        return arrays

    def words(self, stage: str, name: str = "") -> Bm25:
        """A BM25 index of a stage, from its folder or the folder `name` in it, read once. Raises MissingLayer,
        IndexCorrupt."""
        key = f"{stage}/{name}"
        if key not in self._words:
            self._words[key] = self._file(stage, name, partial(Bm25.load, read=tables.read_arrays))
        return self._words[key]

    def _file(self, stage: str, name: str, read: Callable[[Path], T]) -> T:
        return read(self.folder(stage) / name)

    # tables, and columns that stay in them
    documents = table_of("passages", "documents", tables.DOCUMENTS)  # sorted by id
    passages = table_of("passages", "passages", tables.PASSAGES)  # sorted by id
    entities = table_of("entities", "entities", tables.ENTITIES)  # sorted by normalised name
    relations = table_of("entities", "relations", tables.RELATIONS)  # sorted by (subject, label, object)
    mentions = table_of("mentions", "mentions", tables.MENTIONS)  # sorted by (passage, start, entity)
    passage_ids: cached_property[TextColumn[str]] = column_of("passages", "passages", tables.PASSAGES, "id")
    passage_doc_ids: cached_property[TextColumn[str]] = column_of("passages", "passages", tables.PASSAGES, "doc_id")
    passage_titles: cached_property[TextColumn[str]] = column_of("passages", "passages", tables.PASSAGES, "title")
    relation_labels: cached_property[TextColumn[str]] = column_of("entities", "relations", tables.RELATIONS, "label")
    relation_passages: cached_property[TextColumn[list[int]]] = column_of(
        "entities", "relations", tables.RELATIONS, "passages"
    )  # rows of the passages that state each relation
    entity_names: cached_property[TextColumn[str]] = column_of("entities", "entities", tables.ENTITIES, "name")
    # the row of each id; entities have their normalised names as ids
    document_rows = rows_by("passages", "documents", tables.DOCUMENTS)
    rows_of_passages = rows_by("passages", "passages", tables.PASSAGES)
    entity_rows = rows_by("entities", "entities", tables.ENTITIES)

    @cached_property
    def metadata(self) -> pa.Table | None:
        """Table of the documents' metadata, in the order of `documents`; None if they have none."""
        folder = self.folder("passages")
        if metadata.FILE not in self.manifest.stages["passages"].files:
            return None
        return metadata.read_metadata(folder / metadata.FILE, self.documents.num_rows)

    @cached_property
    def passage_documents(self) -> np.ndarray:
        """i64[n_passages]: row of the document of each passage. Raises IndexCorrupt."""
        ids = tables.whole_text(self._column("passages", "documents", tables.DOCUMENTS, "id"))
        rows = rows_of(self._column("passages", "passages", tables.PASSAGES, "doc_id").cast(ids.type), ids)
        if (rows < 0).any():
            raise self._without_document()
        return rows

    def _without_document(self) -> IndexCorrupt:
        return IndexCorrupt("a passage belongs to no document", given=self.path, do="build the index again")

    @cached_property
    def passage_lines(self) -> np.ndarray:
        """i32[n_passages]: line of a text file where each passage begins; 0 in other sources."""
        return self.table("passages", "lines.parquet", tables.LINES)["line"].to_numpy()

    @cached_property
    def relation_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """(subjects, objects) of all relations: i64[n_relations] rows of the entity table."""
        ends = self.table("entities", "relations.parquet", tables.RELATIONS, ["subject", "object"])
        return ends["subject"].to_numpy().astype(np.int64), ends["object"].to_numpy().astype(np.int64)

    @cached_property
    def entity_n_passages(self) -> np.ndarray:
        """i64[n_entities]: number of passages from which each entity was extracted."""
        return self._column("entities", "entities", tables.ENTITIES, "n_passages").to_numpy().astype(np.int64)

    @property
    def bm25(self) -> Bm25:
        """The BM25 index over the passages."""
        return self.words("bm25")

    def vectors(self, stage: str) -> torch.Tensor:
        """Unit vectors of a stage: f16[n, D], mapped from the file on a CPU. Small arrays there become f32, since
        products of half precision are slow on a CPU."""
        if stage not in self._vectors:
            vectors = torch.from_numpy(self.arrays(stage)["vectors"])
            few = self.device == "cpu" and vectors.nbytes <= MAPPED_FROM
            self._vectors[stage] = vectors.float() if few else vectors.to(self.device)
        return self._vectors[stage]

    def loaded(self, part: str, load: Callable[[Index], T]) -> T:
        """Result of load(self), computed once for each name `part`: the output of a method's stages, as its steps read
        it."""
        if part not in self._parts:
            self._parts[part] = load(self)
        result: T = self._parts[part]
        return result

    def put(self, part: str, value: object) -> None:
        """Set the value that `loaded` returns for a name, so that an evaluation can try other values."""
        self._parts[part] = value

    @property
    def graph(self) -> PageRankGraph:
        """Adjacency over [entities | passages] with the edges of titles, ready for PageRank."""
        return self.walk("graph")

    def walk(self, stage: str, file: str = GRAPH) -> PageRankGraph:
        """The symmetric graph in a file of a stage, ready for PageRank, made once. Its columns are mapped on a CPU."""

        def load(index: Index) -> PageRankGraph:
            walk = walk_of(index.arrays(stage, file, *STORED))
            parts = {name: torch.from_numpy(array).to(index.device) for name, array in walk.items()}
            csr = CSR(parts["indptr"], parts["indices"], parts["weight"])
            return prepared(csr, parts["degree"], documents_from=csr.n - index.n_passages)

        return self.loaded(f"{stage}/{file}", load)

    @cached_property
    def n_entities(self) -> int:
        """Number of entities: passage row p is graph node n_entities + p."""
        return len(self.entity_n_passages)

    @property
    def n_relations(self) -> int:
        """Number of relations."""
        return len(self.relation_ends[0])

    @cached_property
    def n_passages(self) -> int:
        """Number of passages."""
        return tables.n_rows(self.folder("passages") / "passages.parquet")

    def evidence(self, rows: Sequence[int], scores: Sequence[float], why: str | list[str]) -> tuple[Evidence, ...]:
        """Evidence records of passages, in the order given. why: the reason for all, or one for each."""
        part, whys = self.passage_rows(rows), [why] * len(rows) if isinstance(why, str) else why
        documents = self._documents(rows, part)
        places, more = self._places(rows, part, documents), metadata.rows_of(self.metadata, documents)
        return tuple(
            Evidence(row["id"], row["title"], row["text"], row["start"], row["end"], float(score), why, *place, more)
            for row, score, why, place, more in zip(part, scores, whys, places, more)
        )

    def places(self, rows: Sequence[int]) -> list[tuple[str, str]]:
        """(file, place in it) of each passage, such as ("report.pdf", "pages 3-4"); see `place_of`."""
        part = self.passage_rows(rows)
        return self._places(rows, part, self._documents(rows, part))

    def metadata_of(self, row: int) -> dict[str, Scalar]:
        """Metadata of a passage's document."""
        return metadata.rows_of(self.metadata, self._documents([row], self.passage_rows([row])))[0]

    def _documents(self, rows: Sequence[int], part: Sequence[dict[str, Any]]) -> list[int]:
        """The rows of the documents of a few passages with table rows `part`, without `passage_documents`, which reads
        the ids of all passages. Raises IndexCorrupt."""
        try:
            return [self.document_rows[row["doc_id"]] for row in part]
        except KeyError as error:
            raise self._without_document() from error

    def passage_rows(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Rows of the table of passages; only their row groups are read."""
        return self.take("passages", "passages.parquet", tables.PASSAGES, rows)

    def _document_rows(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return self.take("passages", "documents.parquet", tables.DOCUMENTS, rows, ("file", "line", "pages"))

    def take(
        self, stage: str, file: str, schema: pa.Schema, rows: Iterable[int], columns: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Rows of a table, in the order given; only their row groups are read, and these columns, by default all.
        Raises MissingLayer, IndexCorrupt."""

        def groups(index: Index) -> tables.RowGroups:
            return tables.RowGroups(index.folder(stage) / file, schema, columns or None)

        return self.loaded(f"groups of {stage}/{file} {columns}", groups).take(rows)

    def _places(
        self, rows: Sequence[int], part: Sequence[dict[str, Any]], documents: Sequence[int]
    ) -> list[tuple[str, str]]:
        """(file, place) of the passages with table rows `part`, and rows of their documents."""
        return [
            (doc["file"], place_of(doc["file"], doc["line"], doc["pages"], int(line), row["start"], row["text"]))
            for row, doc, line in zip(part, self._document_rows(documents), self.passage_lines[list(rows)])
        ]

    def relation_text(self, row: int) -> tuple[str, str, str]:
        """(subject, label, object) of a relation, as written."""
        subjects, objects = self.relation_ends
        return self.entity_names[int(subjects[row])], self.relation_labels[row], self.entity_names[int(objects[row])]

    def counts(self) -> dict[str, int]:
        """Counts of all stages; equal names are added up."""
        merged: dict[str, Any] = {}
        for record in self.manifest.stages.values():
            for name, n in record.counts.items():
                merged[name] = merged.get(name, 0) + n
        return merged


def page_of(pages: Sequence[int], offset: int) -> int:
    """Page, from 1, of the character at `offset` of a document.

    pages: ascending offsets where each page begins, the first 0 (`Document.pages`, column `pages` of the documents).
    The line break that joins two pages belongs to the page before it; an offset past the end is on the last page.

    >>> page_of((0, 120, 250), 119), page_of((0, 120, 250), 120)
    (1, 2)
    """
    return bisect_right(pages, offset)


def place_of(file: str, row: int, pages: Sequence[int], line: int, start: int, text: str) -> str:
    """ "page 3", "pages 3-4", "line 12", "lines 12-14" or "row 5"; "" if the source has nothing of the kind.

    row: the document's line or row in a file of many, 0 for a whole file. pages: where its pages begin, empty without
    pages. line: the passage's first line in a text file, 0 in other sources. start, text: start and text of the
    passage. A row of JSON Lines is a line of its file; rows of Parquet and of JSON arrays are counted from 1.
    """
    if pages:
        return _span("page", page_of(pages, start), page_of(pages, start + max(len(text) - 1, 0)))
    if row:
        return f"{'line' if file.lower().endswith(('.jsonl', '.jsonl.gz')) else 'row'} {row}"
    return _span("line", line, line + text.count("\n")) if line else ""


def _span(unit: str, first: int, last: int) -> str:
    return f"{unit} {first}" if first == last else f"{unit}s {first}-{last}"
