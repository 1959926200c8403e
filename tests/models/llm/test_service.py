"""The streaming face of engines: every key comes out once, whatever finishes, fails, is aborted, or dies."""

import queue
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import kept_replies, wait_until

from gpu_rag.errors import ModelError, RequestFailed, StorageError, UsageError
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.interface import StreamingLLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.llm.service import LLMService, as_streaming
from gpu_rag.types import Reply, Request

WAIT_S = 60.0  # only a bug takes so long


def ask(prompt: str) -> Request:
    return Request("system", prompt)


def echo(request: Request) -> str:
    return f"reply to {request.prompt}"


class Gate:
    """An engine that answers a request when the test opens it by name; `taken` names those that wait at the gate."""

    def __init__(self) -> None:
        self.taken: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.opened: dict[str, threading.Event] = {}
        self.lock = threading.Lock()

    def event(self, prompt: str) -> threading.Event:
        with self.lock:
            return self.opened.setdefault(prompt, threading.Event())

    def open(self, *prompts: str) -> None:
        for prompt in prompts:
            self.event(prompt).set()

    def __call__(self, request: Request) -> str:
        self.taken.put(request.prompt)
        assert self.event(request.prompt).wait(WAIT_S)
        return echo(request)


def drain(llm: StreamingLLM) -> list[tuple[int, Reply | RequestFailed]]:
    """All that is open, in the order in which it came."""
    found: list[tuple[int, Reply | RequestFailed]] = []
    end = time.monotonic() + WAIT_S
    while llm.n_open and time.monotonic() < end:
        found += llm.poll(0.5)
    assert not llm.n_open
    return found


def test_what_arrives_during_a_batch_is_the_next_batch():
    gate = Gate()
    engine = ScriptedLLM(gate)
    service = LLMService(engine)
    service.submit(0, ask("a"))
    assert gate.taken.get(timeout=WAIT_S) == "a"
    for key, prompt in enumerate("bcd", start=1):
        service.submit(key, ask(prompt))
    assert service.poll(0.0) == []
    gate.open(*"abcd")
    assert [key for key, _ in drain(service)] == [0, 1, 2, 3]
    assert engine.batches == [1, 3]
    service.close()


def test_replies_of_a_batch_come_out_before_it_ends():
    gate = Gate()
    service = LLMService(ScriptedLLM(gate))
    gate.open("first")
    service.submit(1, ask("x"))  # alone, so that the next two are one batch
    gate.open("x")
    drain(service)
    for key, prompt in ((2, "first"), (3, "second")):
        service.submit(key, ask(prompt))
    assert [key for key, _ in service.poll(WAIT_S)] == [2]
    gate.open("second")
    drain(service)
    service.close()


def test_abort_of_a_waiting_and_of_a_running_request():
    gate = Gate()
    engine = ScriptedLLM(gate)
    service = LLMService(engine)
    service.submit(0, ask("running"))
    assert gate.taken.get(timeout=WAIT_S) == "running"
    service.submit(1, ask("waiting"))
    for key in (0, 1, 77):
        service.abort(key)
    [(key, failed)] = service.poll(WAIT_S)
    assert key == 1 and isinstance(failed, RequestFailed) and "aborted" in str(failed)
    gate.open("running")
    assert [(key, reply.text) for key, reply in drain(service)] == [(0, "reply to running")]
    assert [r.prompt for r in engine.calls] == ["running"]
    service.close()


def test_a_dead_engine_is_met_after_all_that_finished():
    def dies(request: Request) -> str:
        if request.prompt == "3":
            raise ModelError("the server is gone")
        return echo(request)

    gate = threading.Event()
    service = LLMService(ScriptedLLM(lambda r: gate.wait(WAIT_S) and dies(r)))
    for key in range(6):
        service.submit(key, ask(str(key)))
    gate.set()
    found = []
    with pytest.raises(ModelError, match="server is gone"):
        while True:
            found += service.poll(WAIT_S)
    assert {key for key, _ in found} == {0, 1, 2}
    began = time.monotonic()
    with pytest.raises(ModelError, match="server is gone"):
        service.poll(WAIT_S)
    assert time.monotonic() - began < WAIT_S / 2
    service.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_an_engine_leaves_nobody_waiting():
    service = LLMService(ScriptedLLM(lambda r: 1 / 0))  # type: ignore[arg-type, return-value]
    service.submit(0, ask("a"))
    with pytest.raises(ModelError, match="thread ended"):
        service.poll(WAIT_S)
    service.close()


def test_closing_stops_at_the_next_reply():
    gate = Gate()
    engine = ScriptedLLM(gate)
    service = LLMService(engine)
    for key in range(3):
        service.submit(key, ask(str(key)))
    first = gate.taken.get(timeout=WAIT_S)
    closer = threading.Thread(target=service.close)
    closer.start()
    while not service._closed:
        time.sleep(0.005)
    gate.open(first)
    closer.join(WAIT_S)
    assert not closer.is_alive() and len(engine.calls) == 1
    with pytest.raises(UsageError, match="an open service"):
        service.submit(9, ask("9"))


def test_as_streaming_picks_the_face(tmp_path):
    plain = ScriptedLLM(echo)
    cached = CachedLLM(plain, tmp_path / "r.sqlite")
    assert as_streaming(cached) is cached and isinstance(cached, StreamingLLM)
    assert not isinstance(plain, StreamingLLM)
    service = as_streaming(plain)
    assert isinstance(service, LLMService) and service.llm is plain


