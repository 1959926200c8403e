"""verify: silent on a sound index, and a line for every kind of planted damage, also under redone checksums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_rag
from gpu_rag.errors import BadInput
from gpu_rag.index import tables
from gpu_rag.index.folder import checksums
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.verify import verify
from gpu_rag.text.bm25 import Bm25

Row = dict[str, Any]
Damage = Callable[[Path], None]

SCHEMAS = {
    "documents.parquet": tables.DOCUMENTS,
    "passages.parquet": tables.PASSAGES,
    "extractions.parquet": tables.EXTRACTIONS,
    "entities.parquet": tables.ENTITIES,
    "relations.parquet": tables.RELATIONS,
    "mentions.parquet": tables.MENTIONS,
    "synonyms.parquet": tables.SYNONYMS,
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of every layer: 5 passages of 3 documents, 6 entities, 4 relations, 1 pair of synonyms."""
    folder = tmp_path_factory.mktemp("sound")
    texts = ["Ann Orlo met Bo Brandt in Kerling.", "Bo Brandt was born in Kerling in 1902.", "Ann Orlow sang. " * 9]
    corpus, openie = folder / "corpus", folder / "openie.jsonl"
    corpus.mkdir()
    for i, text in enumerate(texts):
        (corpus / f"d{i}.txt").write_text(text)
    found = [
        (["Ann Orlo", "Lost"], [["Ann Orlo", "met", "Bo Brandt"]]),
        (["1902"], [["Bo Brandt", "born in", "Kerling"], ["Bo Brandt", "born in", "1902"]]),
        (["Ann Orlow"], [["Ann Orlow", "is", "Ann Orlow"]]),
    ]
    rows = [{"id": f"d{i}.txt", "entities": names, "triples": triples} for i, (names, triples) in enumerate(found)]
    openie.write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = {"extractor": "import", "synonym_threshold": 0.5, "chunk_words": 12, "overlap_words": 3}
    settings = {"models": {"embedder": "hash", "llm": "none"}, "index": index}
    gpu_rag.build(corpus, folder / "ix", methods=["ppr", "hybrid"], openie=openie, settings=settings)
    return folder / "ix"


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "ix"))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.index.checks.ROWS", 2)


def plant(folder: Path, stage: str, damage: Damage) -> None:
    """Damages a stage and then redoes every checksum, as a bug in a layer would have left them."""
    manifest = Manifest.read(folder)
    record = manifest.stages[stage]
    base = folder / record.folder
    before = checksums(base)
    damage(base)
    assert checksums(base) != before, "the damage changed nothing"
    manifest = manifest.with_stage(replace(record, files=checksums(base)))
    for other in manifest.stages.values():
        inputs = {need: manifest.stages[need].output_hash for need in other.inputs}
        manifest = manifest.with_stage(replace(other, inputs=inputs))
    manifest.write(folder)


def rows(file: str, change: Callable[[list[Row]], Any]) -> Damage:
    """Damage to a table: `change` alters the rows in place, or returns others."""

    def damage(base: Path) -> None:
        schema = SCHEMAS[file]
        held = tables.read_table(base / file, schema).to_pylist()
        changed = change(held)
        tables.write_rows(base / file, schema, held if changed is None else changed)

    return damage


def arrays(file: str, change: Callable[[dict[str, np.ndarray]], Any]) -> Damage:
    """Damage to arrays, in place."""

    def damage(base: Path) -> None:
        held = {name: array.copy() for name, array in tables.read_arrays(base / file).items()}
        change(held)
        tables.write_arrays(base / file, held)

    return damage


def put(row: int, column: str, value: Any) -> Callable[[list[Row]], None]:
    def change(held: list[Row]) -> None:
        held[row][column] = value

    return change


def located(column: str, value: int) -> Callable[[list[Row]], None]:
    """Alters the first mention that has offsets."""

    def change(held: list[Row]) -> None:
        next(row for row in held if row["start"] >= 0)[column] = value

    return change


def swap_names(held: list[Row]) -> None:
    held[0]["id"], held[1]["id"] = held[1]["id"], held[0]["id"]


def repeat_first(held: list[Row]) -> list[Row]:
    return [held[0], *held]


