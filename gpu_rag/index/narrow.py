"""A part of an index as an index of its own: some documents, and only what these state.

Methods run over the part as over any index. Nothing of the other documents can reach a ranking, a path, a prompt or a
trace, because it is not there. Each stage of the part equals a build from those documents, with three differences, none
of which shows a text. BM25 keeps the word statistics, and name vectors keep the spelling, of all documents. Synonyms
and other links between kept rows are those found among all rows. A link to a removed row is not replaced by another. A
stage without an entry in `NARROW`, or among `narrow` of its method, is not in the part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.folder import EDITS, TUNED, block_sums, checksums, storage_errors
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.tables import ORIGINS
from gpu_rag.index.manifest import Manifest, StageRecord
from gpu_rag.index.metadata import FILE as METADATA
from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.entities import entities_stage
from gpu_rag.index.stages.graph import graph_stage
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.settings import Settings, make_settings


@dataclass
class Part:
    """A part of the index `base` while it is made. rows: {kind: the kept rows, ascending}; new: {kind: i64[rows of the
    base], their numbers in the part, -1 for removed rows}. folders, counts: of the finished stages.
    """

    base: Index
    path: Path
    settings: Settings
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    new: dict[str, np.ndarray] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def keep(self, what: str, rows: np.ndarray, n: int) -> None:
        """Record which of n rows of the base stay; `rows` are in the order of the part."""
        self.rows[what], self.new[what] = rows, np.full(n, -1, np.int64)
        self.new[what][rows] = np.arange(len(rows))

    def narrow_table(self, stage: str, file: str, schema: pa.Schema, what: str = "", **of: str) -> None:
        """Write a table without the rows that name a removed row. of: {column of row numbers: kind of the rows}; what:
        a kind for the table's own rows, which keep their order."""
        table = tables.read_table(self.base.folder(stage) / file, schema)
        numbers = {name: self.new[kind][table[name].to_numpy()] for name, kind in of.items()}
        stays = np.logical_and.reduce([found >= 0 for found in numbers.values()])
        columns = {name: table[name].filter(pa.array(stays)) for name in schema.names}
        columns |= {name: found[stays] for name, found in numbers.items()}
        self.write(stage, file, schema, columns)
        if what:
            self.keep(what, np.flatnonzero(stays), table.num_rows)

    def take_table(self, stage: str, file: str, schema: pa.Schema, what: str) -> None:
        """Write the kept rows of a table that has one row for each of `what`."""
        table = tables.read_table(self.base.folder(stage) / file, schema).take(pa.array(self.rows[what]))
        self.write(stage, file, schema, {name: table[name] for name in schema.names})

    def write(self, stage: str, file: str, schema: pa.Schema, columns: Mapping[str, object]) -> None:
        """Write a table of the stage. columns: arrays or lists."""
        arrays = [_array(columns[part.name], part.type) for part in schema]
        tables.write_columns(self.folders[stage] / file, schema, arrays)

    def take_vectors(self, stage: str, rows: np.ndarray) -> None:
        """Write some rows of a stage's vectors."""
        vectors = tables.read_arrays(self.base.folder(stage) / "vectors.safetensors")["vectors"]
        tables.write_arrays(self.folders[stage] / "vectors.safetensors", {"vectors": vectors[rows]})

    def work(self, stage: str) -> Work:
        """Inputs of a stage that is made from the stages of the part; no models."""
        no_models: Any = None
        sources, partial = Sources(edits=self.base.path / EDITS), self.path / "work"
        folders, settings = dict(self.folders), self.settings
        return Work(folders[stage], partial, folders, settings, sources, no_models, Silent(), StageReport())

    def run(self, stage: Stage) -> None:
        """Make a stage that needs no model from the stages of the part."""
        self.counts[stage.name] = stage.run(self.work(stage.name))


Narrow = Callable[[Part], None]


