"""The scripts that measure HydraRAG over sources left out and on large graphs, on a few facts."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx
import pytest
from project_scripts import script

import gpu_rag

SETTINGS = ["--set", "models.embedder=hash", "--set", "models.llm=none"]
TEXTS = {"Halden Bridge": "It was designed by Marta Orlo.", "Marta Orlo": "She was born in Tamsin.",
         "Tamsin": "A port.", "Kerling": "A town < the Ves & more."}  # fmt: skip
FACTS = [("Halden Bridge", "designed by", "Marta Orlo"), ("Marta Orlo", "born in", "Tamsin"),
         *((f"thing {i}", "next to", f"thing {i + 1}") for i in range(8))]  # fmt: skip


@pytest.fixture
def sources() -> ModuleType:
    return script("eval_hydrarag_sources")


@pytest.fixture
def given(tmp_path: Path) -> Path:
    folder = tmp_path / "given"
    folder.mkdir()
    rows = [{"id": f"p{i}", "title": title, "text": text, "std": True} for i, (title, text) in enumerate(TEXTS.items())]
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    kg = "".join("\t".join(fact) + "\n" for fact in FACTS)
    (folder / "kg_gold_evidences.tsv.gz").write_bytes(gzip.compress(kg.encode()))
    questions = [("q1", "Who designed the Halden Bridge?", "Marta Orlo"), ("q2", "Is Kerling a town?", "yes"),
                 ("q3", "Where was the designer of the Halden Bridge born?", "Tamsin")]  # fmt: skip
    lines = [json.dumps({"id": id, "question": text, "answers": [answer]}) for id, text, answer in questions]
    (folder / "questions.jsonl").write_text("\n".join(lines))
    return folder


def test_half_the_corpus_is_documents_and_half_is_pages(sources: ModuleType, given: Path, tmp_path: Path) -> None:
    sources.make(given, tmp_path / "out")
    documents = [json.loads(line) for line in (tmp_path / "out/documents.jsonl").read_text().splitlines()]
    pages = {path.stem: path.read_text() for path in (tmp_path / "out/pages").iterdir()}
    assert len(documents) == len(pages) == 2 and not {row["id"] for row in documents} & set(pages)
    assert {row["title"]: row["text"] for row in documents}.items() <= TEXTS.items()
    assert "p3" not in pages or "A town &lt; the Ves &amp; more." in pages["p3"]
    asked = (tmp_path / "out/questions.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in asked] == ["q1", "q3"]  # none whose answer is yes or no
    (given / "kg_gold_evidences.tsv.gz").unlink()
    sources.make(given, tmp_path / "alone")
    assert len((tmp_path / "alone/documents.jsonl").read_text().splitlines()) == 4
    assert not list((tmp_path / "alone/pages").iterdir())


def test_shares_of_triples_lie_within_one_another(
    sources: ModuleType, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []

    def build(documents: Path, out: Path, **options: Any) -> None:
        built.append(options["sources"])
        out.mkdir()

    monkeypatch.setattr(gpu_rag, "build", build)
    monkeypatch.setattr(sources.Index, "open", lambda folder: folder)
    for share in (0, 30, 100):
        monkeypatch.setattr(sources.shutil, "copytree", lambda *_: None)
        assert sources.index_of(given, tmp_path / "out", share, {}).name == f"index-{share}"
    some, whole = (set((tmp_path / f"out/kg{share}.tsv").read_text().splitlines()) for share in (30, 100))
    assert len(some) == 3 and some < whole and len(whole) == len(FACTS)
    assert [len(names) for names in built] == [1, 2, 2] and not (tmp_path / "out/kg0.tsv").exists()


def test_networkx_lists_the_paths_through_all_topics(sources: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = nx.Graph([(0, 1), (1, 2), (0, 2), (2, 3)])
    assert sources.n_listed(graph, [0], 1) == (2, False) and sources.n_listed(graph, [0], 2) == (5, False)
    assert sources.n_listed(graph, [0, 3], 1) == (1, False) and sources.n_listed(graph, [0, 3], 2) == (2, False)
    assert sources.n_listed(graph, [0, 1, 3], 1) == (1, False) and sources.n_listed(graph, [], 3) == (0, False)
    monkeypatch.setattr(sources, "MOST_PATHS", 1)
    assert sources.n_listed(graph, [0], 2) == (1, True)


def run(module: ModuleType, given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    monkeypatch.setattr(sys, "argv", ["script", *given])
    module.main()
    return str(capsys.readouterr().out)


@pytest.mark.slow
def test_every_part_prints_its_tables(
    sources: ModuleType, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folders = [str(given), str(tmp_path / "out")]
    curve = run(sources, [*folders, "--shares", "100,0", *SETTINGS], monkeypatch, capsys)
    lines = [line.split(" | ") for line in curve.splitlines() if line.startswith("| ")]
    whole, none = lines[1:6], lines[7:]
    assert [line[0] for line in whole] == [f"| {label}" for label in sources.LEFT_OUT]
    assert whole[0][1:4] == ["2", "1.000", "1.000"] and "graph" not in curve and "failed" not in curve
    assert [line[0] for line in none] == ["| all", "| without documents", "| without web"]
    outcomes = sorted((tmp_path / "out/outcomes-100").iterdir())
    assert len(outcomes) == 5
    monkeypatch.setattr(sources.BASE, "run", lambda *_: None)  # what was measured is read
    assert run(sources, [*folders, "--shares", "100", *SETTINGS], monkeypatch, capsys) in curve
    monkeypatch.undo()
    switches = run(sources, [*folders, "--shares", "100", "--part", "switches", *SETTINGS], monkeypatch, capsys)
    assert all(f"| {label} | 2 | " in switches for label, _ in sources.SWITCHES)
    speed = run(sources, [*folders, "--shares", "100", "--part", "speed", *SETTINGS], monkeypatch, capsys)
    assert "| HydraRAG, all sources, 256 at a time | 2 |" in speed and "| networkx, paths alone | 2 |" in speed


@pytest.mark.slow
def test_a_generated_graph_is_indexed_and_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    large = script("bench_knowledge_base")
    parts = [list(part) for part in large.triples(3000, 900)]
    assert parts == [list(part) for part in large.triples(3000, 900)] and len(parts[0]) == 3000
    tails = [tail for _, _, tail in parts[0]]
    assert tails.count(0) > 20 * len(tails) / 900  # a hub
    made = json.loads(run(large, [str(tmp_path), "--triples", "3000", "--nodes", "900"], monkeypatch, capsys))
    assert made["kb_edges"] > 2500 and made["index_s"] > 0
    found = json.loads(run(large, [str(tmp_path), "--part", "ask"], monkeypatch, capsys))
    assert found["ordinary"]["n"] == found["ordinary"]["with_paths"] == 20 and found["hub"]["n"] == 5
