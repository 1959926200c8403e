"""gpu-rag answer of OpenAI batch files."""

from __future__ import annotations

import json

import pytest


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
        inner, (choice,) = body["gpu_rag"], body["choices"]
        assert list(inner) == keys and inner["id"] == id
        assert choice["message"] == {"role": "assistant", "content": inner["answer"] or ""}
        assert body["object"] == "chat.completion" and choice["finish_reason"] == "stop"
        used = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
        assert used == (inner["usage"]["prompt_tokens"], inner["usage"]["generated_tokens"])
        assert body["usage"]["total_tokens"] == sum(used)
        if id == "q4":
            assert row["response"]["status_code"] == 500 and row["error"]["code"] == "RequestFailed"
        else:
            assert (row["response"]["status_code"], row["error"]) == (200, None)
            assert (inner["status"], inner["answer"]) == expected[id]


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
