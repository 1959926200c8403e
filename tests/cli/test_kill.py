"""Processes that are killed or interrupted, and what is left of their work. Real processes and a slow model server."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import kept_replies

N_QUESTIONS = 64
LIVE = 16  # questions open at once: their rows are written when all of their replies are there
EXTRA = 4  # replies that come while a process is being killed
PATIENCE_S = 300.0  # only a bug takes so long


@pytest.fixture
def server(chat_server):
    return chat_server(lambda prompt: (200, f"word {sum(map(ord, prompt)) % 997}"), seconds=0.005, width=2)


@pytest.fixture(params=["rounds", "streaming"])
def driver(request):
    return request.param


@pytest.fixture
def job(index, tmp_path, cli, server, driver):
    """job(out): the arguments of `gpu-rag answer` of 64 questions."""
    rows = [{"id": f"q{i}", "question": f"What happened in the year {1700 + i}?"} for i in range(N_QUESTIONS)]
    questions = cli.write_rows(tmp_path / "many.jsonl", rows)
    settings = (*cli.HASH, "--set", f"models.llm={server.spec}", "--set", f"runtime.max_live={LIVE}")
    given = ("answer", index, questions, "--method", "ppr", "--driver", driver, *settings, "--json")
    return lambda out: (*given, "--out", out)


def wait_for(reached, process: subprocess.Popen, limit_s: float = PATIENCE_S) -> None:
    """Until reached(). The process must not end before."""
    until = time.monotonic() + limit_s
    while not reached():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.005)


def kept_rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_and_resume(command, job, out, server, run, after: list[int], patience_s: float = PATIENCE_S) -> None:
    """Kills a job after so many replies, again and again; checks that what was kept is not asked again.

    The server holds back what would come after them, so that all that has come must be in the files before the kill.
    """
    replies, streaming = out.with_name(out.name + ".replies.sqlite"), "streaming" in job(out)
    kept, rows, moments = 0, 0, random.Random(5)
    for n_replies in after:
        server.forget()
        server.let_through(n_replies)
        process = subprocess.Popen([*command, *map(str, job(out))], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            wait_for(lambda n=n_replies: sum(server.finished.values()) >= n, process)
            wait_for(lambda n=kept + n_replies: kept_replies(replies) >= n, process, patience_s)
            # rows, not only replies: streaming writes each as its question ends, rounds when those that are open have;
            # questions that were open at a kill come last, also those whose replies are kept
            n_rows = rows + (n_replies if streaming else n_replies // LIVE * LIVE)
            wait_for(lambda n=n_rows: kept_rows(out) >= n, process, patience_s)
            server.let_through(EXTRA)
            time.sleep(moments.uniform(0, 0.05))  # whatever it is at
        finally:
            process.kill()
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        server.let_through(math.inf)
        server.settle()
        assert max(server.begun.values()) == 1
        before, kept = kept, kept_replies(replies)
        assert before + n_replies <= kept <= before + n_replies + EXTRA
        rows = kept_rows(out)
        assert rows >= n_rows
    server.forget()
    result = run(*job(out)).ok
    assert sum(server.begun.values()) == N_QUESTIONS - kept
    assert result.document["kept"] + result.document["asked"] == result.document["n"] == N_QUESTIONS
    assert result.document["kept"] >= n_rows


@pytest.mark.slow
def test_a_killed_job_ends_with_the_rows_of_an_undisturbed_one(run, job, cli, server, tmp_path):
    command = [sys.executable, "-m", "gpu_rag"]
    kill_and_resume(command, job, tmp_path / "killed.jsonl", server, run, [5, LIVE + 9])
    server.seconds = 0.0
    assert run(*job(tmp_path / "whole.jsonl")).status == 0
    killed, whole = (
        {row["id"]: cli.settled(row) for row in cli.read_rows(tmp_path / name)}
        for name in ("killed.jsonl", "whole.jsonl")
    )
    assert killed == whole and len(whole) == N_QUESTIONS
    assert len(cli.read_rows(tmp_path / "killed.jsonl")) == N_QUESTIONS  # no id twice
    assert all(row["answer"] and row["status"] != "failed" for row in whole.values())


@pytest.mark.slow
def test_ctrl_c_ends_a_process_with_one_line(index, questions, tiny_corpus, tmp_path, cli, chat_server, run):
    """`index` while the model extracts, and `answer`: both stop, say one line, and go on when run again."""
    names = [{"name": name, "aliases": [], "types": ["place"], "description": ""} for name in ("Kerling", "Ves")]
    found = json.dumps({"entities": names, "triples": [["Kerling", "lies on", "Ves"]]})
    server = chat_server(lambda prompt: (200, found))
    llm = (*cli.HASH, "--set", f"models.llm={server.spec}", "--set", "models.capable=true")
    jobs = {
        "index": ("index", tiny_corpus, "--out", tmp_path / "new", "--set", "index.extractor=llm", *llm),
        "answers": ("answer", index, questions, "--method", "dense", "--out", tmp_path / "answers.jsonl", *llm),
    }  # rounds and streaming in one process: in answers/test_resume.py
    for name, words in jobs.items():
        server.forget()
        n = 6 if name == "index" else len(cli.QUESTIONS)
        replies = tmp_path / ("new/replies.sqlite" if name == "index" else f"{name}.jsonl.replies.sqlite")
        server.let_through(2)  # it cannot end before it is stopped
        process = subprocess.Popen(
            cli.command_line(*words, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda n=n: sum(server.begun.values()) == n, process)
        wait_for(lambda replies=replies: kept_replies(replies) == 2, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (1, "")
        last = err.splitlines()[-1]
        assert last.startswith("gpu-rag: error: ") and "Ctrl-C" in last and "Traceback" not in err
        server.forget()
        assert not (tmp_path / f"{name}.jsonl.inflight").exists(), "a stop by Ctrl-C makes no question suspect"
        assert kept_replies(replies) == 2  # a clean stop keeps every reply that had come
        assert run(*words).status == 0
        assert sum(server.begun.values()) == n - 2


def test_ctrl_c_in_code_made_from_text_ends_with_status_1_too(tmp_path):
    """Dataclasses run such code when they are made; `python -m` then dies of the signal if nothing is done about it."""
    (tmp_path / "stopped.py").write_text(
        "from gpu_rag.cli import main\nmain.prepare_process = lambda: exec('raise KeyboardInterrupt')\nmain.program()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stopped"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True
    )
    assert done.returncode == 1 and b"Ctrl-C" in done.stderr


# each run is a child, so that libraries are loaded once; its status is printed
POISON = """
import os, sys
import numba, pandas, pyarrow.parquet, rich.console, scipy.sparse, torch
import gpu_rag.cli.answer_command
from gpu_rag.cli.main import main
from gpu_rag.models.llm.replay import ReplayLLM
plain = ReplayLLM.complete
def complete(self, requests, on_reply=None):
    if any("Who was mayor" in request.prompt for request in requests):
        os._exit(9)
    return plain(self, requests, on_reply)
