"""verify: silent on a sound index, and a line for every kind of planted damage, also under redone checksums."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import Change, Columns, drop, put, repeat, swap, turned
from stage_bench import FILES, HOME

import gpu_rag
from gpu_rag.index import tables
from gpu_rag.index.index import GRAPH
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.name_table import NAMES
from gpu_rag.index.titles import TITLE_WEIGHT
from gpu_rag.index.verify import verify
from gpu_rag.index.walk import stored, walk_of
from gpu_rag.text.bm25 import ARRAYS_FILE, VOCABULARY_FILE, Bm25


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
    gpu_rag.build(corpus, folder / "ix", methods=["ppr", "hybrid", "bubblerag"], openie=openie, settings=settings)
    return folder / "ix"


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "ix"))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.index.checks.ROWS", 2)


def located(column: str, value: int) -> Change:
    """Alters the first mention that has offsets."""

    def change(columns: Columns) -> None:
        row = next(row for row, start in enumerate(columns["start"]) if start >= 0)
        columns[column][row] = value

    return change


def without_first_passage(columns: Columns) -> None:
    """The mentions of the first passage are lost."""
    for row in reversed(range(len(columns["passage"]))):
        if columns["passage"][row] == 0:
            drop(row)(columns)


def vectors(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    return turned("vectors", change)


Edge = tuple[int, int, float]


def edges(change: Callable[[list[Edge]], list[Edge]]) -> Change:
    """Damage to the graph as a list of (row, column, weight)."""

    def apply(held: Columns) -> None:
        walk = walk_of(held)
        n = len(walk["indptr"]) - 1
        row = np.repeat(np.arange(n), np.diff(walk["indptr"]))
        kept = sorted(change(list(zip(row.tolist(), walk["indices"].tolist(), walk["weight"].tolist()))))
        starts = np.cumsum([0, *np.bincount([a for a, _, _ in kept], minlength=n)])
        weight = np.asarray([w for _, _, w in kept], np.float32)
        held.update(stored(starts, np.asarray([b for _, b, _ in kept], np.int32), weight))

    return apply


def without_pair(pick: Callable[[Edge], bool]) -> Change:
    def change(held: list[Edge]) -> list[Edge]:
        a, b, _ = next(edge for edge in held if edge[0] < edge[1] and pick(edge))
        return [edge for edge in held if set(edge[:2]) != {a, b}]

    return edges(change)


def with_heavy_pair(held: list[Edge]) -> list[Edge]:
    """The first edge weighs as much as one of a title."""
    pair = set(held[0][:2])
    return [(a, b, TITLE_WEIGHT if {a, b} == pair else w) for a, b, w in held]


def moved_to_another_passage(held: list[Edge]) -> list[Edge]:
    """One entity-passage edge leads elsewhere: the number of edges stays, and both directions agree."""
    linked = {edge[:2] for edge in held}
    a, b, w = next(edge for edge in held if edge[0] < 6 <= edge[1])
    free = next(node for node in range(6, 11) if (a, node) not in linked)
    rest = [edge for edge in held if set(edge[:2]) != {a, b}]
    return [*rest, (a, free, w), (free, a, w)]


DAMAGES: dict[str, tuple[str, Change, str]] = {
    "passage ids in disorder": ("passages", swap("id"), "passages: ids are not sorted and unique"),
    "a passage twice": ("passages", repeat(0), "passages: ids are not sorted and unique"),
    "documents in disorder": ("documents", swap("id"), "documents: ids are not sorted"),
    "pages not from 0": ("documents", put("pages", 0, [1, 5]), "documents: 1 have page offsets"),
    "pages in disorder": ("documents", put("pages", 1, [0, 9, 9]), "documents: 1 have page offsets"),
    "a lost document": ("documents", drop(0), "name a document that does not exist"),
    "offsets": ("passages", put("end", 0, 999), "1 have offsets that do not fit their text"),
    "an altered text": ("passages", put("text", 0, "No."), "offsets that do not fit their text"),
    "a lost passage vector": ("passage_vectors", vectors(lambda v: v[1:]), "passage_vectors: 4 rows for 5 passages"),
    "a long vector": ("passage_vectors", vectors(lambda v: v * 2), "passage_vectors: not all vectors have length 1"),
    "a long vector, in a later block": ("passage_vectors", put("vectors", 4, lambda v: v * 2), "not all vectors have"),
    "a vector of zeros": ("entity_vectors", vectors(lambda v: v * 0), "entity_vectors: not all vectors"),
    "a vector that is no number": ("relation_vectors", vectors(lambda v: v * np.nan), "relation_vectors: not all"),
    "vectors of two dimensions": ("entity_vectors", vectors(lambda v: np.pad(v, ((0, 0), (0, 1)))), "dimensions"),
    "a lost extraction": ("extraction", drop(-1), "extractions: not one row a passage"),
    "an extraction twice": ("extraction", put("passage", 1, 0), "extractions: not one row a passage"),
    "entities in disorder": ("entities", swap("id"), "entities: ids are not sorted and unique"),
    "an entity of no passage": ("extracted", drop(0), "extracted: 1 entities are in another number"),
    "an entity that is not there": ("extracted", put("entity", 0, 99), "extracted: 1 with a row number"),
    "extracted in disorder": ("extracted", swap("entity"), "extracted: not sorted"),
    "a subject too high": ("relations", put("subject", 0, 99), "relations: 1 with a row number as subject"),
    "an object below 0": ("relations", put("object", 0, -1), "relations: 1 with a row number as object"),
    "a relation nowhere": ("relations", put("passages", 0, []), "relations: 1 name no passage"),
    "a relation too far": ("relations", put("passages", 0, [5]), "relations: 1 name no passage"),
    "a mention of nobody": ("mentions", put("entity", 0, 99), "mentions: 1 with a row number that no entity"),
    "a mention nowhere": ("mentions", put("passage", 0, 5), "mentions: 1 with a row number that no passage"),
    "a mention too long": ("mentions", located("end", 500), "mentions: 1 lie outside their passage"),
    "an empty mention": ("mentions", located("end", 0), "mentions: 1 lie outside their passage"),
    "a lost mention": ("mentions", without_first_passage, "graph: "),
    "a synonym of nobody": ("synonyms", put("right", 0, 99), "synonyms: 1 are not a pair"),
    "a synonym of itself": ("synonyms", put("left", 0, 50), "synonyms: 1 are not a pair"),
    "an edge of one direction": ("graph", edges(lambda e: e[1:]), "graph: an edge lacks its other direction"),
    "two weights of one edge": ("graph", edges(lambda e: [(*e[0][:2], 0.123), *e[1:]]), "lacks its other direction"),
    "a node too many": ("graph", turned("counts", lambda counts: np.append(counts, counts[:1] * 0)), "nodes for"),
    "an edge to no node": ("graph", put("indices", 0, 10_000), "10000"),
    "a weight that is no number": ("graph", put("weights", 0, np.nan), "weight"),
    "a lost relation or synonym": ("graph", without_pair(lambda e: e[1] < 6), "graph: 1 edges are missing"),
    "a lost link to a passage": ("graph", without_pair(lambda e: e[1] >= 6), "graph: 1 edges are missing"),
    "a heavy edge without a title": ("graph", edges(with_heavy_pair), "graph: the weight of a title is on other"),
    "one title more": ("title_names", turned("rows", lambda rows: np.append(rows, np.int32(0))), "title_names: not"),
    "a name that begins otherwise": ("entity_names", put("begins", 0, 0), "entity_names: not what"),
    "a lost end of a relation": ("relation_graph", without_pair(lambda e: e[1] < 10), "relation_graph: 1 edges"),
    "a lost passage of a relation": ("relation_graph", without_pair(lambda e: e[0] >= 6), "relation_graph: 1 edges"),
    "a heavy relation": ("relation_graph", edges(with_heavy_pair), "relation_graph: the weight of a title"),
    "an edge without a reason": ("graph", edges(moved_to_another_passage), "graph: 1 edges are missing, 1 have no"),
}


def test_a_sound_index_has_nothing_to_say(index: Path) -> None:
    assert verify(index) == []
    held = gpu_rag.Index.open(index)
    assert (held.n_passages, held.n_entities, held.relations.num_rows) == (5, 6, 4)
    synonyms = tables.read_table(held.folder("synonyms") / "synonyms.parquet", tables.SYNONYMS)
    assert synonyms.num_rows == 1  # the damages count on these numbers


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_even_under_right_checksums(index: Path, plant: Any, kind: str) -> None:
    part, damage, line = DAMAGES[kind]
    if part in FILES:
        stage, file = HOME.get(part, part), FILES[part][0]
    else:
        files = {**dict.fromkeys(("graph", "relation_graph"), GRAPH), "title_names": NAMES, "entity_names": NAMES}
        stage, file = part, files.get(part, "vectors.safetensors")
    plant(index, stage, file, damage)
    found = verify(index)
    assert any(line in broken for broken in found), found


def test_words_of_another_corpus_are_found(index: Path, plant: Any, tmp_path: Path) -> None:
    Bm25.build(["one text", "another"]).save(tmp_path)
    shutil.copy(tmp_path / VOCABULARY_FILE, stage_path(index, "bm25"))
    plant(index, "bm25", ARRAYS_FILE, lambda held: held.update(tables.read_arrays(tmp_path / ARRAYS_FILE)))
    assert any("bm25: 2 passages for 5" in line for line in verify(index))


def stage_path(index: Path, stage: str) -> Path:
    return index / Manifest.read(index).stages[stage].folder


def test_a_missing_an_altered_and_a_strange_file(index: Path) -> None:
    (stage_path(index, "bm25") / "bm25.json.zst").unlink()
    (stage_path(index, "graph") / "notes.txt").write_text("x")
    vectors_path = stage_path(index, "entity_vectors") / "vectors.safetensors"
    data = vectors_path.read_bytes()
    vectors_path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    shutil.rmtree(stage_path(index, "synonyms"))
    found = verify(index)
    assert len(found) == 4
    for part in ("bm25.json.zst: missing", "notes.txt: not part of the index", "vectors.safetensors: altered (sha256"):
        assert sum(part in line for line in found) == 1
    assert sum("the folder is missing" in line for line in found) == 1


def test_a_stage_made_from_another_state(index: Path) -> None:
    manifest = Manifest.read(index)
    record = manifest.stages["mentions"]
    manifest.with_stage(replace(record, inputs={**record.inputs, "entities": "0" * 64})).write(index)
    assert [line.split(": ")[1] for line in verify(index)] == ["made from another state of entities"]
