"""gpu-rag ask and gpu-rag explain."""

from __future__ import annotations

from gpu_rag.cli.trace_text import said


def test_ask_answers_as_answer_does(run, answer, out, index, replay, cli):
    answer()
    for row in cli.read_rows(out):
        result = run("ask", index, row["question"], *cli.HASH, "--set", f"models.llm=replay:{replay}", "--json")
        assert result.status == 0
        assert cli.settled({**result.document, "id": row["id"]}) == cli.settled(row)


def test_ask_fails_with_status_1(run, index, replay, cli):
    result = run("ask", index, "What is not on record?", *cli.HASH, "--set", f"models.llm=replay:{replay}", "--json")
    assert result.status == 1
    assert result.document["status"] == "failed" and "not on record" in result.document["error"]["message"]


def test_explain_tells_decisions_paths_and_evidence(answer, out, run, cli):
    answer()
    row = cli.read_rows(out)[1]
    text = run("explain", out, "q2").out
    told = [row["question"], row["answer"], row["method"]]
    told += [said(step["verb"], step["n_candidates"]) for step in row["trace"]]
    told += [path["text"] for path in row["paths"]]
    told += [part for item in row["evidence"] for part in (item["passage_id"], item["title"], item["why"])]
    for part in told:
        assert part in text
    assert run("explain", out, "q2", "--json").document == row
    assert "found no support" in run("explain", out, "q5").out


def test_ask_with_explain_tells_more_than_without(run, index, replay, cli):
    given = ("ask", index, cli.QUESTIONS[1]["question"], *cli.HASH, "--set", f"models.llm=replay:{replay}")
    plain, explained = run(*given).out, run(*given, "--explain").out
    assert "\nevidence\n" in plain and "\ndecisions\n" not in plain
    assert "\ndecisions\n" in explained and "\npaths\n" in explained


def test_explain_of_an_unknown_id_names_known_ones(answer, out, run):
    answer()
    result = run("explain", out, "q99")
    assert result.status == 2 and "no answer has this id; given q99; expected one of q1, q2" in result.error
