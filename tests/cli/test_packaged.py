"""The commands with the packaged models, as a user runs them: a small model that ranks, no test settings."""

import pytest

NODES = [
    {"id": "f1", "type": "film", "name": "Harbour of Glass", "text": "A glassblower leaves the harbour at night."},
    {"id": "f2", "type": "film", "name": "Night Ferry", "text": "A comedy on a ferry that never arrives."},
    {"id": "f3", "type": "film", "name": "Salt", "text": "Two sisters boil salt on an island."},
    {"id": "p1", "type": "person", "name": "Marta Orlo"},
    {"id": "p2", "type": "person", "name": "Piet Ruyven"},
]
EDGES = [("f1", "directed_by", "p1"), ("f2", "directed_by", "p1"), ("f3", "directed_by", "p2"), ("f1", "starred", "p2")]
QUESTION = {"id": "a", "question": "Which comedy about a ferry did Marta Orlo direct?", "answer_ids": ["f2"]}


@pytest.mark.slow
def test_from_nodes_and_edges_to_answers_with_the_packaged_models(run, cli, tmp_path):
    def call(*words):
        return run(*words, "--json").ok.document

    (tmp_path / "kb").mkdir()
    cli.write_rows(tmp_path / "kb" / "nodes.jsonl", NODES)
    cli.write_rows(tmp_path / "kb" / "edges.jsonl", [{"src": a, "relation": r, "dst": b} for a, r, b in EDGES])
    settings = ("--set", "models.llm=smollm2", "--set", "models.decider=model", "--set", "models.vector_cache_gib=0")
    index, answers, by = tmp_path / "ix", tmp_path / "answers.jsonl", ("--method", "hybgrag")
    call("index", "--skb", tmp_path / "kb", "--out", index, "--for", "hybgrag", *settings)
    questions = cli.write_rows(tmp_path / "questions.jsonl", [QUESTION])
    found = call("answer", index, questions, *by, "--out", answers, *settings)
    assert (found["n"], found["failed"]) == (1, 0)
    assert not call("verify-answers", answers, index)["differences"]
    (row,) = cli.read_rows(answers)
    assert row["nodes"][0]["id"] == "f2" and row["paths"] and row["evidence"]
    assert "hybgrag_validator/rank" in [step["verb"] for step in row["trace"]] and row["usage"]["llm_calls"] >= 2
