"""--where on the command line: exit statuses, what is shown, and answers that continue under one filter only."""

import json
from pathlib import Path

import pytest

QUESTION = "Where was the designer of the Halden Bridge born?"
ROWS = [
    {"id": "a", "title": "Halden Bridge", "text": "Marta Orlo designed the Halden Bridge.", "year": 1999, "lang": "de"},
    {"id": "b", "title": "Marta Orlo", "text": "Marta Orlo was born in Tamsin.", "year": 2020},
    {"id": "c", "title": "Tamsin", "text": "Tamsin is a port near the Halden Bridge.", "year": 2021, "lang": "fr"},
]


@pytest.fixture
def call(cli):
    """call("ask", ...): (status, the --json document or None, stderr)."""

    def run(command, *words):
        more = () if command in ("verify-answers", "export") else cli.NO_LLM
        done = cli.run(command, *words, *more, "--json")
        return done.status, json.loads(done.out.splitlines()[-1]) if done.out else None, done.err

    return run


@pytest.fixture
def dated(cli, made_once, tmp_path: Path) -> Path:
    return made_once("dated", cli.write_rows(tmp_path / "corpus.jsonl", ROWS), "--for", "dense,bm25,ppr")


def test_ask_shows_metadata_and_answers_from_what_fits(call, dated):
    status, row, _ = call("ask", dated, QUESTION, "--method", "dense", "--where", " year >= 2020 ")
    assert status == 0 and row["where"] == "year >= 2020"
    assert {e["passage_id"]: e["metadata"] for e in row["evidence"]} == {
        "b": {"year": 2020}, "c": {"lang": "fr", "year": 2021},
    }  # fmt: skip
    status, row, _ = call("ask", dated, QUESTION, "--where", "year > 3000")
    assert (status, row["status"], row["evidence"]) == (0, "unsupported", [])


def test_wrong_filters_end_in_status_2_before_anything_is_written(call, cli, dated, tmp_path):
    questions = cli.write_rows(tmp_path / "questions.jsonl", [{"id": "q", "question": QUESTION}])
    lines = (("ask", dated, QUESTION), ("answer", dated, questions, "--method", "ppr", "--out", tmp_path / "out.jsonl"))
    for line in (*lines, ("eval", dated, questions, "--method", "dense", "--retrieval-only")):
        for where, fact in (("yeer = 1", "did you mean year?"), (" ", "empty"), ("year = 'x'", "year = 'x'")):
            status, _, err = call(*line, "--where", where)
            assert status == 2 and fact in err and err.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_answers_continue_under_the_same_filter_only(call, dated, tmp_path):
    questions, out = tmp_path / "questions.jsonl", tmp_path / "out.jsonl"
    questions.write_text(json.dumps({"id": "q", "question": QUESTION, "gold_ids": ["a"]}) + "\n")
    line = ("answer", dated, questions, "--method", "dense", "--out", out)
    status, document, _ = call(*line, "--where", "lang = 'de'")
    assert status == 0 and document["where"] == "lang = 'de'"
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["where"] == "lang = 'de'" and [e["passage_id"] for e in row["evidence"]] == ["a"]
    assert call(*line, "--where", "lang = 'de'")[1]["kept"] == 1
    for other in ((), ("--where", "lang = 'fr'")):
        status, _, err = call(*line, *other)
        assert status == 2 and "other settings" in err and "where" in err
    status, document, _ = call(
        "eval", dated, questions, "--method", "dense", "--retrieval-only", "--where", "year > 1999"
    )
    assert status == 0 and document["where"] == "year > 1999" and document["methods"]["dense"]["recall@2"] == 0.0


def test_explain_and_export_show_metadata(run, call, dated, tmp_path):
    questions, out = tmp_path / "questions.jsonl", tmp_path / "out.jsonl"
    questions.write_text(json.dumps({"id": "q", "question": QUESTION}) + "\n")
    call("answer", dated, questions, "--method", "dense", "--out", out, "--where", "lang = 'fr'")
    said = run("explain", out, "q")
    assert 'lang "fr"; year 2021' in said.out and "where     lang = 'fr'" in said.out
    call("export", dated, "--format", "graphml", "--out", tmp_path / "g.graphml")
    assert "n_metadata" in (tmp_path / "g.graphml").read_text()
    assert call("verify-answers", out, dated)[0] == 0
