"""The installed command with the packaged models, as a user runs it: one process after the other, no test settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "gpu-rag"


def call(*arguments: object) -> dict:
    """The JSON document of a command that must succeed."""
    words = [str(COMMAND), *map(str, arguments), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.mark.slow
def test_from_a_corpus_to_explained_answers_with_the_packaged_models(tiny_corpus, questions, tmp_path, cli):
    built = call("index", tiny_corpus, "--out", tmp_path / "i", "--for", "ppr,bm25")
    assert built["passages"] == 6 and built["entities"] > 6 and built["relations"] > 4
    scored = call("eval", tmp_path / "i", questions, "--method", "bm25,ppr", "--retrieval-only", "--limit", 4)
    assert scored["methods"]["ppr"]["recall@2"] >= 0.6  # two of six at random: 0.33
    model = ("--set", "models.llm=smollm2", "--limit", 2)
    answered = call("answer", tmp_path / "i", questions, "--method", "ppr", "--out", tmp_path / "a.jsonl", *model)
    assert (answered["n"], answered["failed"], answered["usage"]["llm_calls"]) == (2, 0, 2)
    first = cli.read_rows(tmp_path / "a.jsonl")[0]
    assert first["evidence"][0]["passage_id"] == "d5"  # the article about the university itself
    assert first["answer"] and (first["status"] == "answered") == (first["grounding"]["status"] != "unsupported")
    assert first["usage"]["prompt_tokens"] > 100 and first["usage"]["llm_s"] > 0
    assert call("explain", tmp_path / "a.jsonl", "q1") == first


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


@pytest.mark.slow
def test_from_nodes_and_edges_to_answers_with_the_packaged_models(cli, tmp_path):
    (tmp_path / "kb").mkdir()
    cli.write_rows(tmp_path / "kb" / "nodes.jsonl", NODES)
    cli.write_rows(tmp_path / "kb" / "edges.jsonl", [{"src": a, "relation": r, "dst": b} for a, r, b in EDGES])
    settings = ("--set", "models.llm=smollm2", "--set", "models.decider=model", "--set", "models.vector_cache_gib=0")
    index, answers, by = tmp_path / "ix", tmp_path / "answers.jsonl", ("--method", "hybgrag")
    call("index", "--skb", tmp_path / "kb", "--out", index, "--for", "hybgrag", *settings)
    questions = cli.write_rows(tmp_path / "questions.jsonl", QUESTIONS)
    found = call("answer", index, questions, *by, "--out", answers, *settings)
    assert (found["n"], found["failed"]) == (2, 0)
    assert not call("verify-answers", answers, index)["differences"]
    scored = call("eval", index, questions, *by, "--retrieval-only", *settings)
    assert scored["methods"]["hybgrag"]["hit@1"] == scored["methods"]["hybgrag"]["mrr"] == 1.0
    rows = cli.read_rows(answers)
    assert [row["nodes"][0]["id"] for row in rows] == ["f2", "f3"]
    for row in rows:
        verbs = [step["verb"] for step in row["trace"]]
        assert "hybgrag_validator/rank" in verbs and row["usage"]["llm_calls"] >= 2
        assert row["paths"] and row["evidence"]