ReplayLLM.complete = complete
for _ in range(8):
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        os._exit(main(sys.argv[1:]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_a_question_that_kills_the_process_is_set_aside(index, questions, replay, tmp_path, cli, run):
    """The process dies whenever q4 is answered; the job is run again, and once more when it is done."""
    out = tmp_path / "poison.jsonl"
    llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}", "--set", "runtime.max_live=4")
    words = ("answer", index, questions, "--method", "dense", "--out", out, *llm, "--json")
    done = subprocess.run([sys.executable, "-c", POISON, *map(str, words)], capture_output=True, text=True)
    # in company, fewer, alone but after others, as the only one thrice; 3: one of five failed
    assert done.stdout.split() == [*"999999", "3", "3"], done.stderr
    rows = {row["id"]: row for row in cli.read_rows(out)}
    assert [rows[f"q{i}"]["status"] for i in range(1, 6)] == [
        "answered", "answered", "answered", "failed", "unsupported"
    ]  # fmt: skip
    error = rows["q4"]["error"]
    assert error["type"] == "SetAside" and "died 3 times" in error["message"] and len(rows) == 5
    again = run(*words)
    assert (again.status, again.document["asked"], again.document["kept"], again.document["failed"]) == (3, 0, 4, 1)
    assert error["message"].endswith("add --retry-set-aside to have it asked again")
    assert run(*words, "--retry-set-aside").document["asked"] == 1
    assert {row["id"]: row["status"] for row in cli.read_rows(out)}["q4"] == "answered"
