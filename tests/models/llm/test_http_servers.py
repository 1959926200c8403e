"""Several model servers as one engine, and servers that drip, flood, refuse, reset, hang and die."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from waiting import wait_until

from gpu_rag.errors import BadInput, ModelError, RequestFailed, UsageError
from gpu_rag.models.llm import addresses, http_servers, http_wire, load_llm
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.models.llm.http_servers import Patience, Server, Servers
from gpu_rag.models.llm.interface import StreamingLLM
from gpu_rag.models.llm.service import as_streaming
from gpu_rag.types import Reply, Request

WAIT_S = 60.0  # only a bug takes so long
SILENT = pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
pytestmark = SILENT


def response(content: Any, status: int = 200, headers: str = "") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return f"HTTP/1.1 {status} X\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def said(text: str) -> bytes:
    usage = {"prompt_tokens": 20, "completion_tokens": 3}
    return response({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})


Behave = Callable[["Fake", str, asyncio.StreamWriter], Awaitable[bytes | None]]


async def echo(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    await asyncio.sleep(fake.delay_s)
    return said(f"re: {prompt}")


class Fake:
    """A server on an event loop of its own. behave: the bytes to a prompt; None: it wrote or closed by itself."""

    def __init__(self, behave: Behave = echo, models: Any = ("m",), port: int = 0):
        self.behave, self.delay_s, self.dead = behave, 0.0, False
        self.models = {"data": [{"id": model, "max_model_len": 2048} for model in models]}
        self.seen: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.busy = self.most_busy = 0
        self.writers: set[asyncio.StreamWriter] = set()
        self.readers: list[asyncio.StreamReader] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = self.run(asyncio.start_server(self.serve, "127.0.0.1", port, limit=2**20))
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        self.readers.append(reader)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not self.dead:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                self.keys |= {fields["authorization"]} if "authorization" in fields else set()
                answer = await self.answer(head, body, writer)
                if writer.is_closing():
                    break
                if answer is not None:
                    writer.write(answer)
                    await writer.drain()
        writer.close()
        self.writers.discard(writer)

    async def answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> bytes | None:
        if head.startswith("GET"):
            return self.models if isinstance(self.models, bytes) else response(self.models)
        prompt = json.loads(body)["messages"][-1]["content"]
        self.seen[prompt] += 1
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            return await self.behave(self, prompt, writer)
        finally:
            self.busy -= 1

    def die(self) -> None:
        """Nobody listens any more, and every connection is reset."""

        async def end() -> None:
            self.end()

        self.run(end())

    def end(self) -> None:
        """`die`, in the server's own thread."""
        self.dead = True
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    def close(self) -> None:
        if self.loop.is_closed():
            return

        async def end() -> None:
            self.server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        self.loop.close()


@pytest.fixture
def fakes() -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def make(*given: Any, **options: Any) -> Fake:
        made.append(Fake(*given, **options))
        return made[-1]

    yield make
    for fake in made:
        fake.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., HttpLLM]]:
    opened: list[HttpLLM] = []
    before = set(threading.enumerate())

    def make(*given: Fake | str, **options: Any) -> HttpLLM:
        urls = [fake if isinstance(fake, str) else fake.url for fake in given]
        opened.append(HttpLLM(urls, options.pop("model", "m"), **{"backoff_s": 0.01, "retries": 3, **options}))
        return opened[-1]

    yield make
    for llm in opened:
        llm.close()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name == "llm-http"], "a thread was left"


def ask(n: int, word: str = "p") -> list[Request]:
    return [Request("", f"{word}{i}") for i in range(n)]


def llm_urls(llm: HttpLLM) -> list[str]:
    return [server.exchanger.url for server in llm._thread.servers.servers]


def texts(replies: list[Reply | RequestFailed]) -> list[str]:
    return [reply.text if isinstance(reply, Reply) else str(reply) for reply in replies]


def drain(llm: StreamingLLM) -> dict[int, Reply | RequestFailed]:
    found: dict[int, Reply | RequestFailed] = {}
    until = time.monotonic() + WAIT_S
    while llm.n_open and time.monotonic() < until:
        for key, reply in llm.poll(1.0):
            assert key not in found
            found[key] = reply
    assert not llm.n_open
    return found