def _array(column: object, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    return column.cast(kind) if isinstance(column, pa.Array) else pa.array(column, kind)


def narrowed(
    base: Index, documents: np.ndarray, others: Mapping[str, Narrow], stages: Collection[str] | None = None
) -> Index:
    """Part of an index with some of its documents: bool[n documents], at least one True. others: functions for the
    stages of methods (`registry.stage_narrowers`). stages: the stages that the part gets; None means all.

    It lies in a temporary folder, which is removed when the part is freed.
    """
    kept = TemporaryDirectory(prefix="gpu-rag-where-", ignore_cleanup_errors=True)
    part = Part(base, Path(kept.name), make_settings({}, base.manifest.defaults()))
    doc_rows = np.flatnonzero(documents)
    part.keep("documents", doc_rows, len(documents))
    stays = documents[[base.document_rows[name] for name in base.passage_doc_ids]]
    part.keep("passages", np.flatnonzero(stays), base.n_passages)
    records: dict[str, StageRecord] = {}
    by_name = {**NARROW, **others}
    records_of = base.manifest.stages
    waiting = [records_of[name] for name in records_of if name in by_name and (stages is None or name in stages)]
    with storage_errors(part.path):
        while ready := [record for record in waiting if record.inputs.keys() <= records.keys()]:
            for record in ready:
                waiting.remove(record)
                folder = f"stages/{record.name}-part"
                part.folders[record.name] = part.path / folder
                part.folders[record.name].mkdir(parents=True)
                by_name[record.name](part)
                inputs = {need: records[need].output_hash for need in record.inputs}
                files = checksums(part.folders[record.name])
                records[record.name] = StageRecord(
                    record.name, record.version, record.fingerprint, folder, inputs, record.params, record.models,
                    files, part.counts.get(record.name, {}),
                )  # fmt: skip
        blocks = {name: block_sums(part.folders[name], record.files) for name, record in records.items()}
        Manifest(base.manifest.settings, base.manifest.sources, records, blocks=blocks).write(part.path)
        if (base.path / TUNED).is_file():
            (part.path / TUNED).write_bytes((base.path / TUNED).read_bytes())
    found = Index.open(part.path, device=base.device)
    found.threads, found.lies_in = base.threads, kept
    return found


# --- the stages that several methods share ---------------------------------------------------------------


def _passages(part: Part) -> None:
    part.take_table("passages", "documents.parquet", tables.DOCUMENTS, "documents")
    passages = part.base.passages.take(pa.array(part.rows["passages"]))
    part.write(
        "passages", "passages.parquet", tables.PASSAGES, {name: passages[name] for name in passages.column_names}
    )
    part.take_table("passages", "lines.parquet", tables.LINES, "passages")
    if (part.base.folder("passages") / "origins.parquet").exists():
        part.take_table("passages", "origins.parquet", ORIGINS, "documents")
    if part.base.metadata is not None:
        part.take_table("passages", METADATA, part.base.metadata.schema, "documents")


def _bm25(part: Part) -> None:
    part.base.bm25.part(part.rows["passages"]).save(part.folders["bm25"])


def _extraction(part: Part) -> None:
    part.narrow_table("extraction", "extractions.parquet", tables.EXTRACTIONS, passage="passages")
    if part.base.manifest.stages["extraction"].version >= 2:  # version 1 had no profiles
        part.narrow_table("extraction", "profiles.parquet", tables.PROFILES, passage="passages")


def _entities(part: Part) -> None:
    """Make the entities anew, so that names are written as the documents of the part write them."""
    part.run(entities_stage)
    for what, schema, of_all in (
        ("entities", tables.ENTITIES, part.base.entities),
        ("relations", tables.RELATIONS, part.base.relations),
    ):
        ids = tables.read_table(part.folders["entities"] / f"{what}.parquet", schema)["id"]
        rows = pc.index_in(ids, value_set=tables.whole_text(of_all["id"]).cast(ids.type)).to_numpy()
        part.keep(what, rows.astype(np.int64), of_all.num_rows)


def _mentions(part: Part) -> None:
    part.narrow_table("mentions", "mentions.parquet", tables.MENTIONS, entity="entities", passage="passages")


def _synonyms(part: Part) -> None:
    part.narrow_table("synonyms", "synonyms.parquet", tables.SYNONYMS, left="entities", right="entities")


def vectors_of(stage: str, what: str) -> Narrow:
    """A function that narrows a stage of vectors, one for each row of `what`."""
    return lambda part: part.take_vectors(stage, part.rows[what])


NARROW: dict[str, Narrow] = {
    "passages": _passages,
    "bm25": _bm25,
    "passage_vectors": vectors_of("passage_vectors", "passages"),
    "extraction": _extraction,
    "entities": _entities,
    "entity_vectors": vectors_of("entity_vectors", "entities"),
    "relation_vectors": vectors_of("relation_vectors", "relations"),
    "mentions": _mentions,
    "synonyms": _synonyms,
    "graph": lambda part: part.run(graph_stage),
}
