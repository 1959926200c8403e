"""The tables of documents and passages, gathered in columns and written sorted by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import ORIGINS
from gpu_rag.index.stages.node_documents import NodeDocuments
from gpu_rag.index.write import TableWriter

_PYTHON_ROWS = 1 << 12  # documents as Python objects
_STEP = 8 * tables.ROWS_A_GROUP
Row = Mapping[str, Any]


def _large(schema: pa.Schema) -> pa.Schema:
    """The schema with texts of any total size."""
    return pa.schema([(f.name, pa.large_string() if pa.types.is_string(f.type) else f.type) for f in schema])


_SCHEMAS = {
    "documents": _large(tables.DOCUMENTS),
    "passages": _large(pa.schema([*tables.PASSAGES, *tables.LINES])),
    "origins": _large(ORIGINS),
}


class PassageTables:
    """Documents, passages and origins of a build. Memory: the text once, twice while a table is written."""

    def __init__(self) -> None:
        self.n_documents = self.n_passages = 0
        self._rows: dict[str, list[Row]] = {name: [] for name in _SCHEMAS}
        self._parts: dict[str, list[pa.RecordBatch]] = {name: [] for name in _SCHEMAS}

    def add_rows(self, documents: Sequence[Row], passages: Sequence[Row], origins: Sequence[Row] = ()) -> None:
        """Takes rows of the three tables; those of passages have their `line` too."""
        for name, rows in (("documents", documents), ("passages", passages), ("origins", origins)):
            self._rows[name].extend(rows)
        self.n_documents += len(documents)
        self.n_passages += len(passages)
        if len(self._rows["documents"]) >= _PYTHON_ROWS:
            self._pack()

    def _pack(self) -> None:
        for name, schema in _SCHEMAS.items():
            rows = self._rows[name]
            columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
            self._parts[name].append(pa.RecordBatch.from_arrays(columns, schema=schema))
            rows.clear()

    def add_nodes(self, found: NodeDocuments) -> None:
        """Takes documents of nodes."""
        n, of = found.n, pa.array(found.owner)
        pages = pa.ListArray.from_arrays(np.zeros(n + 1, np.int32), pa.array([], pa.int64()))
        files, sources = (pa.array([text] * n, pa.large_string()) for text in (found.file, found.source))
        titles, line = found.titles, np.zeros(len(of), np.int32)
        columns = {
            "documents": [found.ids, titles, files, found.line.astype(np.int32), pages],
            "passages": [
                found.passage_ids, found.ids.take(of), titles.take(of), found.texts, found.start, found.end, line,
            ],
            "origins": [found.ids, sources, found.nodes],
        }  # fmt: skip
        for name, schema in _SCHEMAS.items():
            self._parts[name].append(pa.RecordBatch.from_arrays([pa.array(c) for c in columns[name]], schema=schema))
        self.n_documents += n
        self.n_passages += len(of)

    def write(self, folder: Path) -> None:
        """Tables `documents`, `passages` and `lines`, by id. Once: what is written is let go."""
        self._write("documents", "id", {folder / "documents.parquet": tables.DOCUMENTS})
        files = {folder / "passages.parquet": tables.PASSAGES, folder / "lines.parquet": tables.LINES}
        self._write("passages", "id", files)

    def write_origins(self, folder: Path) -> None:
        """Table `origins`, by document."""
        self._write("origins", "document", {folder / "origins.parquet": ORIGINS})

    def _write(self, name: str, key: str, files: Mapping[Path, pa.Schema]) -> None:
        self._pack()
        parts, self._parts[name] = self._parts[name], []
        columns = {}
        for number, field in enumerate(_SCHEMAS[name]):
            columns[field.name] = pa.concat_arrays([part.column(number) for part in parts])
        del parts
        order = pc.sort_indices(columns[key])
        for path, schema in files.items():
            with TableWriter(path, schema) as writer:
                for start in range(0, len(order), _STEP):
                    at = order.slice(start, _STEP)
                    writer.add([columns[field.name].take(at) for field in schema])
