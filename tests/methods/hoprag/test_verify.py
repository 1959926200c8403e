"""verify on hop layers: silent on a sound index, and a line for every kind of damage under redone checksums."""

import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import Columns, drop, put

from gpu_rag.cli import verify_command
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.verify import verify
from gpu_rag.methods.registry import stage_checks


@pytest.fixture(scope="module")
def sound(build_hops: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hops")
    names = ["Ann Orlo", "Bo Brandt", "Kerling", "Tamsin", "Ves", "Loss"]
    ends = zip(names, names[1:] + names, names[3:] + names)
    texts = [f"{a} was born in {b}. The river of {c} crosses {b}." for a, b, c in ends]
    rows = [{"id": f"d{k}", "title": name, "text": text} for k, (name, text) in enumerate(zip(names, texts))]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_hops(folder / "c.jsonl", folder / "ix")
    assert verify(folder / "ix", stage_checks()) == []
    return folder / "ix"


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "ix"))


def turn_first_list(columns: Columns) -> None:
    """The keywords of the first list that has two, in falling order."""
    next(numbers for numbers in columns["numbers"] if len(numbers) > 1).reverse()


def put_array(name: str, at: Any, value: Any) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name][at] = value

    return change


def match_own(columns: Columns) -> None:
    """The first out-question of vertex 0 is answered by vertex 0 itself."""
    columns["question"][0] = 0


DAMAGE: dict[str, tuple[str, str, Callable[[Any], Any], str]] = {
    "vertex twice": ("hop_vertices", "vertices.parquet", put("id", 1, "d0"), "an id comes twice"),
    "vertex lost": ("hop_vertices", "vertices.parquet", drop(2), "not every passage"),
    "vertex too long": ("hop_vertices", "vertices.parquet", put("end", 3, 9999), "outside their passage"),
    "question of nobody": ("hop_questions", "in_questions.parquet", put("vertex", -1, 6), "no vertex has"),
    "questions unsorted": ("hop_questions", "out_questions.parquet", put("vertex", 0, 5), "not sorted"),
    "keywords unsorted": ("hop_keywords", "keywords.parquet", put("keyword", 0, "zz"), "not sorted"),
    "keyword list falls": ("hop_keywords", "in.parquet", turn_first_list, "not ascending"),
    "keyword unknown": ("hop_keywords", "vertex.parquet", put("numbers", -1, [99999]), "not ascending"),
    "lists too short": ("hop_keywords", "out.parquet", drop(0), "lists for"),
    "long vector": ("hop_in_vectors", "vectors.safetensors", put_array("vectors", 0, 1.0), "length 1"),
    "vectors lost": (
        "hop_vertex_vectors", "vectors.safetensors", lambda a: a.update(vectors=a["vectors"][1:]), "5 rows for 6"
    ),
    "another vector": ("hop_out_vectors", "vectors.safetensors", lambda a: a.update(vectors=-a["vectors"]), "a SIM"),
    "match lost": ("hop_edges", "matches.parquet", drop(0), "matches:"),
    "match out of range": ("hop_edges", "matches.parquet", put("question", 0, 9999), "no in-question has"),
    "match with itself": ("hop_edges", "matches.parquet", match_own, "its own vertex"),
    "match of another SIM": ("hop_edges", "matches.parquet", put("sim", 0, lambda sim: sim + 1e-9), "a SIM"),
    "edge lost": ("hop_edges", "edges.parquet", drop(0), "not those of the matches"),
    "edge turned": ("hop_edges", "edges.parquet", put("target", 0, lambda t: (t + 1) % 6), "not those of the matches"),
    "edge of another question": ("hop_edges", "edges.parquet", put("question", 0, 0), "not those of the matches"),
    "topics that fall": ("hop_words", "topics.parquet", turn_first_list, "not ascending"),
    "a topic too many": ("hop_words", "topic_words.parquet", lambda c: c["keyword"].append("kerling"), "topic words"),
    "words of other edges": ("hop_words", "edges.parquet", turn_first_list, "not those of their questions"),
    "edge of another SIM": ("hop_edges", "edges.parquet", put("sim", 0, 0.123), "not those of the matches"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_every_damage_has_its_line(index: Path, plant: Any, name: str) -> None:
    stage, file, change, said = DAMAGE[name]
    plant(index, stage, file, change)
    broken = verify(index, stage_checks())
    assert broken and any(said in line for line in broken), broken


def test_a_missing_file_is_named(index: Path) -> None:
    record = Manifest.read(index).stages["hop_edges"]
    shutil.move(index / record.folder / "matches.parquet", index / record.folder / "other.parquet")
    assert verify(index, stage_checks()) == [
        f"{record.folder}/matches.parquet: missing", f"{record.folder}/other.parquet: not part of the index"
    ]  # fmt: skip


def test_an_index_of_a_method_that_is_not_installed(index: Path, monkeypatch: Any, capsys: Any) -> None:
    """Its checksums are verified, and the command says that nothing else is."""
    monkeypatch.setattr("gpu_rag.api.checks.stage_checks", dict)
    options = Namespace(index=index, json=False, digest=False, methods=None, receipt=None)
    status, _, text = verify_command.run(options)
    assert (status, text) == (0, f"{index}: sound")
    assert "no installed method checks hop_edges, hop_in_vectors" in capsys.readouterr().err
    (index / Manifest.read(index).stages["hop_edges"].folder / "edges.parquet").write_bytes(b"")
    assert verify_command.run(options)[0] == 1
