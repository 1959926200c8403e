"""HybGRAG by the command line: from a folder of nodes and edges to explained, verified and scored answers."""

from __future__ import annotations

import pytest

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


@pytest.fixture
def call(run):
    """call("index", ...): the JSON document of a command that must succeed."""

    def call(*arguments):
        result = run(*arguments, "--json")
        assert result.status == 0, result.err
        return result.document

    return call


@pytest.fixture
def made(call, cli, tmp_path):
    """made("--set", ...): (index, questions), of the base, with these settings."""
    (tmp_path / "kb").mkdir()
    cli.write_rows(tmp_path / "kb" / "nodes.jsonl", NODES)
    cli.write_rows(tmp_path / "kb" / "edges.jsonl", [{"src": a, "relation": r, "dst": b} for a, r, b in EDGES])

    def made(*settings):
        call("index", "--skb", tmp_path / "kb", "--out", tmp_path / "ix", "--for", "hybgrag", *settings)
        return tmp_path / "ix", cli.write_rows(tmp_path / "questions.jsonl", QUESTIONS)

    return made


def test_from_nodes_and_edges_to_scores(made, call, cli):
    index, questions = made(*cli.NO_LLM)
    scored = call("eval", index, questions, "--method", "dense,hybgrag", "--retrieval-only", *cli.NO_LLM)
    entry = scored["methods"]["hybgrag"]
    assert entry["failed"] == 0 and entry["hit@5"] == 1.0 and entry["recall@20"] == 1.0
    assert set(scored["paired"]["hybgrag - dense"]) >= {"hit@1", "hit@5", "recall@20", "mrr"}


@pytest.mark.slow
def test_with_the_packaged_models(made, call, cli, tmp_path):
    settings = ("--set", "models.decider=llm", "--set", "models.vector_cache_gib=0")
    (index, questions), answers = made(*settings), tmp_path / "answers.jsonl"
    found = call("answer", index, questions, "--method", "hybgrag", "--out", answers, *settings)
    assert (found["n"], found["failed"]) == (2, 0)
    assert not call("verify-answers", answers, index)["differences"]
    scored = call("eval", index, questions, "--method", "hybgrag", "--retrieval-only", *settings)
    assert scored["methods"]["hybgrag"]["hit@1"] == scored["methods"]["hybgrag"]["mrr"] == 1.0
    rows = cli.read_rows(answers)
    assert [row["nodes"][0]["id"] for row in rows] == ["f2", "f3"]
    for row in rows:
        verbs = [step["verb"] for step in row["trace"]]
        assert "hybgrag_validator/rank" in verbs and row["usage"]["llm_calls"] >= 2
        assert row["paths"] and row["evidence"]
