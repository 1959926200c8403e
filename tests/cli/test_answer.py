"""gpu-rag answer, ask and explain: durable rows, resuming, failing questions, OpenAI batches."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter

import pytest

from gpu_rag.jobs import AnswersFile

KEYS = ["id", "question", "method", "status", "answer", "evidence", "paths", "trace", "usage", "error", "config_hash"]
USAGE = {
    "llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens", "llm_s", "graph_s", "embed_s", "wall_s",
    "malformed", "cut",
}  # fmt: skip
EXPECTED = {
    "q1": ("answered", "Hugo Brandt"),
    "q2": ("answered", "the port of Tamsin"),
    "q3": ("answered", "The University of Loss"),
    "q4": ("answered", "Piet"),
    "q5": ("unsupported", None),
}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "answers.jsonl"


def check_rows(rows, index, cli) -> None:
    """Rows as documented, one a question, whose evidence and paths are in the index."""
    from gpu_rag import Index

    passages = {row["id"]: row for row in Index.open(index).passages.to_pylist()}
    assert Counter(row["id"] for row in rows) == Counter(list(EXPECTED))
    asked = {row["id"]: row["question"] for row in cli.QUESTIONS}
    for row in rows:
        assert list(row) == KEYS
        assert (row["status"], row["answer"]) == EXPECTED[row["id"]]
        assert (row["question"], row["method"], row["error"]) == (asked[row["id"]], "ppr", None)
        assert set(row["usage"]) == USAGE and row["usage"]["llm_calls"] == 1 and row["usage"]["prompt_tokens"] > 0
        assert [step["step"] for step in row["trace"]] == list(range(len(row["trace"])))
        assert row["evidence"] == sorted(row["evidence"], key=lambda e: -e["score"]) != []
        for item in row["evidence"]:
            passage = passages[item["passage_id"]]
            assert {name: item[name] for name in ("title", "text", "start", "end")} == {
                name: passage[name] for name in ("title", "text", "start", "end")
            }
            assert item["why"]
        for path in row["paths"]:
            assert path["edges"] and path["source"] == "graph"
            for subject, _, object_, passage in path["edges"]:
                assert passage in passages and subject in path["text"] and object_ in path["text"]


def test_one_row_a_question(answer, out, index, cli):
    result = answer("--json")
    assert result.status == 0, result.err
    rows = cli.read_rows(out)
    check_rows(rows, index, cli)
    document = result.document
    counts = {"n": 5, "answered": 4, "unsupported": 1, "failed": 0, "asked": 5, "kept": 0, "rejects": 0}
    assert counts.items() <= document.items()
    assert (document["method"], document["out"]) == ("ppr", str(out))
    for name in USAGE:
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
def test_the_check_of_rows_catches_wrong_rows(damage, answer, out, index, cli):
    answer()
    rows = cli.read_rows(out)
    damage(rows[0])
    with pytest.raises((AssertionError, KeyError)):
        check_rows(rows, index, cli)


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


# --- resuming --------------------------------------------------------------------------------------


def test_a_finished_job_has_nothing_to_do(answer, out):
    answer()
    before = out.read_bytes()
    result = answer("--json")
    assert (result.document["asked"], result.document["kept"], result.document["n"]) == (0, 5, 5)
    assert out.read_bytes() == before


def test_a_longer_job_asks_only_what_is_missing(answer, out, index, cli):
    assert answer("--limit", 2, "--json").document["asked"] == 2
    first = cli.read_rows(out)
    result = answer("--json")
    assert (result.document["asked"], result.document["kept"]) == (3, 2)
    assert result.document["batches"]["llm"]["calls"] == 3
    assert cli.read_rows(out)[:2] == first
    check_rows(cli.read_rows(out), index, cli)


@pytest.mark.parametrize("keep", [1, 40, -1])
def test_a_torn_last_line_is_asked_again(keep, answer, out, index, cli):
    """keep: characters of the last line that survive; -1: all but the newline."""
    answer()
    whole = out.read_bytes()
    *lines, last = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines) + last[:keep])
    result = answer("--json")
    assert (result.status, result.document["asked"]) == (0, 0 if keep == -1 else 1)
    check_rows(cli.read_rows(out), index, cli)
    assert out.read_bytes().startswith(b"".join(lines)) and out.read_bytes().endswith(b"\n")


def test_damage_that_no_kill_can_do_is_refused(answer, out, cli):
    answer()
    rows = out.read_text().splitlines()
    for line in ("not json", "5", "[]", '{"id": "q1"}', json.dumps({**json.loads(rows[0]), "status": "maybe"})):
        out.write_text("\n".join([rows[0], line, *rows[2:]]) + "\n")
        result = answer()
        assert result.status == 2
        assert f"not a row of answers; given {out}:2" in result.error


@pytest.mark.parametrize(
    ("options", "differing"),
    [
        (("--set", "method.ppr.damping=0.25"), "params.damping"),
        (("--set", "reader.passages=2"), "reader.passages (5, now 2)"),
        (("--set", "runtime.seed=1"), "seed (0, now 1)"),
        (("--set", "runtime.max_calls=9"), "budget ([0, 0, 0.0], now [9, 0, 0.0])"),
        (("--set", "models.decider=similarity"), 'decider ("auto", now "similarity")'),
    ],
)
def test_other_settings_are_refused_by_the_name_of_what_differs(options, differing, answer, out):
    answer("--limit", 1)
    before = out.read_bytes()
    result = answer(*options)
    assert result.status == 2 and "other settings" in result.error
    named = result.error.split("differing: ", 1)[1].split("; ")[0]
    assert named.startswith(differing) and named.count(", now ") == 1  # this one, and no other
    assert out.read_bytes() == before


def test_another_method_is_refused(answer, out):
    answer("--limit", 1)
    before = out.read_bytes()
    result = answer("--method", "bm25")
    assert result.status == 2 and 'method ("ppr", now "bm25")' in result.error
    assert out.read_bytes() == before


def test_another_index_and_another_model_are_refused(answer, out, run, cli, index, tmp_path, replay):
    answer("--limit", 1)
    replay.write_text("".join(replay.read_text().splitlines(keepends=True)[:-1]))
    assert "llm.content_hash (" in answer().error
    corpus = tmp_path / "tiny.jsonl"
    corpus.write_text(corpus.read_text().replace("1902", "1903"))
    assert run("index", corpus, "--out", index, "--for", "ppr", *cli.NO_LLM).status == 0
    assert "index (" in answer().error


def test_what_does_not_change_an_answer_may_change(answer, out):
    answer("--limit", 2)
    result = answer("--set", "runtime.max_live=1", "--set", "models.max_batch=3", "--json")
    assert (result.status, result.document["kept"]) == (0, 2)


def test_a_file_of_unknown_origin_is_not_overwritten(answer, out):
    out.write_text('{"my": "data"}\n')
    result = answer()
    assert result.status == 2 and "answers.jsonl.config.json" in result.error
    assert out.read_text() == '{"my": "data"}\n'


def test_one_job_at_a_time(answer, out, tmp_path):
    answer("--limit", 1)
    config = json.loads((tmp_path / "answers.jsonl.config.json").read_text())
    with AnswersFile(out, config):
        result = answer()
        assert result.status == 1 and "another process is writing these answers" in result.error
    assert answer().status == 0


# --- failing questions, rejects --------------------------------------------------------------------


@pytest.fixture
def forget(replay):
    """forget(text): takes the recorded reply to a question off the recording; returns how to bring it back."""

    def forget(text):
        whole = replay.read_text()
        kept = [line for line in whole.splitlines(keepends=True) if text not in json.loads(line).get("prompt", "")]
        assert len(kept) < whole.count("\n")
        replay.write_text("".join(kept))

    return forget


def test_a_question_that_fails_is_a_row_with_its_reason(answer, out, cli, forget, run):
    forget("Who was mayor")
    result = answer("--json")
    assert result.status == 3
    assert "1 questions failed" in result.err and "above 5%" in result.err
    rows = {row["id"]: row for row in cli.read_rows(out)}
    assert (rows["q4"]["status"], rows["q4"]["answer"]) == ("failed", None)
    assert rows["q4"]["error"]["type"] == "RequestFailed" and "not on record" in rows["q4"]["error"]["message"]
    assert {id: (row["status"], row["answer"]) for id, row in rows.items() if id != "q4"} == {
        id: expected for id, expected in EXPECTED.items() if id != "q4"
    }
    story = run("explain", out, "q4")
    assert story.status == 0 and "failed    RequestFailed" in story.out


@pytest.mark.parametrize(("limit", "status"), [("0", 3), ("1", 0), ("19%", 3), ("20%", 0)])
def test_max_failures_is_a_number_or_a_share(limit, status, answer, forget):
    forget("Who was mayor")
    assert answer("--max-failures", limit).status == status


def test_failed_questions_are_asked_again_when_the_model_has_recovered(run, index, questions, out, cli, chat_server):
    ill = [True]

    def behave(prompt):
        return (400, "no capacity") if ill[0] and "Who was mayor" in prompt else (200, cli.say(prompt))

    server = chat_server(behave)
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}")
    given = ("answer", index, questions, "--method", "ppr", "--out", out, *llm, "--json")
    assert run(*given).status == 3
    assert run(*given).document["asked"] == 1  # still ill: the others are not asked again
    ill[0] = False
    result = run(*given)
    assert (result.status, result.document["asked"], result.document["failed"]) == (0, 1, 0)
    check_rows(cli.read_rows(out), index, cli)
    assert sum(server.begun.values()) == 5 + 1 + 1


def test_a_model_server_that_is_gone_ends_the_run_with_status_1(run, index, questions, out, cli, chat_server):
    server = chat_server(lambda prompt: (401, "wrong key"))
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}")
    result = run("answer", index, questions, "--method", "ppr", "--out", out, *llm)
    assert result.status == 1 and "refuses the API key" in result.error


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


# --- Ctrl-C ----------------------------------------------------------------------------------------


def test_ctrl_c_stops_and_the_next_run_asks_only_what_is_missing(run, index, questions, out, cli, chat_server):
    asked = []

    def behave(prompt):
        asked.append(prompt)
        if len(asked) == 4:  # one at a time: three replies are there
            threading.Event().wait(0.2)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            threading.Event().wait(0.2)
        return 200, cli.say(prompt)

    server = chat_server(behave, width=1)
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}")
    given = ("answer", index, questions, "--method", "ppr", "--out", out, *llm, "--json")
    stopped = run(*given)
    assert (stopped.status, stopped.out) == (1, "")
    assert "stopped by Ctrl-C; run the same command again" in stopped.error and "Traceback" not in stopped.err
    server.forget()
    assert finished_replies(out) == 3
    result = run(*given)
    assert result.status == 0
    assert sum(server.begun.values()) == 2
    check_rows(cli.read_rows(out), index, cli)


def finished_replies(out) -> int:
    import sqlite3

    with sqlite3.connect(out.with_name(out.name + ".replies.sqlite")) as file:
        return int(file.execute("SELECT count(*) FROM replies").fetchone()[0])


# --- OpenAI batch files ----------------------------------------------------------------------------


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


def test_an_openai_batch_comes_out_in_the_same_style(answer, out, batch, index, cli, forget):
    forget("Who was mayor")
    assert answer("--max-failures", 1).status == 0
    rows = {row["custom_id"]: row for row in cli.read_rows(out)}
    assert set(rows) == set(EXPECTED)
    for id, row in rows.items():
        body = row["response"]["body"]
        inner, (choice,) = body["gpu_rag"], body["choices"]
        assert list(inner) == KEYS and inner["id"] == id
        assert choice["message"] == {"role": "assistant", "content": inner["answer"] or ""}
        assert body["object"] == "chat.completion" and choice["finish_reason"] == "stop"
        used = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
        assert used == (inner["usage"]["prompt_tokens"], inner["usage"]["generated_tokens"])
        assert body["usage"]["total_tokens"] == sum(used)
        if id == "q4":
            assert row["response"]["status_code"] == 500 and row["error"]["code"] == "RequestFailed"
        else:
            assert (row["response"]["status_code"], row["error"]) == (200, None)
            assert (inner["status"], inner["answer"]) == EXPECTED[id]


def test_the_row_inside_is_the_row_of_the_plain_style(answer, out, questions, cli, request):
    answer()
    plain = cli.read_rows(out)
    out.unlink()
    request.getfixturevalue("batch")
    answer()
    inside = [row["response"]["body"]["gpu_rag"] for row in cli.read_rows(out)]
    assert [cli.settled(row) for row in inside] == [cli.settled(row) for row in plain]


def test_an_openai_batch_resumes_and_can_be_explained(answer, out, batch, run):
    answer("--limit", 2)
    out.write_bytes(out.read_bytes()[:-30])
    assert answer("--json").document["kept"] == 1
    assert [row["id"] for row in map(json.loads, run("explain", out, "q1", "--json").out.splitlines())] == ["q1"]


# --- ask and explain -------------------------------------------------------------------------------


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
    told += [step["verb"] for step in row["trace"]] + [path["text"] for path in row["paths"]]
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
