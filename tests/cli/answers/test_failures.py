"""gpu-rag answer: questions that fail, rows that cannot be read, servers that are gone."""

import pytest


def test_a_question_that_fails_is_a_row_with_its_reason(answer, driver, out, cli, forget, run, expected):
    forget("Who was mayor")
    result = answer("--driver", driver, "--json")
    assert result.status == 3
    assert "1 questions failed" in result.err and "above --max-failures 5%" in result.err
    rows = {row["id"]: row for row in cli.read_rows(out)}
    assert (rows["q4"]["status"], rows["q4"]["answer"]) == ("failed", None)
    assert rows["q4"]["error"]["type"] == "RequestFailed" and "not on record" in rows["q4"]["error"]["message"]
    assert {id: (row["status"], row["answer"]) for id, row in rows.items() if id != "q4"} == {
        id: pair for id, pair in expected.items() if id != "q4"
    }
    story = run("explain", out, "q4")
    assert story.status == 0 and "failed    RequestFailed" in story.out
    assert answer("--driver", driver, "--json").document["asked"] == 1
    assert not out.with_name("answers.jsonl.inflight").exists()


@pytest.mark.parametrize(("limit", "status"), [("0", 3), ("1", 0), ("19%", 3), ("20%", 0)])
def test_max_failures_is_a_number_or_a_share(limit, status, answer, forget):
    forget("Who was mayor")
    assert answer("--max-failures", limit).status == status


def test_a_question_that_a_filter_refuses_is_a_row(run, driver, index, questions, out, cli, chat_server):
    """It ended every run at that question: all others are answered."""
    server = chat_server(lambda prompt: (403, "no") if "Who was mayor" in prompt else (200, "word"))
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}", "--driver", driver, "--json")
    result = run("answer", index, questions, "--method", "dense", "--out", out, *llm)
    assert result.status == 3 and result.document["failed"] == 1, result.err
    rows = {row["id"]: row for row in cli.read_rows(out)}
    assert len(rows) == len(cli.QUESTIONS) and rows["q4"]["error"]["type"] == "RequestFailed"


def test_a_model_server_that_is_gone_ends_the_run(run, driver, index, questions, out, cli, chat_server):
    server = chat_server(lambda prompt: (401, "wrong key"))
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}", "--driver", driver)
    result = run("answer", index, questions, "--method", "ppr", "--out", out, *llm)
    assert result.status == 1 and "refuses the API key" in result.error
    assert not out.with_name("answers.jsonl.inflight").exists(), "no question is a suspect"


def test_bad_rows_of_the_questions_are_written_down(answer, out, questions, cli):
    with questions.open("a") as file:
        file.write('{"id": "q6"}\n{"id": "q1", "question": "Again?"}\n')
    result = answer("--json")
    assert result.status == 3  # 2 of 7 rows
    rejects = cli.read_rows(out.with_name("answers.jsonl.rejects.jsonl"))
    assert [reject["line"] for reject in rejects] == [6, 7] and all(reject["reason"] for reject in rejects)
    assert (result.document["rejects"], result.document["n"]) == (2, 5)
    cli.write_rows(questions, cli.QUESTIONS)
    assert answer().status == 0
    assert not out.with_name("answers.jsonl.rejects.jsonl").exists()


def test_an_empty_file_of_questions(run, cli, index, tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    given = ("answer", index, tmp_path / "none.jsonl", "--method", "ppr", "--out", tmp_path / "a.jsonl")
    result = run(*given, *cli.NO_LLM)
    assert result.status == 2 and "no question could be read" in result.error


@pytest.mark.parametrize("name", ["a.csv", "a.TXT", "a.xlsx"])
def test_answers_go_into_no_table(run, cli, index, questions, tmp_path, name):
    result = run("answer", index, questions, "--method", "ppr", "--out", tmp_path / name, *cli.NO_LLM)
    assert result.status == 2 and ".jsonl" in result.error and not (tmp_path / name).exists()
