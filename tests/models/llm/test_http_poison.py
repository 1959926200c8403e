"""One request whose reply is wrong in every way that bytes can be: it fails alone, or says nothing."""

import asyncio
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_rag.errors import ModelError, RequestFailed
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.models.llm.http_servers import revision_of
from gpu_rag.types import Rank, Reply, Request

_SPEC = importlib.util.spec_from_file_location("http_fakes", Path(__file__).parent / "test_http_servers.py")
assert _SPEC is not None and _SPEC.loader is not None
shared = importlib.util.module_from_spec(_SPEC)
sys.modules["http_fakes"] = shared
_SPEC.loader.exec_module(shared)
Fake, response, said, fakes, connect = shared.Fake, shared.response, shared.said, shared.fakes, shared.connect
pytestmark = shared.SILENT

DEEP = b"[" * 60_000


def answer(usage: str, content: str = '"x"') -> bytes:
    return response(f'{{"choices": [{{"message": {{"content": {content}}}}}], "usage": {usage}}}'.encode())


def raw(bytes_: bytes) -> tuple[bytes]:
    """Sent as it is, and the connection closed."""
    return (bytes_,)


POISON: dict[str, bytes | tuple[bytes]] = {
    "nested": response(DEEP),
    "nested refusal": response(DEEP, 400),
    "nested failure": response(DEEP, 500),
    "infinite": answer('{"prompt_tokens": 1e999, "completion_tokens": NaN, "prompt_tokens_details": [1]}'),
    "negative": answer('{"prompt_tokens": -1, "completion_tokens": true}'),
    "huge": answer(f'{{"prompt_tokens": 1{"0" * 400}}}'),
    "huger": answer(f'{{"prompt_tokens": 1{"0" * 5000}}}'),
    "half a pair": answer("{}", '"a\\ud800b"'),
    "latin-1": response('{"choices": [{"message": {"content": "é"}}]}'.encode("latin-1")),
    "utf-16": response('{"choices": [{"message": {"content": "é"}}]}'.encode("utf-16")),
    "no gzip": response(b"abc", headers="content-encoding: gzip\r\n"),
    "unknown encoding": response(b"abc", headers="content-encoding: br\r\n"),
    "unauthorized": response({}, 401),
    "forbidden": response({"error": "SQL injection detected"}, 403),
    "not found": response({}, 404),
    "not allowed": response({}, 405),
    "moved": response({}, 302, "location: http://127.0.0.1:1/\r\n"),
    "no content": b"HTTP/1.1 204 X\r\n\r\n",
    "upgraded": raw(b"HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"),
    "no http": raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "no status": raw(b"HTTP/1.1 99999 X\r\n\r\n"),
    "negative length": raw(b"HTTP/1.1 200 X\r\ncontent-length: -5\r\n\r\n"),
    "two lengths": raw(b"HTTP/1.1 200 X\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello"),
    "no chunk": raw(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n"),
    "cut": raw(b"HTTP/1.1 200 X\r\ncontent-length: 500\r\n\r\n{"),
    "reset": raw(b""),
    "many headers": raw(b"HTTP/1.1 200 X\r\n" + b"".join(b"x-%d: %d\r\n" % (i, i) for i in range(100_000)) + b"\r\n"),
    "long header": raw(b"HTTP/1.1 200 X\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n"),
}


async def poisoned(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
    found = POISON.get(prompt)
    if not isinstance(found, tuple):
        return found or said(f"re: {prompt}")
    writer.write(found[0])
    writer.close()
    return None


@pytest.mark.parametrize("poison", POISON)
def test_a_poison_fails_alone_in_both_faces(fakes, connect, poison: str) -> None:
    llm = connect(fakes(poisoned), retries=1, backoff_s=0.001)
    before, bad, after = llm.complete([Request("", "before"), Request("", poison), Request("", "after")])
    assert (before.text, after.text) == ("re: before", "re: after")
    assert isinstance(bad, RequestFailed) or bad.estimated
    for key, prompt in enumerate(("before", poison, "after")):
        llm.submit(key, Request("", prompt))
    streamed = shared.drain(llm)
    assert [streamed[0], streamed[2]] == [before, after] and type(streamed[1]) is type(bad)


def test_bytes_at_random_end_no_thread(fakes, connect) -> None:
    draw = random.Random(4)
    sound = said("fine")

    async def broken(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes | None:
        if prompt.startswith("good"):
            return sound
        damaged = bytearray(sound)
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(damaged))
            damaged[place : place + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
        writer.write(bytes(damaged))
        writer.close()
        return None

    llm = connect(fakes(broken), retries=1, backoff_s=0.001, timeout_s=5.0)
    for start in range(0, 300, 50):
        requests = [Request("", f"bad{i}") for i in range(start, start + 50)] + [Request("", f"good{start}")]
        replies = llm.complete(requests)
        assert replies[-1].text == "fine" and all(isinstance(r, (Reply, RequestFailed)) for r in replies)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "NaN", "1e999", "-1e999"])
def test_odd_log_probabilities_are_none(fakes, connect, number: str) -> None:
    async def ranks(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        tops = f'[{{"token": "A", "logprob": {number}}}, {{"token": "B", "logprob": -1}}]'
        choice = f'{{"message": {{"content": "A"}}, "logprobs": {{"content": [{{"top_logprobs": {tops}}}]}}}}'
        return response(f'{{"choices": [{choice}]}}'.encode())

    [reply] = connect(fakes(ranks)).complete([Request("", "p", Rank(("yes", "no")))])
    assert reply.scores in ((), (-2.0, -1.0)), "no number, or that of a letter which was not considered"


def test_a_key_that_lists_models_but_may_not_ask_ends_the_run(fakes, connect) -> None:
    async def strict(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> bytes:
        return response({}, 401)

    fake = fakes(strict)
    with pytest.raises(ModelError, match="API key"):
        connect(fake, max_connections=4).complete([Request("", f"p{i}") for i in range(50)])
    assert sum(fake.seen.values()) <= 6, "the first, and one trial"


@pytest.mark.parametrize(
    ("models", "tokens"),
    [
        (b'{"data": [{"id": "m", "max_model_len": 1e999}]}', 4096),
        (b'{"data": [{"id": "m", "max_model_len": "8192"}]}', 4096),
        (b'{"data": [{"id": "m", "max_model_len": [8192]}]}', 4096),
        (b'{"data": [{"id": "m", "max_model_len": -5}]}', 4096),
        (b'{"data": [{"id": "m", "max_model_len": true}]}', 4096),
        (b'{"data": [{"id": "m", "max_model_len": 1%s}]}' % (b"0" * 400), 4096),
        (b'{"data": [{"id": "m", "root": {"a": 1}, "max_model_len": 8192}]}', 8192),
        (DEEP, None),
        (b'{"data": [{"id": "m\\ud800"}]}', None),
        (b'{"data": 1e999}', None),
    ],
)
def test_odd_lists_of_models(fakes, connect, models: bytes, tokens: int | None) -> None:
    fake = fakes()
    fake.models = response(models)
    if tokens is None:
        with pytest.raises(ModelError, match="does not list its models"):
            connect(fake, model="")
    else:
        assert connect(fake, model="").context_tokens == tokens - 64


SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def serving(fakes) -> Iterator[Callable[..., Fake]]:
    def made(**card: object) -> Fake:
        fake = fakes()
        fake.models = {"data": [{"id": "m", **card}]}
        return fake

    yield made


def test_the_revision_is_the_servers_word_else_the_users(serving, connect) -> None:
    def identity(card: dict[str, object], **options: str) -> str:
        llm: HttpLLM = connect(serving(**card), **options)
        return llm.content_hash

    plain, named = identity({}), identity({}, revision="r1")
    assert plain == identity({}) and plain != named, "no address is part of it"
    for card in ({"revision": "r1"}, {"sha": "r1"}, {"digest": " r1 "}, {"model_sha": "r1"}):
        assert identity(card) == named == identity(card, revision="r1")
        with pytest.raises(ModelError, match="another revision.*r1.*expected r2"):
            connect(serving(**card), revision="r2")
    assert revision_of({"root": f"/hub/models--a--b/snapshots/{SHA}"}) == SHA
    assert revision_of({"root": "/models/a"}) == revision_of({"revision": 7}) == revision_of({"sha": " "}) == ""


def test_servers_of_two_revisions_are_no_one_engine(serving, connect) -> None:
    with pytest.raises(ModelError, match="different revisions; given r1, r2"):
        connect(serving(revision="r1"), serving(revision="r2"))
    assert connect(serving(revision="r1"), serving()).content_hash == connect(serving(revision="r1")).content_hash


def test_a_server_that_comes_back_with_other_weights_is_refused(serving, connect) -> None:
    fake = serving(revision="r1")
    llm = connect(fake, retries=0, backoff_s=0.001)
    assert llm.complete([Request("", "p")])[0].text == "re: p"

    async def cut(fake: Fake, prompt: str, writer: asyncio.StreamWriter) -> None:
        fake.models = {"data": [{"id": "m", "revision": "r2"}]}
        writer.close()

    fake.behave = cut
    with pytest.raises(ModelError, match="another revision"):
        llm.complete([Request("", "q")])
