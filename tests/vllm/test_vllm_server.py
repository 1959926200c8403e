"""The packaged model behind a vLLM server that is started here: the replies of transformers, and what servers do."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from waiting import kept_replies, wait_until

from gpu_rag.errors import ContextOverflow, RequestFailed
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.transformers import TransformersLLM
from gpu_rag.models.llm.vllm import VllmLLM
from gpu_rag.models.packaged import packaged_llm_folder
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

SYSTEM = "Answer from the passage, in a few words."
PASSAGES = [
    "The Halden Bridge was designed by Marta Orlo. It crosses the river Ves at Kerling.",
    "Kerling is a town on the river Ves. Its mayor was Anna Stroud.",
    "The lighthouse of Tamsin was built in 1902.",
]
QUESTIONS = ["Who designed the Halden Bridge?", "Who was the mayor of Kerling?", "When was the lighthouse built?"]
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "names": {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 2, "maxItems": 3},
            "n": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["names", "n"],
        "additionalProperties": False,
    }
)
N_QUESTIONS = 24
WAIT_S = 300.0


@pytest.fixture(scope="module")
def plain() -> TransformersLLM:
    return TransformersLLM(packaged_llm_folder(), dtype="float32")


def asked(constraint: Any = None, **changes: Any) -> list[Request]:
    texts = [f"{passage}\n{question}" for passage, question in zip(PASSAGES, QUESTIONS)]
    return [replace(Request(SYSTEM, text, constraint, max_tokens=16), **changes) for text in texts]


def long_one(**changes: Any) -> Request:
    return replace(Request("", "Write a very long story about a bridge.", max_tokens=1500), **changes)


def metric(llm: VllmLLM, name: str) -> float:
    [own] = [server.own for server in llm._thread.servers.servers]
    command = ["curl", "-s", "--unix-socket", own.socket, "http://localhost/metrics"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(float(number) for number in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))


def test_greedy_texts_and_counts_are_those_of_transformers(served, plain):
    ours, theirs = served.complete(asked()), plain.complete(asked())
    for one, other in zip(ours, theirs, strict=True):
        assert (one.text, one.finish_reason, one.n_prompt) == (other.text, other.finish_reason, other.n_prompt)
    assert "stop" in {reply.finish_reason for reply in ours}
    text = f"{PASSAGES[0]} naïve 東京"
    assert served.count_tokens(text) == plain.count_tokens(text) and served.name == "vllm:smollm2"
    assert served.capable is plain.capable is False and served.content_hash != plain.content_hash


def test_json_is_valid_on_one_line_and_that_of_transformers(served, plain):
    requests = asked(JsonSchema(SCHEMA), max_tokens=40)
    ours = served.complete(requests)
    for reply, other in zip(ours, plain.complete(requests), strict=True):
        jsonschema.validate(json.loads(reply.text), json.loads(SCHEMA))
        assert reply.finish_reason == "stop" and reply.text == json.dumps(json.loads(reply.text)) == other.text


@pytest.mark.parametrize("options", [("yes", "no"), ("A", "AB", "ABC"), ('say "x"\\', "two\nlines", "naïve 東京")])
def test_choice_is_exactly_one_option(served, options):
    requests = [r for i in range(3) for r in asked(Choice(options), temperature=2.0, seed=i, max_tokens=60)]
    assert {reply.text for reply in served.complete(requests)} <= set(options)


def test_rank_scores_the_letter_of_each_option(served):
    options = ("Marta Orlo", "Anna Stroud", "the river Ves", "1902")
    for reply in served.complete(asked(Rank(options))):
        assert reply.finish_reason == "rank" and len(reply.scores) == 4 and max(reply.scores) < 0
        assert reply.text == options[max(range(4), key=reply.scores.__getitem__)]


def test_sampling_depends_on_the_seed_not_on_company(served):
    request = long_one(max_tokens=24, temperature=1.0, seed=11)
    [alone] = served.complete([request])
    others = [replace(request, seed=seed) for seed in range(3)]
    texts = [reply.text for reply in served.complete([*others, request])]
    assert texts[-1] == alone.text and len(set(texts)) == 4


def test_the_second_request_finds_the_prefix_of_the_first(served):
    system = "Another system text, long enough for several blocks of tokens. " * 6
    [first, again] = [served.complete([long_one(system=system, max_tokens=2, prompt=p)])[0] for p in ("a", "b")]
    assert first.n_cached == 0 and again.n_cached >= 64
    [account] = served.accounts()
    assert account.cached_tokens >= again.n_cached and account.preemptions is not None and account.queue_s > 0


def test_text_is_handed_on_as_it_comes(served):
    seen: list[str] = []
    [reply] = served.complete([long_one(max_tokens=96, on_text=seen.append)])  # a busy server joins pieces
    assert len(seen) > 1 and seen[0] != seen[-1] == reply.text and all(reply.text.startswith(text) for text in seen)


def test_a_request_that_cannot_run_fails_alone(served):
    bad = [long_one(prompt="red " * 4000), long_one(constraint=JsonSchema('{"type": 5}'))]
    replies = served.complete([*bad, long_one(max_tokens=3)])
    kinds = (ContextOverflow, RequestFailed, Reply)
    assert all(isinstance(reply, kind) for reply, kind in zip(replies, kinds, strict=True))


def test_a_prompt_as_long_as_may_be_fits(served):
    prompt = "red door " * 1200
    while served.count_tokens(prompt) + 10 > served.context_tokens:
        prompt = prompt[: -9 * 5]
    assert isinstance(served.complete([long_one(prompt=prompt, max_tokens=10)])[0], Reply)


def test_the_cache_keeps_what_the_server_says(served, tmp_path):
    cached = CachedLLM(served, tmp_path / "replies.sqlite")
    fresh = cached.complete(asked())
    assert cached.complete(asked()) == [replace(reply, from_cache=True) for reply in fresh]
    cached.file.close()  # the server stays open for other tests


def test_an_aborted_request_stops_in_the_server(served):
    served.submit(1, long_one(max_tokens=1900, constraint=JsonSchema('{"type":"array","minItems":2000}')))
    wait_until(lambda: metric(served, "vllm:num_requests_running") == 1)
    served.abort(1)
    [(key, reply)] = served.poll(WAIT_S)
    assert key == 1 and isinstance(reply, RequestFailed)
    wait_until(lambda: metric(served, "vllm:num_requests_running") == 0)


def engine_processes() -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True)
    lines = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, _, words in lines if "VLLM::EngineCor" in words]


def test_a_killed_engine_is_replaced_and_the_requests_go_on(served):
    before = [reply.text for reply in served.complete(asked())]
    [server] = served._thread.servers.servers
    old = [pid for pid in engine_processes() if os.getpgid(pid) == server.own.pid]
    for pid in old:
        os.kill(pid, signal.SIGSTOP)  # however fast it is, it ends none of them
    for key, request in enumerate(asked()):
        served.submit(key, request)
    wait_until(lambda: len(server.running) == 3)
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    found: dict[int, Any] = {}
    while served.n_open:
        found.update(served.poll(WAIT_S))
    assert [found[key].text for key in range(3)] == before
    assert old and not set(old) & set(engine_processes())


def command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "gpu_rag", *map(str, words)]


def mark_replies(cache: Path) -> None:
    """Change the kept replies: a request that is asked again would show what the engine says."""
    with sqlite3.connect(cache) as db:
        for key, text in db.execute("SELECT key, reply FROM replies").fetchall():
            reply = {**json.loads(text), "text": "kept from the first run"}
            del reply["sum"]  # as an earlier version wrote it: with one of another text it would be damage
            db.execute("UPDATE replies SET reply = ? WHERE key = ?", (json.dumps(reply), key))


def test_a_killed_job_leaves_no_server_is_resumed_and_asks_nothing_twice(tiny_corpus, tmp_path):
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
    before = set(engine_processes())
    first = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: kept_replies(cache) >= 4 or first.poll() is not None, 240)  # a server takes 80 s to start
    assert first.poll() is None, "it ended before it could be killed"
    assert set(engine_processes()) - before
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    n_kept = kept_replies(cache)
    assert 4 <= n_kept < N_QUESTIONS
    wait_until(lambda: not set(engine_processes()) - before)
    mark_replies(cache)
    done = subprocess.run(command(*words), check=True, capture_output=True, text=True)
    document = json.loads(done.stdout.splitlines()[-1])
    assert (document["n"], document["failed"]) == (N_QUESTIONS, 0)
    assert kept_replies(cache) == N_QUESTIONS
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    marked = [row["id"] for row in answers if "kept from the first run" in (row["answer"] or "")]
    # answers written before the kill have their own text; every other kept reply was used, and none asked again
    assert len({row["id"] for row in answers}) == N_QUESTIONS
    assert n_kept - document["kept"] == len(marked)
