"""gpu-rag answer, run again: what is kept, what is asked, and what is refused."""

import contextlib
import json
import signal
import threading
import time

import pytest

from gpu_rag.jobs import AnswersFile


def test_a_finished_job_has_nothing_to_do(answer, out):
    answer()
    before = out.read_bytes()
    result = answer("--json")
    assert (result.document["asked"], result.document["kept"], result.document["n"]) == (0, 5, 5)
    assert out.read_bytes() == before


def test_a_longer_job_asks_only_what_is_missing(answer, out, index, cli, check_rows):
    assert answer("--limit", 2, "--json").document["asked"] == 2
    first = cli.read_rows(out)
    result = answer("--json")
    assert (result.document["asked"], result.document["kept"]) == (3, 2)
    assert result.document["batches"]["llm"]["calls"] == 3
    assert cli.read_rows(out)[:2] == first
    check_rows(cli.read_rows(out))


@pytest.mark.parametrize("keep", [1, 40, -1])
def test_a_torn_last_line_is_asked_again(keep, answer, out, index, cli, check_rows):
    """keep: characters of the last line that survive; -1: all but the newline."""
    answer()
    whole = out.read_bytes()
    *lines, last = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines) + last[:keep])
    result = answer("--json")
    assert (result.status, result.document["asked"]) == (0, 0 if keep == -1 else 1)
    check_rows(cli.read_rows(out))
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
        (("--set", "graph.pagerank=torch"), "graph.pagerank ("),
        (("--set", "runtime.seed=1"), "seed (0, now 1)"),
        (("--set", "runtime.max_calls=9"), "budget ("),
        (("--set", "models.decider=rule"), "decider ("),
        (("--method", "bm25"), "method ("),
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


def test_another_index_and_another_model_are_refused(answer, out, run, cli, index, tmp_path, replay):
    answer("--limit", 1)
    replay.write_text("".join(replay.read_text().splitlines(keepends=True)[:-1]))
    assert "llm.content_hash (" in answer().error
    corpus = tmp_path / "tiny.jsonl"
    corpus.write_text(corpus.read_text().replace("1902", "1903"))
    assert run("index", corpus, "--out", index, "--for", "ppr", *cli.NO_LLM).status == 0
    assert "index (" in answer().error


def test_a_job_goes_on_where_the_model_server_has_moved(run, index, questions, out, cli, chat_server):
    """The id and the revision of a served model are its identity; its address is none of it."""
    servers = [chat_server(lambda prompt: (200, "word")) for _ in range(2)]

    def answer(server, *options):
        llm = ("--set", f"models.llm={server.spec}", *cli.HASH)
        return run("answer", index, questions, "--method", "dense", "--out", out, *llm, *options, "--json")

    assert answer(servers[0], "--limit", 1).status == 0
    moved = answer(servers[1])
    assert (moved.status, moved.document["kept"]) == (0, 1) and servers[0].spec != servers[1].spec
    assert len({row["config_hash"] for row in cli.read_rows(out)}) == 1
    config = json.loads(out.with_name("answers.jsonl.config.json").read_text())
    assert config["llm"]["name"] == "server#scripted-8B"
    revised = answer(servers[1], "--set", "models.revision=r2")
    assert revised.status == 2 and "differing: llm.content_hash (" in revised.error


def test_what_does_not_change_an_answer_may_change(answer, out):
    answer("--limit", 2)
    result = answer("--set", "runtime.max_live=1", "--set", "models.max_batch=3", "--driver", "rounds", "--json")
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
        assert result.status == 1 and "another process" in result.error
    assert answer().status == 0


def test_ctrl_c_stops_and_the_next_run_asks_only_what_is_missing(
    run, driver, index, questions, out, cli, chat_server, check_rows
):
    asked, stopped = [], threading.Event()

    def behave(prompt):
        asked.append(prompt)
        if len(asked) == 4:  # one at a time: three replies are there
            until = time.monotonic() + 300
            while finished_replies(out) < 3 and time.monotonic() < until:
                time.sleep(0.01)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            stopped.wait(300)
        return 200, cli.say(prompt)

    server = chat_server(behave, width=1)
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}")
    given = ("answer", index, questions, "--method", "ppr", "--out", out, "--driver", driver, *llm, "--json")
    first = run(*given)
    stopped.set()
    assert (first.status, first.out) == (1, "")
    assert "Ctrl-C" in first.error and "Traceback" not in first.err
    server.forget()
    assert finished_replies(out) == 3
    result = run(*given)
    assert result.status == 0
    assert sum(server.begun.values()) == 2
    check_rows(cli.read_rows(out))


def finished_replies(out) -> int:
    import sqlite3

    with contextlib.closing(sqlite3.connect(out.with_name(out.name + ".replies.sqlite"))) as file:
        return int(file.execute("SELECT count(*) FROM replies").fetchone()[0])
