"""gpu-rag answer, ask and explain: one durable row a question, as documented, plain and as OpenAI batches."""

import json
import time

import pytest

from gpu_rag.cli.trace_text import step_words


def test_ask_answers_as_answer_does(run, answer, out, index, replay, cli):
    answer()
    for row in cli.read_rows(out):
        result = run(
            "ask",
            index,
            row["question"],
            "--method",
            "ppr",
            *cli.HASH,
            "--set",
            f"models.llm=replay:{replay}",
            "--json",
        )
        assert result.status == 0
        found = {**result.document, "id": row["id"]}
        assert found.pop("support")
        assert cli.settled(found) == cli.settled(row)


def test_ask_fails_with_status_1(run, index, replay, cli):
    result = run("ask", index, "What is not on record?", *cli.HASH, "--set", f"models.llm=replay:{replay}", "--json")
    assert result.status == 1
    assert result.document["status"] == "failed" and "not on record" in result.document["error"]["message"]


def test_explain_tells_decisions_paths_and_evidence(answer, out, run, cli):
    answer()
    row = cli.read_rows(out)[1]
    text = run("explain", out, "q2").out
    told = [row["question"], row["answer"], row["method"]]
    told += [step_words(step["verb"], step["n_candidates"]) for step in row["trace"]]
    told += [path["text"] for path in row["paths"]]
    told += [part for item in row["evidence"] for part in (item["passage_id"], item["title"], item["why"])]
    for part in told:
        assert part in text
    assert run("explain", out, "q2", "--json").document == row
    assert "found no support" in run("explain", out, "q5").out


def test_ask_with_explain_tells_more_than_without(run, index, replay, cli):
    given = (
        "ask",
        index,
        cli.QUESTIONS[1]["question"],
        "--method",
        "ppr",
        *cli.HASH,
        "--set",
        f"models.llm=replay:{replay}",
    )
    plain, explained = run(*given).out, run(*given, "--explain").out
    assert "\nevidence\n" in plain and "\ndecisions\n" not in plain
    assert "\ndecisions\n" in explained and "\npaths\n" in explained


def test_explain_of_an_unknown_id_names_known_ones(answer, out, run):
    answer()
    result = run("explain", out, "q99")
    assert result.status == 2 and "no answer has this id; given q99; expected one of q1, q2" in result.error


def test_one_row_a_question(answer, out, index, cli, check_rows):
    result = answer("--json").ok
    rows = cli.read_rows(out)
    check_rows(rows)
    document = result.document
    counts = {"n": 5, "answered": 4, "retrieved": 0, "unsupported": 1, "failed": 0, "asked": 5, "kept": 0, "rejects": 0}
    assert counts.items() <= document.items()
    assert (document["method"], document["out"]) == ("ppr", str(out))
    for name in rows[0]["usage"].keys() - {"fallbacks"}:
        assert document["usage"][name] == pytest.approx(sum(row["usage"][name] for row in rows))
    assert document["batches"]["llm"] == {**document["batches"]["llm"], "calls": 5, "batches": 1, "largest": 5}
    assert document["wall_s"] >= max(row["usage"]["wall_s"] for row in rows)


def test_gold_ids_and_answers_never_reach_a_program(answer, out, cli, questions):
    answer()
    before = cli.read_rows(out)
    out.unlink()
    cli.write_rows(questions, [{"id": row["id"], "question": row["question"]} for row in cli.QUESTIONS])
    answer()
    assert [cli.settled(row) for row in cli.read_rows(out)] == [cli.settled(row) for row in before]


@pytest.fixture
def batch(questions, cli):
    """QUESTIONS as an OpenAI batch file."""
    rows = [
        {
            "custom_id": row["id"],
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "any", "messages": [{"role": "user", "content": row["question"]}]},
        }
        for row in cli.QUESTIONS
    ]
    return cli.write_rows(questions, rows)


def test_an_openai_batch_comes_out_in_the_same_style(answer, driver, out, batch, cli, forget, expected, keys):
    forget("Who was mayor")
    assert answer("--driver", driver, "--max-failures", 1).status == 0
    rows = {row["custom_id"]: row for row in cli.read_rows(out)}
    assert set(rows) == set(expected)
    for id, row in rows.items():
        body = row["response"]["body"]
        inner = body["gpu_rag"]
        assert list(inner) == keys and inner["id"] == id
        assert row["id"].startswith("batch_req_") and row["response"]["request_id"].startswith("req_")
        if id == "q4":
            assert row["response"]["status_code"] == 500 and row["error"]["code"] == "RequestFailed"
            assert body["error"] == {**row["error"], "type": "server_error", "param": None} and "choices" not in body
            continue
        assert (row["response"]["status_code"], row["error"]) == (200, None)
        assert (inner["status"], inner["answer"]) == expected[id]
        (choice,) = body["choices"]
        assert choice["message"] == {"role": "assistant", "content": inner["answer"] or ""}
        assert body["object"] == "chat.completion" and choice["finish_reason"] == "stop"
        used = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
        assert used == (inner["usage"]["prompt_tokens"], inner["usage"]["generated_tokens"])
        assert body["usage"]["total_tokens"] == sum(used)
        assert body["id"].startswith("chatcmpl-") and abs(body["created"] - time.time()) < 3600
    assert len({row["id"] for row in rows.values()}) == len(rows), "an id for each"


def test_the_row_inside_is_the_row_of_the_plain_style(answer, out, questions, cli, request):
    answer()
    plain = cli.read_rows(out)
    out.unlink()
    request.getfixturevalue("batch")
    answer()
    inside = [row["response"]["body"]["gpu_rag"] for row in cli.read_rows(out)]
    assert [cli.settled(row) for row in inside] == [cli.settled(row) for row in plain]


def test_an_openai_batch_resumes_and_can_be_explained(answer, driver, out, batch, run):
    answer("--limit", 2, "--driver", driver)
    out.write_bytes(out.read_bytes()[:-30])
    assert answer("--driver", driver, "--json").document["kept"] == 1
    assert [row["id"] for row in map(json.loads, run("explain", out, "q1", "--json").out.splitlines())] == ["q1"]
