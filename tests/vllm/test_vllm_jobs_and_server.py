"""A batch job over vLLM that is killed and resumed, and vLLM's own server behind the HTTP backend."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema

from gpu_rag.errors import ModelError
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

N_QUESTIONS = 24
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":9}},"required":["n"],"additionalProperties":false}'  # noqa: E501


# --- jobs ------------------------------------------------------------------------------------------


def command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "gpu_rag", *map(str, words)]


def replies_in(path: Path) -> int:
    if not path.exists():
        return 0
    with sqlite3.connect(path, timeout=30) as reader:
        found = reader.execute("SELECT count(*) FROM sqlite_master WHERE name = 'replies'").fetchone()[0]
        return int(reader.execute("SELECT count(*) FROM replies").fetchone()[0]) if found else 0


def test_a_killed_job_is_resumed_and_asks_nothing_twice(tiny_corpus, tmp_path):
    index, out, questions = tmp_path / "index", tmp_path / "answers.jsonl", tmp_path / "questions.jsonl"
    rows = [
        {"id": f"q{i:02d}", "question": f"Who was the mayor of Kerling in the year {1800 + i}?"}
        for i in range(N_QUESTIONS)
    ]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    no_models = ("--set", "models.embedder=hash", "--set", "models.llm=none")
    subprocess.run(command("index", tiny_corpus, "--out", index, "--for", "bm25", *no_models), check=True)
    words = ["answer", index, questions, "--method", "bm25", "--out", out, "--json"]
    for setting in (
        "models.llm=vllm:smollm2",
        "models.embedder=hash",
        "vllm.max_model_len=4096",
        "vllm.kv_cache_gib=0.25",
        "vllm.max_num_seqs=2",
    ):
        words += ["--set", setting]
    cache = out.with_name(out.name + ".replies.sqlite")
    first = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 200
    while replies_in(cache) < 4 and first.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert first.poll() is None, "it ended before it could be killed"
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    n_kept = replies_in(cache)
    assert 4 <= n_kept < N_QUESTIONS
    mark_replies(cache)
    done = subprocess.run(command(*words), check=True, capture_output=True, text=True)
    document = json.loads(done.stdout.splitlines()[-1])
    assert (document["n"], document["failed"]) == (N_QUESTIONS, 0)
    assert replies_in(cache) == N_QUESTIONS
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    marked = [row["id"] for row in answers if "kept from the first run" in (row["answer"] or "")]
    # answers written before the kill have their own text; every other kept reply was used, and none asked again
    assert len({row["id"] for row in answers}) == N_QUESTIONS
    assert n_kept - document["kept"] == len(marked)


def mark_replies(cache: Path) -> None:
    """Change the kept replies: a request that is asked again would show what the engine says."""
    with sqlite3.connect(cache) as db:
        for key, text in db.execute("SELECT key, reply FROM replies").fetchall():
            reply = {**json.loads(text), "text": "kept from the first run"}
            del reply["sum"]  # as an earlier version wrote it: with one of another text it would be damage
            db.execute("UPDATE replies SET reply = ? WHERE key = ?", (json.dumps(reply), key))


# --- the server ------------------------------------------------------------------------------------


def test_vllm_server_through_the_http_backend(server):
    llm = HttpLLM(server, "tiny", retries=1)
    assert llm.context_tokens == 4096 - 64 and llm.name == f"{server}#tiny"
    options = ("the red door", "the blue door", "neither")
    asked = [Request("You choose.", f"Which of them, {i}?", Choice(options), temperature=1.0, seed=i) for i in range(8)]
    replies = llm.complete(asked)
    assert {reply.text for reply in replies} <= set(options) and len({reply.text for reply in replies}) > 1
    system = "A system text that fills more than one block of the cache. " * 6
    texts = llm.complete([Request(system, "Say something.", JsonSchema(SCHEMA), max_tokens=40)])
    jsonschema.validate(json.loads(texts[0].text), json.loads(SCHEMA))
    [again] = llm.complete([Request(system, "Say something else.", max_tokens=4)])
    assert again.n_cached > 0 and again.n_generated <= 4
    [ranked] = llm.complete([Request("You choose.", "Which?", Rank(options))])
    assert isinstance(ranked, Reply)
    if ranked.scores:
        assert ranked.finish_reason == "rank" and len(ranked.scores) == len(options)
    else:  # random weights may consider no option's letter: who asks then asks otherwise
        assert ranked.finish_reason in ("stop", "length")
    llm.close()


def test_vllm_server_and_a_model_that_it_does_not_serve(server):
    try:
        HttpLLM(server, "another", retries=0)
    except ModelError as error:
        assert "does not serve this model" in str(error) and "tiny" in str(error)
    else:
        raise AssertionError("another model was accepted")


def test_vllm_server_refuses_what_does_not_fit(server):
    llm = HttpLLM(server, "tiny", retries=0)
    long, good = llm.complete([Request("", "red " * 9000), Request("", "red", max_tokens=3)])
    assert type(long).__name__ == "ContextOverflow" and good.n_generated <= 3
    llm.close()
