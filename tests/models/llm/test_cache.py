"""The reply cache: nothing asked twice, nothing lost to a kill, nothing kept that failed."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import kept_replies, wait_until

from gpu_rag.errors import IndexCorrupt, IndexMismatch, ModelError, StorageError
from gpu_rag.models.llm.cache import KEYS_A_QUERY, CachedLLM, ReplyFile, faults_of, mend_replies
from gpu_rag.models.llm.interface import reply_key
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request


def echo(request: Request) -> str:
    return f"reply to {request.prompt}"


def ask(prompt: str, **changes) -> Request:
    return replace(Request("system", prompt), **changes)


def test_second_run_asks_nothing_and_returns_the_same(tmp_path):
    def answer(request):
        return Reply("blue", "rank", 7, 3, 1, (-0.1, -1 / 3, float("-inf")))

    first = CachedLLM(ScriptedLLM(answer), tmp_path / "r.sqlite")
    [fresh] = first.complete([ask("a", constraint=Rank(("blue", "red", "x")))])
    first.close()
    engine = ScriptedLLM(answer)
    second = CachedLLM(engine, tmp_path / "r.sqlite")
    [kept] = second.complete([ask("a", constraint=Rank(("blue", "red", "x")))])
    assert engine.calls == [] and len(second) == 1
    assert not fresh.from_cache and kept == replace(fresh, from_cache=True)


CHANGES = [
    *({"system": "other"}, {"prompt": "other"}, {"max_tokens": 7}, {"attempt": 1}),
    *({"constraint": constraint} for constraint in (Choice(("x",)), Rank(("x",)), JsonSchema("x"))),
    *({"temperature": 0.5}, {"temperature": 0.5, "seed": 1}),
]


def test_key_depends_on_all_that_changes_a_reply():
    llm = ScriptedLLM(echo)
    keys = {reply_key(llm, replace(ask("a"), **change)) for change in [{}, *CHANGES]}
    assert len(keys) == len(CHANGES) + 1
    assert reply_key(llm, ask("a", seed=5)) == reply_key(llm, ask("a"))  # greedy: the seed plays no part
    assert reply_key(ScriptedLLM(echo, name="another"), ask("a")) not in keys
    assert reply_key(llm, Request("ab", "c")) != reply_key(llm, Request("a", "bc"))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(prompts=st.lists(st.sampled_from("abcdef"), max_size=12), known=st.sets(st.sampled_from("abc")))
def test_every_distinct_unknown_request_is_asked_once_and_order_is_kept(tmp_path_factory, prompts, known):
    engine = ScriptedLLM(echo)
    cached = CachedLLM(engine, tmp_path_factory.mktemp("cache") / "r.sqlite")
    cached.complete([ask(p) for p in sorted(known)])
    engine.calls.clear()
    seen: dict[int, object] = {}
    replies = cached.complete([ask(p) for p in prompts], lambda i, r: seen.update({i: r}))
    assert [r.text for r in replies] == [f"reply to {p}" for p in prompts]
    assert [r.prompt for r in engine.calls] == [p for p in dict.fromkeys(prompts) if p not in known]
    fresh = [p not in known and prompts.index(p) == i for i, p in enumerate(prompts)]
    assert [not r.from_cache for r in replies] == fresh
    assert seen == dict(enumerate(replies))
    cached.close()


def test_an_engine_that_only_returns_its_replies_is_enough(tmp_path):
    class Plain(ScriptedLLM):
        def complete(self, requests, on_reply=None):
            return super().complete(requests)[: 1 if requests[0].prompt == "short" else None]

    with closing(CachedLLM(Plain(echo), tmp_path / "r.sqlite")) as cached:
        assert [r.text for r in cached.complete([ask(p) for p in "aba"])] == [f"reply to {p}" for p in "aba"]
        assert len(cached) == 2
        cached.submit(7, ask("c"))
        assert [(key, r.text) for key, r in cached.poll(60.0)] == [(7, "reply to c")]
        with pytest.raises(ModelError, match="given 1 of 2"):
            cached.complete([ask("short"), ask("d")])


def test_a_reply_is_committed_while_the_next_one_is_long_in_coming(tmp_path):
    """A commit that waited for the next reply would lose the one before it to a kill."""
    path = tmp_path / "r.sqlite"

    def answer(request):
        if request.prompt in ("4", "5"):
            wait_until(lambda: kept_replies(path) >= int(request.prompt))
        return "fine"

    CachedLLM(ScriptedLLM(answer), path).complete([ask(str(i)) for i in range(9)])
    assert kept_replies(path) == 9


@pytest.mark.parametrize("lasting", [True, False])
def test_a_commit_that_failed_beside_the_batch_is_made_up_for_or_told(tmp_path, monkeypatch, lasting):
    path, tried = tmp_path / "r.sqlite", threading.Event()

    def answer(request):
        if request.prompt == "2":
            assert tried.wait(60)  # replies 0 and 1 could not be written
        return "fine"

    cached = CachedLLM(ScriptedLLM(answer), path)
    plain = cached.file.write

    def full(replies):
        if lasting or not tried.is_set():
            tried.set()
            raise StorageError("the disk is full")
        plain(replies)

    monkeypatch.setattr(cached.file, "write", full)
    with pytest.raises(StorageError, match="full") if lasting else nullcontext():
        cached.complete([ask(str(i)) for i in range(3)])
    assert kept_replies(path) == (0 if lasting else 3)


def test_a_disk_that_refuses_loses_no_reply_that_was_ready(tmp_path, monkeypatch):
    cached = CachedLLM(ScriptedLLM(lambda request: "fine"), tmp_path / "r.sqlite")
    cached.complete([ask("kept")])
    plain = cached.file.write
    monkeypatch.setattr(cached.file, "write", Mock(side_effect=StorageError("the disk is full")))
    cached.submit(1, ask("new"))
    cached.submit(2, ask("kept"))
    assert [key for key, _ in cached.poll(5.0)] == [2]
    with pytest.raises(StorageError):
        cached.poll(5.0)
    monkeypatch.setattr(cached.file, "write", plain)
    assert [key for key, _ in cached.poll(5.0)] == [1] and cached.n_open == 0


def test_a_reply_that_was_replaced_once_stays(tmp_path):
    file = ReplyFile(tmp_path / "r.sqlite")
    first, second, third = (Reply(text, "stop", 1, 0, 1) for text in "abc")
    file.write([("k", first)])
    file.replace(["k"])
    for reply in (second, third):
        file.write([("k", reply)])
    assert file.read(["k"])["k"].text == "b"


WRITER = """
import sys
from pathlib import Path
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import Request

