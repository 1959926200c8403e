"""HybGRAG by the command line: from a folder of nodes and edges to explained, verified and scored answers."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.cli.main import main

NODES = [
    {"id": "f1", "type": "film", "name": "Harbour of Glass", "text": "A glassblower leaves the harbour at night."},
    {"id": "f2", "type": "film", "name": "Night Ferry", "text": "A comedy on a ferry that never arrives."},
    {"id": "f3", "type": "film", "name": "Salt", "text": "Two sisters boil salt on an island."},
    {"id": "p1", "type": "person", "name": "Marta Orlo"},
    {"id": "p2", "type": "person", "name": "Piet Ruyven"},
]
EDGES = [("f1", "directed_by", "p1"), ("f2", "directed_by", "p1"), ("f3", "directed_by", "p2"), ("f1", "starred", "p2")]
QUESTIONS = [
    {"id": "a", "question": "Which comedy about a ferry did Marta Orlo direct?", "answer_ids": ["f2"]},
    {"id": "b", "question": "Which film about sisters did Piet Ruyven direct?", "answer_ids": ["f3"]},
]


def rows(path: Path, held: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in held))
    return path


def call(*arguments: object) -> Any:
    """The JSON document of a command that must succeed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        status = main([*map(str, arguments), "--json"])
    assert status == 0, said.getvalue()
    return json.loads(said.getvalue())


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    rows(tmp_path / "kb" / "nodes.jsonl", NODES)
    rows(tmp_path / "kb" / "edges.jsonl", [{"src": a, "relation": r, "dst": b} for a, r, b in EDGES])
    return tmp_path / "kb"


def check(kb: Path, tmp_path: Path, *settings: str) -> list[dict[str, Any]]:
    """Index, answer, verify and score; the rows of answers."""
    index, answers = tmp_path / "ix", tmp_path / "answers.jsonl"
    questions = rows(tmp_path / "questions.jsonl", QUESTIONS)
    call("index", "--skb", kb, "--out", index, "--for", "hybgrag", *settings)
    found = call("answer", index, questions, "--method", "hybgrag", "--out", answers, *settings)
    assert (found["n"], found["failed"]) == (2, 0)
    checked = call("verify-answers", answers, index)
    assert not checked["differences"]
    scored = call("eval", index, questions, "--method", "hybgrag", "--retrieval-only", *settings)
    assert scored["methods"]["hybgrag"]["hit@1"] == scored["methods"]["hybgrag"]["mrr"] == 1.0
    held = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["nodes"][0]["id"] for row in held] == ["f2", "f3"]
    return held


def test_from_nodes_and_edges_to_scores(kb, tmp_path):
    settings = ("--set", "models.embedder=hash", "--set", "models.llm=none")
    index, questions = tmp_path / "ix", rows(tmp_path / "questions.jsonl", QUESTIONS)
    call("index", "--skb", kb, "--out", index, "--for", "hybgrag", *settings)
    scored = call("eval", index, questions, "--method", "dense,hybgrag", "--retrieval-only", *settings)
    entry = scored["methods"]["hybgrag"]
    assert entry["failed"] == 0 and entry["hit@5"] == 1.0 and entry["recall@20"] == 1.0
    assert set(scored["paired"]["hybgrag - dense"]) >= {"hit@1", "hit@5", "recall@20", "mrr"}


@pytest.mark.slow
def test_with_the_packaged_models(kb, tmp_path):
    held = check(kb, tmp_path, "--set", "models.decider=llm", "--set", "models.vector_cache_gib=0")
    for row in held:
        verbs = [step["verb"] for step in row["trace"]]
        assert "hybgrag_validator/rank" in verbs and row["usage"]["llm_calls"] >= 2
        assert row["paths"] and row["evidence"]