def test_hits_are_there_at_once_and_misses_are_kept(tmp_path):
    gate = Gate()
    cached = CachedLLM(ScriptedLLM(gate), tmp_path / "r.sqlite")
    gate.open("known")
    cached.complete([ask("known")])
    cached.submit(1, ask("new"))
    cached.submit(2, ask("known"))
    [(key, hit)] = cached.poll(WAIT_S)
    assert key == 2 and hit.text == "reply to known" and hit.from_cache
    assert cached.n_open == 1
    gate.open("new")
    [(key, fresh)] = drain(cached)
    assert key == 1 and not fresh.from_cache
    cached.close()
    engine = ScriptedLLM(echo)
    again = CachedLLM(engine, tmp_path / "r.sqlite")
    again.submit(5, ask("new"))
    assert drain(again) == [(5, replace(fresh, from_cache=True))] and engine.calls == []
    again.close()


def test_replies_are_kept_while_the_caller_is_in_a_long_batch(tmp_path, monkeypatch):
    """A kill would lose them, and the next run would ask again."""
    path = tmp_path / "r.sqlite"
    llm = CachedLLM(ScriptedLLM(lambda r: RequestFailed("no") if r.prompt == "3" else echo(r)), path)
    plain, refused = llm.file.write, threading.Event()

    def full_at_first(replies):
        if replies and not refused.is_set():
            refused.set()
            raise StorageError("the disk is full")
        plain(replies)

    monkeypatch.setattr(llm.file, "write", full_at_first)
    for i in range(8):
        llm.submit(i, ask(str(i)))
    wait_until(lambda: kept_replies(path) == 7)
    assert refused.is_set() and llm.n_open == 8
    found = dict(drain(llm))
    assert [getattr(found[i], "text", None) for i in range(8)] == [
        None if i == 3 else f"reply to {i}" for i in range(8)
    ]
    keeper = llm._keeper
    llm.close()
    assert keeper is not None and not keeper.is_alive()


def test_a_reply_is_in_the_file_before_it_is_given_out(tmp_path):
    path = tmp_path / "r.sqlite"
    cached = CachedLLM(ScriptedLLM(echo), path)
    given_out = 0
    for key in range(40):
        cached.submit(key, ask(str(key)))
    while cached.n_open:
        given_out += len(cached.poll(WAIT_S))
        assert kept_replies(path) >= given_out
    assert given_out == 40
    cached.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(prompts=st.lists(st.sampled_from("abcdef"), max_size=14), known=st.sets(st.sampled_from("abc")))
def test_equal_open_requests_are_asked_once(tmp_path_factory, prompts, known):
    """The same replies as `complete` gives, one of each distinct unknown request asked, all keys out once."""
    engine, gate = ScriptedLLM(echo), threading.Event()
    cached = CachedLLM(engine, tmp_path_factory.mktemp("cache") / "r.sqlite")
    cached.complete([ask(p) for p in sorted(known)])
    engine.calls.clear()
    engine._answer = lambda request: (gate.wait(WAIT_S), echo(request))[1]  # nothing finishes before all are in
    for key, prompt in enumerate(prompts):
        cached.submit(key, ask(prompt))
    gate.set()
    found = dict(drain(cached))
    assert {key: reply.text for key, reply in found.items()} == {i: f"reply to {p}" for i, p in enumerate(prompts)}
    assert [r.prompt for r in engine.calls] == [p for p in dict.fromkeys(prompts) if p not in known]
    fresh = {i for i, p in enumerate(prompts) if p not in known and prompts.index(p) == i}
    assert {key for key, reply in found.items() if not reply.from_cache} == fresh
    cached.close()


def test_abort_spares_what_an_equal_request_waits_for(tmp_path):
    gate = Gate()
    engine = ScriptedLLM(gate)
    cached = CachedLLM(engine, tmp_path / "r.sqlite")
    cached.submit(0, ask("busy"))
    assert gate.taken.get(timeout=WAIT_S) == "busy"
    for key, prompt in ((1, "twin"), (2, "twin"), (3, "alone")):
        cached.submit(key, ask(prompt))
    cached.abort(1)
    cached.abort(3)
    cached.submit(4, ask("alone"))  # a new request is not bound to the aborted one
    gate.open("busy", "twin", "alone")
    found = dict(drain(cached))
    assert [type(found[key]) for key in range(5)] == [Reply, RequestFailed, Reply, RequestFailed, Reply]
    assert found[2].text == "reply to twin" and found[4].text == "reply to alone"
    assert sorted(r.prompt for r in engine.calls) == ["alone", "busy", "twin"]
    cached.close()


def test_failures_are_not_kept_and_a_dead_engine_comes_after_the_hits(tmp_path):
    def answer(request: Request) -> str | RequestFailed:
        if request.prompt == "dead":
            raise ModelError("gone")
        return RequestFailed("no") if request.prompt == "bad" else echo(request)

    cached = CachedLLM(ScriptedLLM(answer), tmp_path / "r.sqlite")
    for key, prompt in enumerate(("bad", "good", "bad")):
        cached.submit(key, ask(prompt))
    assert [type(reply) for _, reply in sorted(drain(cached))] == [RequestFailed, Reply, RequestFailed]
    assert len(cached) == 1
    cached.submit(3, ask("dead"))
    cached._stream._thread.join(WAIT_S)
    cached.submit(4, ask("good"))
    assert [key for key, _ in cached.poll(WAIT_S)] == [4]
    with pytest.raises(ModelError, match="gone"):
        cached.poll(WAIT_S)
    with pytest.raises(UsageError, match="key 3"):
        cached.submit(3, ask("x"))
    cached.close()
