"""The embedder of a server, against one on 127.0.0.1 that behaves well or badly."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from http_stub import JsonHandler, Stub
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from gpu_rag.errors import ModelError
from gpu_rag.models.embed import load_embedder
from gpu_rag.models.embed.cache import CachedEmbedder
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.embed.server import TEXTS, ServerEmbedder, read_vectors
from gpu_rag.models.llm import http_servers
from gpu_rag.models.llm.http_servers import Patience
from gpu_rag.models.llm.http_wire import Failure
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import ModelSettings

QUICK = Patience(timeout_s=5.0, connect_timeout_s=1.0, retries=2, backoff_s=0.01)
MANY = [f"text {i} " + "word " * (i % 7) for i in range(5 * TEXTS + 3)]


def vector(text: str) -> list[float]:
    """Three times that of the hashing embedder: scaling is the client's."""
    return [3.0 * float(x) for x in HashEmbedder().embed([text])[0]]


def answer(texts: list[str]) -> dict[str, Any]:
    rows = [{"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(texts)]
    return {"object": "list", "model": "tiny", "data": rows, "usage": {"prompt_tokens": 1}}


class Server(Stub):
    """`behave(texts, n_before)` gives (status, JSON or bytes) for a request that n_before others went before."""

    def __init__(self) -> None:
        self.behave: Callable[[list[str], int], tuple[int, Any]] = lambda texts, _: (200, answer(texts))
        self.card: dict[str, Any] = {}
        self.requests: list[list[str]] = []
        self.keys: set[str | None] = set()
        self.dead = False  # it accepts connections and closes them
        self.lock, self.busy, self.most_busy = threading.Lock(), 0, 0
        server = self

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                if server.dead:
                    self.close_connection = True
                    return
                self.send(200, {"data": [{"id": "tiny"} | server.card, {"id": "other"}]})

            def do_POST(self) -> None:
                body = self.body()
                assert self.path == "/v1/embeddings" and body["model"] == "tiny"
                with server.lock:
                    n_before = len(server.requests)
                    server.requests.append(body["input"])
                    server.keys.add(self.headers["authorization"])
                    server.busy += 1
                    server.most_busy = max(server.most_busy, server.busy)
                if server.dead:
                    self.close_connection = True
                    return
                status, content = server.behave(body["input"], n_before)
                with server.lock:
                    server.busy -= 1
                self.send(status, content)

        super().__init__(Handler)
        self.url += "/v1"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def opened(server: Server, **options: Any) -> ServerEmbedder:
    made = ServerEmbedder(f"{server.url}#tiny", patience=QUICK, **options)
    server.requests.clear()
    return made


def same(vectors: np.ndarray, texts: list[str]) -> bool:
    return np.allclose(vectors, HashEmbedder().embed(texts), atol=1e-6) and vectors.dtype == np.float32


def test_vectors_are_those_of_the_server_in_few_requests(server: Server) -> None:
    embedder = opened(server, api_key={server.url: "k", "http://elsewhere/v1": "other"})
    seen: list[int] = []
    assert same(embedder.embed([*MANY, MANY[3]], seen.append), [*MANY, MANY[3]])
    assert len(server.requests) == 6 and server.keys == {"Bearer k"} and seen[-1] == len(MANY)
    assert sorted(text for texts in server.requests for text in texts) == sorted(MANY)
    assert embedder.embed([]).shape == (0, 256)


def test_several_requests_are_in_flight_and_no_more_than_allowed(server: Server) -> None:
    embedder = opened(server, connections=3)
    meeting = threading.Barrier(3)

    def together(texts: list[str], n_before: int) -> tuple[int, Any]:
        meeting.wait(5)  # six requests, three by three
        return 200, answer(texts)

    server.behave = together
    assert same(embedder.embed(MANY), MANY) and server.most_busy == 3


def test_servers_take_turns_and_one_that_fails_is_made_up_for(server: Server) -> None:
    other = Server()
    spec = f"{server.url}#tiny,{other.url}"
    try:
        embedder = ServerEmbedder(spec, api_key={server.url: "k", other.url: "l"}, connections=3, patience=QUICK)
        alone = opened(server)
        assert embedder.content_hash == alone.content_hash and same(embedder.embed(MANY), MANY)
        assert len(server.requests) == len(other.requests) == 3
        assert server.keys == {"Bearer k", None} and other.keys == {"Bearer l"}
        other.behave = lambda texts, _: (500, {"error": "broken"})
        assert same(embedder.embed(MANY), MANY) and len(server.requests) == 3 + 6
    finally:
        other.close()
    assert same(embedder.embed(MANY[:40]), MANY[:40])
    with pytest.raises(ModelError):
        ServerEmbedder(f"{server.url}#tiny,{other.url}#large", patience=QUICK)


def test_a_dead_server_is_asked_once_and_used_again_when_it_is_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call embeds one question. None but the first pays for a failed request."""
    monkeypatch.setattr(http_servers, "MAX_WAIT_S", 0.5)  # the pause after which a dead server is looked at again
    other = Server()
    try:
        embedder = ServerEmbedder(f"{other.url}#tiny,{server.url}", patience=replace(QUICK, backoff_s=0.2))
        other.requests.clear()
        other.dead = True
        for i in range(20):
            assert same(embedder.embed([f"question {i}"]), [f"question {i}"])
        assert len(other.requests) == 1
        other.dead = False
        wait_until(lambda: same(embedder.embed(["again"]), ["again"]) and len(other.requests) > 1)
    finally:
        other.close()


def test_identity_is_the_model_its_revision_and_its_dimension(server: Server) -> None:
    first = opened(server)
    assert first.dim == 256 and first.name == f"{server.url}#tiny"
    assert opened(server).content_hash == first.content_hash
    server.card = {"revision": "2"}
    assert opened(server).content_hash != first.content_hash
    server.card = {}
    server.behave = lambda texts, _: (200, shortened(answer(texts), 100))
    assert opened(server).content_hash != first.content_hash
    with pytest.raises(ModelError, match="absent"):
        ServerEmbedder(f"{server.url}#absent", patience=QUICK)


def shortened(content: dict[str, Any], n: int) -> dict[str, Any]:
    rows = [row | {"embedding": [1.0, *row["embedding"]][:n]} for row in content["data"]]
    return content | {"data": rows}


def test_order_is_that_of_the_index_and_base64_is_read(server: Server) -> None:
    def backwards(texts: list[str], _: int) -> tuple[int, Any]:
        content = answer(texts)
        rows = [
            row | {"embedding": base64.b64encode(np.array(row["embedding"], "<f4").tobytes()).decode()}
            for row in content["data"][::-1]
        ]
        return 200, content | {"data": rows}

    server.behave = backwards
    assert same(opened(server).embed(MANY), MANY)


def spoilt(**changes: Any) -> Callable[[list[str]], Any]:
    return lambda texts: (content := answer(texts)) | {"data": [content["data"][0] | changes, *content["data"][1:]]}


BAD: dict[str, Callable[[list[str]], Any]] = {
    "one vector too few": lambda texts: (content := answer(texts)) | {"data": content["data"][1:]},
    "an index twice": lambda texts: (content := answer(texts)) | {"data": [content["data"][0] | {"index": 1}] * 2},
    "NaN": spoilt(embedding=[float("nan")] * 256),
    "infinite": spoilt(embedding=[1e308] * 256),
    "null": spoilt(embedding=[None] * 256),
    "zeros": spoilt(embedding=[0.0] * 256),
    "another dimension": spoilt(embedding=[1.0] * 255),
    "half of a number": spoilt(embedding=base64.b64encode(b"abcde").decode()),
    "no base64": spoilt(embedding="?" * 1024),
    "an error with 200": lambda texts: {"error": {"message": "busy"}},
    "a page": lambda texts: b"<html>maintenance</html>",
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_answer_is_asked_again_and_then_an_error(server: Server, kind: str) -> None:
    embedder = opened(server)
    server.behave = lambda texts, n_before: (200, BAD[kind](texts) if n_before < 2 else answer(texts))
    assert same(embedder.embed(MANY[:2]), MANY[:2]) and len(server.requests) == 3
    server.behave = lambda texts, _: (200, BAD[kind](texts))
    with pytest.raises(ModelError) as error:
        embedder.embed(MANY[:2])
    assert server.url in str(error.value)


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_server_that_stumbles_is_asked_again(server: Server, status: int) -> None:
    embedder = opened(server)
    server.behave = lambda texts, n_before: (status, b"") if n_before % 3 else (200, answer(texts))
    server.requests.append([])
    assert same(embedder.embed(MANY[:2]), MANY[:2])


def test_a_request_that_is_refused_goes_in_halves_and_a_long_text_is_cut(server: Server) -> None:
    def small(texts: list[str], _: int) -> tuple[int, Any]:
        if len(texts) > 8:
            return 413, {"error": {"message": "batch size 32 > maximum allowed batch size 8"}}
        if max(map(len, texts)) > 400:
            return 400, {"error": {"message": "This model's maximum context length is 100 tokens, you requested 300"}}
        return 200, answer(texts)

    server.behave = small
    embedder = opened(server)
    texts = [*MANY[:TEXTS], "long " * 300]
    vectors = embedder.embed(texts)
    assert same(vectors[:-1], texts[:-1]) and same(vectors[-1:], [texts[-1][: 1500 // 4]])
    assert embedder.n_truncated == 1
    server.behave = lambda texts, _: (400, {"error": {"message": "input must not mention rivers"}})
    with pytest.raises(ModelError, match="rivers"):
        embedder.embed(["the river"])


def test_answers_are_kept_before_the_server_fails(server: Server, tmp_path) -> None:
    """Vectors that were paid for are in the vector cache, and are not asked again."""
    cached = CachedEmbedder(opened(server, connections=1), tmp_path / "v.vectors", 10**9)
    server.behave = lambda texts, n_before: (200, answer(texts)) if n_before < 2 else (401, b"")
    with pytest.raises(ModelError):
        cached.embed(MANY)
    kept = {text for texts in server.requests[:2] for text in texts}
    server.requests.clear()
    server.behave = lambda texts, _: (200, answer(texts))
    assert same(cached.embed(MANY), MANY)
    assert not kept & {text for texts in server.requests for text in texts} and len(kept) == 2 * TEXTS


def test_what_is_on_its_way_when_a_request_fails_is_kept_too(server: Server) -> None:
    embedder, meeting = opened(server, connections=3), threading.Barrier(3)

    def one_fails(texts: list[str], n_before: int) -> tuple[int, Any]:
        meeting.wait(60)
        if n_before == 1:
            return 401, b""
        time.sleep(1.0)  # the failure is read first, so that no fourth request leaves
        return 200, answer(texts)

    server.behave = one_fails
    kept: list[int] = []
    with pytest.raises(ModelError):
        for rows, vectors in embedder.parts(MANY):
            assert same(vectors, [MANY[row] for row in rows])
            kept += rows
    assert len(kept) == 2 * TEXTS and len(server.requests) == 3


def test_settings_name_a_server_and_give_it_its_key(server: Server) -> None:
    models = ModelSet(ModelSettings(embedder=f"{server.url}#tiny", vector_cache_gib=0), api_key={server.url: "k"})
    assert models.describe("embedder")["dim"] == 256 and server.keys == {"Bearer k"}
    assert same(models.embedder().embed(["a"]), ["a"])
    with pytest.raises(ModelError):
        load_embedder("http://127.0.0.1:9/v1#tiny")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=60) | st.recursive(st.none() | st.floats() | st.text(max_size=3), st.lists).map(json.dumps))
def test_no_content_breaks_the_reader(content: bytes | str) -> None:
    assert isinstance(read_vectors(content if isinstance(content, bytes) else content.encode(), 1, 3), Failure)