def vectors(change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    def apply(held: dict[str, np.ndarray]) -> None:
        held["vectors"] = change(held["vectors"])

    return arrays("vectors.safetensors", apply)


def graph(change: Callable[[dict[str, np.ndarray]], Any]) -> Damage:
    return arrays("graph.safetensors", change)


def edges(change: Callable[[list[tuple[int, int, float]]], list[tuple[int, int, float]]]) -> Damage:
    """Damage to the graph as a list of (row, column, weight)."""

    def apply(held: dict[str, np.ndarray]) -> None:
        n = len(held["indptr"]) - 1
        row = np.repeat(np.arange(n), np.diff(held["indptr"]))
        kept = sorted(change(list(zip(row.tolist(), held["indices"].tolist(), held["weight"].tolist()))))
        held["indptr"] = np.cumsum([0, *np.bincount([a for a, _, _ in kept], minlength=n)]).astype(np.int64)
        held["indices"] = np.asarray([b for _, b, _ in kept], np.int32)
        held["weight"] = np.asarray([w for _, _, w in kept], np.float32)

    return graph(apply)


def without_pair(pick: Callable[[tuple[int, int, float]], bool]) -> Damage:
    def change(held: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
        a, b, _ = next(edge for edge in held if edge[0] < edge[1] and pick(edge))
        return [edge for edge in held if set(edge[:2]) != {a, b}]

    return edges(change)


def moved_to_another_passage(base: Path) -> None:
    """One entity-passage edge leads elsewhere: the number of edges stays, and both directions agree."""

    def change(held: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
        linked = {edge[:2] for edge in held}
        a, b, w = next(edge for edge in held if edge[0] < 6 <= edge[1])
        free = next(node for node in range(6, 11) if (a, node) not in linked)
        rest = [edge for edge in held if set(edge[:2]) != {a, b}]
        return [*rest, (a, free, w), (free, a, w)]

    edges(change)(base)


def another_bm25(base: Path) -> None:
    Bm25.build(["one text", "another"]).save(base)


def long_row(held: dict[str, np.ndarray]) -> None:
    held["indptr"] = np.append(held["indptr"], held["indptr"][-1])


def huge_node(held: dict[str, np.ndarray]) -> None:
    held["indices"][0] = 10_000


def nan_weight(held: dict[str, np.ndarray]) -> None:
    held["weight"][0] = np.nan


def other_ranges(held: dict[str, np.ndarray]) -> None:
    held["ranges"] = held["ranges"] + 1


P, X, E, M, S = "passages", "extraction", "entities", "mentions", "synonyms"
DAMAGES: dict[str, tuple[str, Damage, str]] = {
    "passage ids in disorder": (P, rows("passages.parquet", swap_names), "passages: ids are not sorted and unique"),
    "a passage twice": (P, rows("passages.parquet", repeat_first), "passages: ids are not sorted and unique"),
    "documents in disorder": (P, rows("documents.parquet", lambda r: r[::-1]), "documents: ids are not sorted"),
    "pages not from 0": (P, rows("documents.parquet", put(0, "pages", [1, 5])), "documents: 1 have page offsets"),
    "pages in disorder": (P, rows("documents.parquet", put(1, "pages", [0, 9, 9])), "documents: 1 have page offsets"),
    "a lost document": (P, rows("documents.parquet", lambda r: r[1:]), "name a document that does not exist"),
    "offsets": (P, rows("passages.parquet", put(0, "end", 999)), "1 have offsets that do not fit their text"),
    "an altered text": (P, rows("passages.parquet", put(0, "text", "No.")), "offsets that do not fit their text"),
    "a lost passage vector": ("passage_vectors", vectors(lambda v: v[1:]), "passage_vectors: 4 rows for 5 passages"),
    "a long vector": ("passage_vectors", vectors(lambda v: v * 2), "passage_vectors: not all vectors have length 1"),
    "a long vector, in a later block": (
        "passage_vectors",
        vectors(lambda v: v * np.where(np.arange(len(v)) == 4, 2, 1)[:, None].astype(v.dtype)),
        "passage_vectors: not all vectors have length 1",
    ),
    "a vector of zeros": ("entity_vectors", vectors(lambda v: v * 0), "entity_vectors: not all vectors"),
    "a vector that is no number": ("relation_vectors", vectors(lambda v: v * np.nan), "relation_vectors: not all"),
    "vectors of two dimensions": ("entity_vectors", vectors(lambda v: np.pad(v, ((0, 0), (0, 1)))), "dimensions"),
    "words of another corpus": ("bm25", another_bm25, "bm25: 2 passages for 5"),
    "a lost extraction": (X, rows("extractions.parquet", lambda r: r[:-1]), "extractions: not one row a passage"),
    "an extraction twice": (X, rows("extractions.parquet", put(1, "passage", 0)), "extractions: not one row a passage"),
    "entities in disorder": (E, rows("entities.parquet", swap_names), "entities: ids are not sorted and unique"),
    "a subject too high": (
        E,
        rows("relations.parquet", put(0, "subject", 99)),
        "relations: 1 with a row number as subject",
    ),
    "an object below 0": (
        E,
        rows("relations.parquet", put(0, "object", -1)),
        "relations: 1 with a row number as object",
    ),
    "a relation nowhere": (E, rows("relations.parquet", put(0, "passages", [])), "relations: 1 name no passage"),
    "a relation too far": (E, rows("relations.parquet", put(0, "passages", [5])), "relations: 1 name no passage"),
    "a mention of nobody": (
        M,
        rows("mentions.parquet", put(0, "entity", 99)),
        "mentions: 1 with a row number that no entity",
    ),
    "a mention nowhere": (
        M,
        rows("mentions.parquet", put(0, "passage", 5)),
        "mentions: 1 with a row number that no passage",
    ),
    "a mention too long": (M, rows("mentions.parquet", located("end", 500)), "mentions: 1 lie outside their passage"),
    "an empty mention": (M, rows("mentions.parquet", located("end", 0)), "mentions: 1 lie outside their passage"),
    "a lost mention": (M, rows("mentions.parquet", lambda r: [m for m in r if m["passage"]]), "graph: "),
    "a synonym of nobody": (S, rows("synonyms.parquet", put(0, "right", 99)), "synonyms: 1 are no pair"),
    "a synonym of itself": (S, rows("synonyms.parquet", put(0, "left", 50)), "synonyms: 1 are no pair"),
    "an edge of one direction": ("graph", edges(lambda e: e[1:]), "graph: an edge lacks its other direction"),
    "two weights of one edge": ("graph", edges(lambda e: [(*e[0][:2], 0.123), *e[1:]]), "lacks its other direction"),
    "a node too many": ("graph", graph(long_row), "nodes for"),
    "an edge to no node": ("graph", graph(huge_node), "10000"),
    "a weight that is no number": ("graph", graph(nan_weight), "weight"),
    "wrong ranges": ("graph", graph(other_ranges), "graph: the ranges"),
    "a lost relation or synonym": ("graph", without_pair(lambda e: e[1] < 6), "graph: 1 edges are missing"),
    "a lost link to a passage": ("graph", without_pair(lambda e: e[1] >= 6), "graph: 1 edges are missing"),
    "an edge without a reason": ("graph", moved_to_another_passage, "graph: 1 edges are missing, 1 have no reason"),
}


def test_a_sound_index_has_nothing_to_say(index: Path) -> None:
    assert verify(index) == []
    held = gpu_rag.Index.open(index)
    assert (held.n_passages, held.n_entities, held.relations.num_rows) == (5, 6, 4)
    synonyms = tables.read_table(held.folder("synonyms") / "synonyms.parquet", tables.SYNONYMS)
    assert synonyms.num_rows == 1  # the damages count on these numbers


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_even_under_right_checksums(index: Path, kind: str) -> None:
    stage, damage, line = DAMAGES[kind]
    plant(index, stage, damage)
    found = verify(index)
    assert any(line in broken for broken in found), found


def stage_path(index: Path, stage: str) -> Path:
    return index / Manifest.read(index).stages[stage].folder


def test_a_missing_an_altered_and_a_strange_file(index: Path) -> None:
    (stage_path(index, "bm25") / "bm25.json").unlink()
    (stage_path(index, "graph") / "notes.txt").write_text("x")
    vectors_path = stage_path(index, "entity_vectors") / "vectors.safetensors"
    data = vectors_path.read_bytes()
    vectors_path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    shutil.rmtree(stage_path(index, "synonyms"))
    found = verify(index)
    assert len(found) == 4
    for part in ("bm25.json: missing", "notes.txt: not part of the index", "vectors.safetensors: altered (sha256"):
        assert sum(part in line for line in found) == 1
    assert sum("the folder is missing" in line for line in found) == 1


def test_a_stage_made_from_another_state(index: Path) -> None:
    manifest = Manifest.read(index)
    record = manifest.stages["mentions"]
    manifest.with_stage(replace(record, inputs={**record.inputs, "entities": "0" * 64})).write(index)
    assert [line.split(": ")[1] for line in verify(index)] == ["made from another state of entities"]


def test_a_folder_that_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not an index"):
        verify(tmp_path)
