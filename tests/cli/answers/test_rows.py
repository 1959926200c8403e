"""gpu-rag answer: one durable row a question, as documented."""

from __future__ import annotations

import pytest


def test_one_row_a_question(answer, out, index, cli, check_rows):
    result = answer("--json")
    assert result.status == 0, result.err
    rows = cli.read_rows(out)
    check_rows(rows)
    document = result.document
    counts = {"n": 5, "answered": 4, "unsupported": 1, "failed": 0, "asked": 5, "kept": 0, "rejects": 0}
    assert counts.items() <= document.items()
    assert (document["method"], document["out"]) == ("ppr", str(out))
    for name in rows[0]["usage"]:
        assert document["usage"][name] == pytest.approx(sum(row["usage"][name] for row in rows))
    assert document["batches"]["llm"] == {**document["batches"]["llm"], "calls": 5, "batches": 1, "largest": 5}
    assert document["wall_s"] >= max(row["usage"]["wall_s"] for row in rows)


def swapped(row):
    row["answer"], row["question"] = row["question"], row["answer"]


def lost_evidence(row):
    row["evidence"] = row["evidence"][1:] + row["evidence"][:1]


def moved_offset(row):
    row["evidence"][0]["start"] += 1


def other_passage(row):
    row["paths"][0]["edges"][0][3] = "d99"


@pytest.mark.parametrize("damage", [swapped, lost_evidence, moved_offset, other_passage])
def test_the_check_of_rows_catches_wrong_rows(damage, answer, out, index, cli, check_rows):
    answer()
    rows = cli.read_rows(out)
    damage(rows[0])
    with pytest.raises((AssertionError, KeyError)):
        check_rows(rows)


def test_gold_ids_and_answers_never_reach_a_program(answer, out, cli, questions):
    answer()
    before = cli.read_rows(out)
    out.unlink()
    cli.write_rows(questions, [{"id": row["id"], "question": row["question"]} for row in cli.QUESTIONS])
    answer()
    assert [cli.settled(row) for row in cli.read_rows(out)] == [cli.settled(row) for row in before]


def test_settings_and_replies_lie_beside_the_answers(answer, out, tmp_path):
    answer()
    beside = {path.name for path in tmp_path.glob("answers.jsonl*")}
    assert {"answers.jsonl", "answers.jsonl.config.json", "answers.jsonl.replies.sqlite"} <= beside