def test_both_faces_give_every_request_back_once(fakes, connect):
    llm = connect(fakes(), fakes(), max_connections=7)
    assert isinstance(llm, StreamingLLM) and as_streaming(llm) is llm
    requests, seen = ask(150), {}
    whole = llm.complete(requests, lambda i, reply: seen.setdefault(i, reply))
    assert texts(whole) == [f"re: p{i}" for i in range(150)] and [seen[i] for i in range(150)] == whole
    for key, request in enumerate(requests):
        llm.submit(key, request)
    with pytest.raises(UsageError, match="key 149"):
        llm.submit(149, requests[0])
    found = drain(llm)
    assert [found[i] for i in range(150)] == whole and llm.poll(WAIT_S) == []
    assert llm.complete([]) == []


def test_as_many_requests_as_allowed_and_one_thread(fakes, connect):
    gate = asyncio.Event()

    async def stuck(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        await gate.wait()
        return said("late")

    fake = fakes(stuck)
    before = threading.active_count()
    llm = connect(fake, max_connections=200)
    for key, request in enumerate(ask(220)):
        llm.submit(key, request)
    wait_until(lambda: fake.busy == 200)
    assert threading.active_count() <= before + 1 and len(fake.seen) == 200
    fake.loop.call_soon_threadsafe(gate.set)
    assert len(drain(llm)) == 220 and fake.most_busy == 200


def test_the_least_loaded_server_is_next(fakes, connect):
    slow, quick = fakes(), fakes()
    gate = asyncio.Event()

    async def stuck(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        await gate.wait()
        return said("late")

    slow.behave = stuck
    llm = connect(slow, quick, max_connections=10)
    for key, request in enumerate(ask(100)):
        llm.submit(key, request)
    wait_until(lambda: sum(quick.seen.values()) == 90)
    assert slow.busy == slow.most_busy == 10, "as many as it takes, and no more"
    slow.loop.call_soon_threadsafe(gate.set)
    assert len(drain(llm)) == 100
    even = [fakes(), fakes(), fakes()]
    for fake in even:
        fake.delay_s = 1.0
    connect(*even, max_connections=10).complete(ask(30))
    assert [fake.most_busy for fake in even] == [10, 10, 10]


def test_a_server_that_dies_leaves_its_requests_to_the_others(fakes, connect, caplog):
    dying, other = fakes(), fakes()
    other.delay_s = 0.05

    async def dies(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
        if sum(fake.seen.values()) == 6:
            fake.end()
        await asyncio.sleep(0.05)
        return said(f"re: {prompt}")

    dying.behave = dies
    llm = connect(dying, other, max_connections=8)
    assert texts(llm.complete(ask(200))) == [f"re: p{i}" for i in range(200)]
    assert sum(dying.seen.values()) < 30 and len(other.seen) > 150
    wait_until(lambda: "going on" in caplog.text)
    [line] = [r.getMessage() for r in caplog.records if r.name == http_servers.__name__]
    assert line.startswith("going on without a model server") and dying.url in line
    again = fakes(port=dying.port)
    wait_until(lambda: "answers again" in caplog.text)
    llm.complete(ask(40, "again"))
    assert sum(again.seen.values()) > 10


async def _stumbles(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    first = fake.seen.total() <= 3
    return response({}, 500) if first else await echo(fake, prompt, writer)


def test_each_server_has_an_account(fakes, connect):
    llm = connect(fakes(_stumbles), fakes(), max_connections=2)
    assert len(texts(llm.complete(ask(40)))) == 40
    one, other = llm.accounts()
    assert [one.name, other.name] == llm_urls(llm) and one.requests + other.requests == 40
    assert (one.failures, other.failures, one.retries + other.retries) == (3, 0, 3)
    for account in (one, other):
        assert (account.prompt_tokens, account.generated_tokens) == (20 * account.requests, 3 * account.requests)
        assert account.busy_s > 0 and account.queue_s > 0 and account.preemptions is None
    llm.close()
    assert [account.requests for account in llm.accounts()] == [one.requests, other.requests]


def test_only_when_all_are_gone_the_engine_is(fakes, connect):
    pair = [fakes(), fakes()]
    llm = connect(*pair, retries=1)
    assert texts(llm.complete(ask(3))) == ["re: p0", "re: p1", "re: p2"]
    for fake in pair:
        fake.die()
    with pytest.raises(ModelError, match="no model server answers") as caught:
        llm.complete(ask(20))
    assert all(fake.url in str(caught.value) for fake in pair)
    llm.submit(1, Request("", "a"))
    for _ in range(2):
        with pytest.raises(ModelError, match="no model server answers"):
            while True:
                llm.poll(WAIT_S)
    fakes(port=pair[1].port)
    assert texts(llm.complete(ask(3))) == ["re: p0", "re: p1", "re: p2"], "it is back"


def test_all_servers_must_list_one_model(fakes, connect):
    m, n, both = fakes(), fakes(models=["n"]), fakes(models=["m", "n"])
    with pytest.raises(ModelError) as caught:
        connect(m, n)
    assert f"given m at {n.url}; expected one of n" in str(caught.value)
    with pytest.raises(ModelError) as caught:
        connect(m, n, model="")
    assert f"{m.url}: m, {n.url}: n" in str(caught.value)
    llm = load_llm(f"{m.url}#m,{both.url}/#m", retries=0)
    single = load_llm(f"{both.url}#m", retries=0)
    assert isinstance(llm, HttpLLM) and llm.content_hash == single.content_hash
    assert (llm.name, llm.context_tokens) == (f"{m.url}#m", 2048 - 64)
    llm.close()
    single.close()
    assert addresses("http://a/v1#x,y, https://b/v1,http://c/v1#x,y") == (
        ["http://a/v1", "https://b/v1", "http://c/v1"],
        "x,y",
    )
    with pytest.raises(ModelError, match=r"http://a/v1: m, http://b/v1: n; expected one model id"):
        addresses("http://a/v1#m,http://b/v1#n")
    with pytest.raises(BadInput, match="each address once"):
        connect("http://a/v1", "http://a/v1/")


def test_a_server_that_is_not_there_at_the_start(fakes, connect, caplog):
    gone, here = fakes(), fakes()
    gone.die()
    llm = connect(gone, here, retries=1)
    assert texts(llm.complete(ask(5))) == [f"re: p{i}" for i in range(5)] and gone.url in caplog.text
    here.die()
    with pytest.raises(ModelError, match="no model server answers"):
        connect(gone, here, retries=0)


def test_a_server_that_refuses_in_the_middle_is_left_alone(fakes, connect):
    async def strict(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        return response({}, 401) if len(fake.seen) > 3 else said(f"re: {prompt}")

    refusing, other = fakes(strict), fakes()
    llm = connect(refusing, other, max_connections=2)
    assert texts(llm.complete(ask(60))) == [f"re: p{i}" for i in range(60)]
    assert 4 <= len(refusing.seen) <= 6


def test_a_key_goes_to_its_own_address_only(fakes, connect, monkeypatch, tmp_path):
    a, b, open_to_all = fakes(), fakes(), fakes()
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    llm = connect(a, b, open_to_all, api_key={a.url + "/": "key-a", b.url: "key-b"}, max_connections=3)
    llm.complete(ask(60))
    assert (a.keys, b.keys, open_to_all.keys) == ({"bearer key-a"}, {"bearer key-b"}, set())
    with pytest.raises(BadInput, match="API key") as caught:
        connect(a, api_key="two\nlines")
    assert "lines" not in str(caught.value)


def test_redirects_are_not_followed(fakes, connect):
    target = fakes()

    async def moved(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        return response({}, 307, f"location: {target.url}/chat/completions\r\n")

    llm = connect(fakes(moved), api_key="secret")
    with pytest.raises(ModelError, match=f"redirects.*{target.url}"):
        llm.complete(ask(1))
    assert not target.seen and not target.keys


async def _drip_body(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _drip_head(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _silent(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    await asyncio.sleep(WAIT_S)
    return None


@pytest.mark.parametrize("drip", [_drip_body, _drip_head, _silent])
def test_a_dripping_reply_ends_at_the_time_limit(fakes, connect, drip):
    async def behave(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
        return await (drip if prompt == "p0" else echo)(fake, prompt, writer)

    fake = fakes(behave)
    began = time.monotonic()
    bad, good = connect(fake, timeout_s=2.0).complete(ask(2))
    assert isinstance(bad, RequestFailed) and isinstance(good, Reply) and time.monotonic() - began < 30
    assert fake.seen["p0"] == 1


async def _endless(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        await writer.drain()


async def _announced(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    return response(b" " * (http_wire.MAX_REPLY_BYTES + 1))


async def _bomb(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    return response(BOMB, headers="content-encoding: gzip\r\n")


BOMB = gzip.compress(b" " * (64 * 2**20))


@pytest.mark.parametrize("flood", [_endless, _announced, _bomb])
def test_a_reply_that_is_too_large_is_refused(fakes, connect, flood):
    async def behave(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
        return await (flood if prompt == "p0" else echo)(fake, prompt, writer)

    fake = fakes(behave)
    bad, good = connect(fake).complete(ask(2))
    assert isinstance(bad, RequestFailed) and "too large" in str(bad) and isinstance(good, Reply)
    assert fake.seen["p0"] == 1 and len(BOMB) < 2**20


def test_a_compressed_reply_is_read_and_deep_nesting_says_nothing(fakes, connect):
    async def behave(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
        if prompt == "p0":
            return response(b"[" * 1_000_000)
        return response(gzip.compress(said("packed").partition(b"\r\n\r\n")[2]), headers="content-encoding: gzip\r\n")

    deep, packed = connect(fakes(behave)).complete(ask(2))
    assert isinstance(deep, RequestFailed) and packed.text == "packed"


def test_half_of_a_surrogate_pair_is_sent(fakes, connect):
    [reply] = connect(fakes()).complete([Request("", "a\ud83d b")])
    assert reply.text == "re: a\ud83d b"


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_takes_few_at_once_gets_few(fakes, connect, status):
    async def few(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        if fake.busy > 8:
            return response({"error": "busy"}, status)
        await asyncio.sleep(0.02)
        return said(f"re: {prompt}")

    fake = fakes(few)
    llm = connect(fake, max_connections=128, retries=5, backoff_s=0.02)
    assert texts(llm.complete(ask(500))) == [f"re: p{i}" for i in range(500)]
    assert sum(fake.seen.values()) < 1000, "not half of what was sent was refused"
    [server] = llm._thread.servers.servers
    assert 4 <= server.limit <= 24


def test_the_storm_check_catches_an_engine_that_does_not_learn(fakes, connect, monkeypatch):
    monkeypatch.setattr(Server, "overloaded", lambda self, sent_at, now: None)
    with pytest.raises(AssertionError):
        test_a_server_that_takes_few_at_once_gets_few(fakes, connect, 429)


def test_a_server_that_asks_for_a_pause_gets_it_and_others_go_on(fakes, connect):
    times: list[float] = []

    async def pause(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        times.append(time.monotonic())
        return response({}, 429, "retry-after: 1\r\n") if len(times) <= 4 else said(f"re: {prompt}")

    pausing, other = fakes(pause), fakes()
    llm = connect(pausing, other, max_connections=4)
    assert texts(llm.complete(ask(200))) == [f"re: p{i}" for i in range(200)]
    assert all(t - times[0] >= 0.95 for t in times[4:]) and other.seen


def test_a_server_that_refuses_looks_too_is_alive(fakes, connect):
    async def never(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        fake.models = response({}, 429)
        return response({"error": "slow down"}, 429) if prompt == "p1" else said(f"re: {prompt}")

    good, refused, last = connect(fakes(never)).complete(ask(3))
    assert (good.text, last.text) == ("re: p0", "re: p2")
    assert isinstance(refused, RequestFailed) and "HTTP 429" in str(refused) and "4 times" in str(refused)


def test_a_request_that_takes_servers_down_is_given_up(fakes, connect):
    async def poison(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
        if prompt == "p7":
            fake.end()
        return said(f"re: {prompt}")

    llm = connect(*(fakes(poison) for _ in range(5)), max_connections=1, backoff_s=0.05)
    replies = llm.complete(ask(30))
    assert [i for i, reply in enumerate(replies) if isinstance(reply, RequestFailed)] == [7]
    assert "4 times" in str(replies[7]) and sum(server.live for server in llm._thread.servers.servers) >= 1


def test_pauses_are_bounded_however_long_a_server_is_gone():
    patience = Patience(600.0, 10.0, 5, 0.5)
    assert [patience.pause_s(n) for n in (0, 1, 5, 9, 10_000)] == [0.5, 1.0, 16.0, 60.0, 60.0]


def test_resets_are_tried_again_and_one_that_always_breaks_fails_alone(fakes, connect):
    async def resets(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
        if prompt == "p13" or (hash(prompt) + fake.seen[prompt]) % 2:
            writer.transport.abort()
            return None
        return said(f"re: {prompt}")

    llm = connect(fakes(resets), max_connections=32)
    replies = llm.complete(ask(300))
    assert [i for i, reply in enumerate(replies) if isinstance(reply, RequestFailed)] == [13]
    assert "4 times" in str(replies[13])


async def _half_a_reply(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    if fake.seen[prompt] > 1:
        return said(f"re: {prompt}")
    writer.write(said("half")[:-20])
    writer.write_eof()  # this side is closed, the other one still open
    await asyncio.sleep(0.5)
    return None


async def _no_reply(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    if fake.seen[prompt] > 1:
        return said(f"re: {prompt}")
    writer.write_eof()
    await asyncio.sleep(0.5)
    return None


async def _closes_after_each(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    writer.write(said(f"re: {prompt}"))
    writer.close()
    return None


async def _says_that_it_closes(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    body = said(f"re: {prompt}").partition(b"\r\n\r\n")[2]
    writer.write(response(body, headers="connection: close\r\n"))
    writer.close()
    return None


@pytest.mark.parametrize("closes", [_half_a_reply, _no_reply, _closes_after_each, _says_that_it_closes])
def test_connections_that_close_on_either_side(fakes, connect, closes):
    llm = connect(fakes(closes), max_connections=8, retries=5)
    assert texts(llm.complete(ask(60))) == [f"re: p{i}" for i in range(60)]


async def _hangs(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
    fake.models = b"HTTP/1.1 200 OK\r\n"
    await asyncio.sleep(WAIT_S)
    return b""


def test_a_server_that_hangs_is_found_out_by_a_look(fakes, connect, monkeypatch):
    monkeypatch.setattr(http_servers, "LOOK_S", 0.5)
    with pytest.raises(ModelError, match=r"does not answer.*2 times"):
        connect(fakes(_hangs), timeout_s=1.0, retries=1).complete(ask(3))


def test_requests_of_a_server_that_hangs_go_to_another(fakes, connect, monkeypatch):
    monkeypatch.setattr(http_servers, "LOOK_S", 0.5)
    llm = connect(fakes(_hangs), fakes(), timeout_s=2.0, retries=1)
    assert texts(llm.complete(ask(6))) == [f"re: p{i}" for i in range(6)]


def test_a_server_that_breaks_is_not_the_next_choice(fakes, connect, monkeypatch):
    """Its look hangs, so that it does not count as down meanwhile. The first pause is its own, the next the job's."""
    pauses = iter([WAIT_S, 0.01])
    monkeypatch.setattr(http_servers, "LOAD_PAUSE_S", WAIT_S)
    monkeypatch.setattr(Patience, "pause_s", lambda *_: next(pauses, WAIT_S))

    async def breaks(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> None:
        fake.models = b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()

    broken = fakes(breaks)
    llm = connect(broken, fakes())
    for n in range(10):
        assert texts(llm.complete(ask(1))) == ["re: p0"] and broken.seen.total() == 1, n


def test_the_hanging_check_catches_an_engine_that_gives_up(fakes, connect, monkeypatch):
    monkeypatch.setattr(Servers, "_send_elsewhere", Servers._give_up)
    with pytest.raises(AssertionError):
        test_requests_of_a_server_that_hangs_go_to_another(fakes, connect, monkeypatch)


def test_abort_of_a_waiting_a_running_and_a_failing_request(fakes, connect):
    gate = asyncio.Event()

    async def stuck(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
        await gate.wait()
        return response({}, 500) if prompt == "p1" else said(f"re: {prompt}")

    fake = fakes(stuck)
    llm = connect(fake, max_connections=2)
    for key, request in enumerate(ask(3)):
        llm.submit(key, request)
    wait_until(lambda: fake.busy == 2)
    for key in (0, 1, 2, 77):
        llm.abort(key)
    [(key, failed)] = llm.poll(WAIT_S)
    assert key == 2 and isinstance(failed, RequestFailed) and "aborted" in str(failed)
    fake.loop.call_soon_threadsafe(gate.set)
    found = drain(llm)
    assert found[0].text == "re: p0" and "aborted" in str(found[1]) and fake.seen == {"p0": 1, "p1": 1}


def test_closing_ends_open_requests_in_both_faces(fakes, connect):
    fake = fakes()
    fake.delay_s = WAIT_S
    llm, ended = connect(fake, max_connections=20), []

    def complete() -> None:
        with pytest.raises(ModelError, match="closed"):
            llm.complete(ask(50))
        ended.append(True)

    caller = threading.Thread(target=complete)
    caller.start()
    llm.submit(1, Request("", "streamed"))
    wait_until(lambda: fake.busy == 20)
    began = time.monotonic()
    llm.close()
    llm.close()
    caller.join(WAIT_S)
    assert ended and time.monotonic() - began < 10 and llm.poll(1.0) == [] and not llm.n_open
    wait_until(lambda: all(reader.at_eof() for reader in fake.readers))
    for call in (lambda: llm.submit(2, Request("", "a")), lambda: llm.complete(ask(1))):
        with pytest.raises(UsageError, match="closed engine"):
            call()


def test_a_bug_in_the_thread_leaves_nobody_waiting(fakes, connect, monkeypatch):
    llm = connect(fakes())
    monkeypatch.setattr(llm, "_body", lambda *_, **__: 1 / 0)
    with pytest.raises(ModelError, match="ZeroDivisionError"):
        llm.complete(ask(3))


SCRIPT = """
import logging, os, sys, threading, time
logging.getLogger("asyncio").setLevel(logging.ERROR)  # that a busy machine is slow is no error
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.types import Request
llm = HttpLLM(sys.argv[1], "m", max_connections=16)
requests = [Request("", f"p{i}") for i in range(40)]
"""


def run_script(fake: Fake, work: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT + textwrap.dedent(work), fake.url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("work", ["for i, r in enumerate(requests): llm.submit(i, r)\ntime.sleep(0.5)", "llm = None"])
def test_a_process_that_ends_without_close_ends_at_once_and_quietly(fakes, work):
    fake = fakes()
    fake.delay_s = WAIT_S
    with run_script(fake, work) as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (0, "", "")


def test_ctrl_c_ends_a_batch_at_once(fakes):
    fake = fakes()
    fake.delay_s = WAIT_S
    work = """
        try:
            llm.complete(requests)
        except KeyboardInterrupt:
            print("interrupted", threading.active_count())
    """
    with run_script(fake, work) as process:
        wait_until(lambda: fake.busy == 16)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "interrupted 2\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_connections_of_its_own(fakes):
    work = """
        import gc, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        llm.complete(requests)
        if sys.argv[1:] and not os.fork():
            used = [r.text for r in llm.complete(requests)] == [f"re: p{i}" for i in range(40)]
            llm.close()
            del llm
            gc.collect()
            sys.exit(3 if used else 4)
        print(os.waitstatus_to_exitcode(os.wait()[1]), [r.text for r in llm.complete(requests)][-1])
        llm.close()
    """
    with run_script(fakes(), work) as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (0, "3 re: p39\n", "")


def test_a_port_that_accepts_and_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(http_servers, "LOOK_S", 0.2)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with pytest.raises(ModelError, match="no answer in time"):
            HttpLLM(url, "m", retries=1, backoff_s=0.01)
