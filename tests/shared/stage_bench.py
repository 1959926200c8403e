"""A bench for single index stages: hand-made tables in, one stage run, its files out; fixtures for a conftest."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gpu_rag.index import tables
from gpu_rag.index.folder import checksums
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.stage import Stage
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import make_settings
from gpu_rag.text.normalise import normalise_name

FILES = {
    "passages": ("passages.parquet", tables.PASSAGES),
    "documents": ("documents.parquet", tables.DOCUMENTS),
    "extraction": ("extractions.parquet", tables.EXTRACTIONS),
    "entities": ("entities.parquet", tables.ENTITIES),
    "extracted": ("extracted.parquet", tables.EXTRACTED),
    "relations": ("relations.parquet", tables.RELATIONS),
    "mentions": ("mentions.parquet", tables.MENTIONS),
    "synonyms": ("synonyms.parquet", tables.SYNONYMS),
}
HOME = {
    "documents": "passages",
    "relations": "entities",
    "extracted": "entities",
}  # tables that lie in another table's stage


@dataclass
class Bench:
    """Stage folders below `root`. `put*` plays the stages before, `run` runs one layer, `rows` reads a table."""

    root: Path
    counts: dict[str, int] = field(default_factory=dict)
    report: StageReport = field(default_factory=StageReport)

    def folder(self, stage: str) -> Path:
        path = self.root / HOME.get(stage, stage)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def put(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        file, schema = FILES[table]
        tables.write_rows(self.folder(table) / file, schema, rows)

    def put_passages(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> None:
        """One passage a document, with ids p000, p001, ..."""
        titles = titles or [""] * len(texts)
        ids = [f"p{i:03d}" for i in range(len(texts))]
        self.put(
            "passages",
            [
                {"id": i, "doc_id": i, "title": title, "text": text, "start": 0, "end": len(text)}
                for i, title, text in zip(ids, titles, texts)
            ],
        )

    def put_extractions(self, found: Sequence[tuple[Sequence[str], Sequence[tuple[str, str, str]]]]) -> None:
        """(names, triples) of passage 0, 1, ..."""
        rows = [
            {"passage": i, "entities": list(names), "triples": [list(t) for t in triples], "status": "ok"}
            for i, (names, triples) in enumerate(found)
        ]
        self.put("extraction", rows)

    def put_entities(self, names: Sequence[str], aliases: Mapping[str, Sequence[str]] | None = None) -> None:
        """Entities by normalised name; each is written like its id unless `aliases` gives other ways."""
        ways = {name: list((aliases or {}).get(name, [name])) for name in names}
        rows = [{"id": n, "name": ways[n][0], "aliases": ways[n][1:], "n_passages": 1} for n in sorted(names)]
        self.put("entities", rows)

    def put_extracted(self, found: Sequence[tuple[Sequence[str], Sequence[tuple[str, str, str]]]]) -> None:
        """Where the entities that were put are stated; found: as of `put_extractions`."""
        row_of = {row["id"]: i for i, row in enumerate(self.rows("entities"))}
        stated = [
            {normalise_name(name) for name in [*names, *(end for s, _, o in triples for end in (s, o))]}
            for names, triples in found
        ]
        pairs = sorted((i, row_of[key]) for i, keys in enumerate(stated) for key in keys if key in row_of)
        self.put("extracted", [{"passage": passage, "entity": entity} for passage, entity in pairs])

    def put_vectors(self, stage: str, vectors: np.ndarray) -> None:
        tables.write_arrays(self.folder(stage) / "vectors.safetensors", {"vectors": vectors.astype(np.float16)})

    def run(
        self,
        layer: Stage,
        settings: Mapping[str, Any] | None = None,
        *,
        sources: Sources | None = None,
        llm: LLM | None = None,
        before: Bench | None = None,
    ) -> dict[str, int]:
        """Runs a layer into its own folder; counts and costs are kept in `counts` and `report`. before: a bench with
        an earlier run of the layer."""
        chosen = make_settings({"models": {"embedder": "hash", "llm": "none"}, **(settings or {})})
        folders = {need: self.root / need for need in layer.needs}
        models = ModelSet(chosen.models, llm=llm)
        self.report = StageReport()
        out = self.folder(layer.name)
        work = Work(out, self.root / "work", folders, chosen, sources or Sources(), models, Silent(), self.report)
        work.params = self.params = layer.params(chosen, work.sources)
        if before:
            work.previous_params = before.params
            work.previous = before.folder(layer.name)
            work.previous_inputs = {need: before.root / need for need in layer.needs}
        self.counts = layer.run(work)
        return self.counts

    def rows(self, name: str) -> list[dict[str, Any]]:
        file, schema = FILES[name]
        return tables.read_table(self.folder(name) / file, schema).to_pylist()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "stages")


@pytest.fixture
def benches(tmp_path: Path) -> Iterable[Bench]:
    """Endless fresh benches, for tests that draw many examples."""
    return (Bench(tmp_path / f"stages-{i}") for i in itertools.count())


Plant = Callable[[Path, str, str, Callable[[Any], None]], None]


@pytest.fixture
def plant() -> Plant:
    """plant(index, stage, file, change): damage under redone checksums, as a bug in a layer would have left it.

    change: alters the columns of a table (lists by name), the arrays of a file, or a JSON document, in place.
    """

    def damage(folder: Path, stage: str, file: str, change: Callable[[Any], None]) -> None:
        manifest = Manifest.read(folder)
        path = folder / manifest.stages[stage].folder / file
        before = checksums(path.parent)
        if path.suffix == ".parquet":
            schema = pq.read_schema(path)
            columns = tables.read_table(path, schema).to_pydict()
            change(columns)
            tables.write_table(path, schema, columns)
        elif path.suffix == ".json":
            document = json.loads(path.read_text())
            change(document)
            path.write_text(json.dumps(document))
        else:
            arrays = {name: array.copy() for name, array in tables.read_arrays(path).items()}
            change(arrays)
            tables.write_arrays(path, arrays)
        assert checksums(path.parent) != before, "the damage changed nothing"
        manifest = manifest.with_stage(replace(manifest.stages[stage], files=checksums(path.parent)))
        for other in manifest.stages.values():
            inputs = {need: manifest.stages[need].output_hash for need in other.inputs}
            manifest = manifest.with_stage(replace(other, inputs=inputs))
        manifest.write(folder)

    return damage