llm = CachedLLM(ScriptedLLM(lambda r: "x" * 4000), Path(sys.argv[1]))
for batch in range(10**6):
    llm.complete([Request("s", f"{batch}/{i}") for i in range(8)])
    print(batch, flush=True)
"""


def batches_lost_by_a_kill(path: Path, after: int) -> int:
    """Kill a process that reports each finished batch; how many reported batches the file lacks."""
    path.parent.mkdir()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    reported = [int(writer.stdout.readline()) for _ in range(after)]
    os.kill(writer.pid, signal.SIGKILL)
    reported += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    writer.wait()
    engine = ScriptedLLM(lambda r: "x" * 4000)
    cached = CachedLLM(engine, path)
    assert cached.file.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    cached.complete([Request("s", f"{batch}/{i}") for batch in reported for i in range(8)])
    cached.close()
    return len({r.prompt.split("/")[0] for r in engine.calls})


def test_a_killed_writer_loses_no_finished_batch(tmp_path):
    for after in (1, 7, 20):
        assert batches_lost_by_a_kill(tmp_path / str(after) / "r.sqlite", after) == 0


def test_readers_and_two_writers_share_the_file(tmp_path):
    path = tmp_path / "r.sqlite"
    writers = [CachedLLM(ScriptedLLM(echo), path) for _ in range(2)]
    errors: list[BaseException] = []

    def write(n: int) -> None:
        try:
            for batch in range(10):
                writers[n].complete([ask(f"{n}/{batch}/{i}") for i in range(4)] + [ask(f"both/{batch}")])
        except (StorageError, IndexCorrupt) as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    counts = []
    while any(thread.is_alive() for thread in threads):
        reader = CachedLLM(ScriptedLLM(echo), path)
        counts.append(len(reader))
        reader.close()
    for thread in threads:
        thread.join()
    assert errors == [] and counts == sorted(counts)
    assert len(writers[0]) == 2 * 10 * 4 + 10


def answered(path: Path, n: int) -> dict[str, str]:
    """The replies to n requests, kept in `path`: long and short ones, so that some fill pages of their own."""
    cached = CachedLLM(
        ScriptedLLM(lambda request: f"{request.prompt} " * (1 if len(request.prompt) < 3 else 900)), path
    )
    replies = cached.complete([ask(str(i * 37)) for i in range(n)])
    cached.close()
    return {str(i * 37): reply.text for i, reply in enumerate(replies)}


def test_a_damaged_reply_is_named_and_asked_again(tmp_path, caplog):
    path = tmp_path / "r.sqlite"
    before = answered(path, 3)
    cached = CachedLLM(ScriptedLLM(echo), path)
    key = reply_key(cached, ask("0"))
    with cached.file.db:
        cached.file.db.execute("UPDATE replies SET reply = replace(reply, '0 ', '1 ') WHERE key = ?", (key,))
    assert faults_of(path)[0].startswith(f"the reply {key} is damaged")
    engine = ScriptedLLM(lambda request: before[request.prompt])
    cached = CachedLLM(engine, path)
    assert [r.text for r in cached.complete([ask(p) for p in before])] == list(before.values())
    assert [r.prompt for r in engine.calls] == ["0"] and key in caplog.text
    assert faults_of(path) == []


@pytest.mark.slow
def test_no_flipped_byte_of_a_reply_file_changes_a_reply(tmp_path, caplog):
    """Whatever byte is another: every reply is as before, most without a request; mended, the file is well."""
    path, chance = tmp_path / "r.sqlite", random.Random(3)
    before = answered(path, 60)
    sound, n_asked, n_seen = path.read_bytes(), [], 0
    head = range(100)  # every byte of what the whole file hangs on
    for at in [*head, *(chance.randrange(len(sound)) for _ in range(200))]:
        data = bytearray(sound)
        data[at] ^= 1 << chance.randrange(8)
        for other in tmp_path.glob("r.sqlite*"):
            other.unlink()
        path.write_bytes(data)
        caplog.clear()
        found = faults_of(path)
        engine = ScriptedLLM(lambda request: before[request.prompt])
        try:
            cached = CachedLLM(engine, path)
        except IndexMismatch as error:
            assert at in range(60, 64) and "newer" in str(error)  # the number of its version
            continue
        assert [r.text for r in cached.complete([ask(p) for p in before])] == list(before.values())
        n_asked.append(len(engine.calls))
        cached.close()
        mend_replies(path)  # also what none reads
        assert faults_of(path) == []
        assert n_asked[-1] == 0 or (found and caplog.text), at
        n_seen += bool(found)
    assert max(n_asked) <= 8 and sum(n_asked) / len(n_asked) < 2 and n_seen > 100


@pytest.mark.parametrize("n", [0, 1, KEYS_A_QUERY, KEYS_A_QUERY + 1, 3 * KEYS_A_QUERY + 7])
def test_every_key_that_is_there_is_read(tmp_path, n):
    file = ReplyFile(tmp_path / "r.sqlite")
    file.write([(f"k{i}", Reply(f"w{i}", "stop", 1, 0, 1)) for i in range(0, n, 2)])
    kept = file.read([f"k{i}" for i in range(n)])
    assert {key: reply.text for key, reply in kept.items()} == {f"k{i}": f"w{i}" for i in range(0, n, 2)}


def test_what_the_disk_refuses_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="the reply cache cannot be used"):
        ReplyFile(tmp_path / "none" / "r.sqlite")


def test_a_reply_without_a_checksum_is_read_as_before(tmp_path):
    answered(path := tmp_path / "r.sqlite", 2)
    with sqlite3.connect(path) as db:
        rows = [(json.loads(text), key) for key, text in db.execute("SELECT key, reply FROM replies")]
        assert all(record.pop("sum") for record, _ in rows)
        db.executemany(
            "UPDATE replies SET reply = ? WHERE key = ?", [(json.dumps(record), key) for record, key in rows]
        )
    engine = ScriptedLLM(echo)
    assert len(CachedLLM(engine, path).complete([ask("0"), ask("37")])) == 2 and engine.calls == []
