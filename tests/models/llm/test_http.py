"""The HTTP engine against a real server on 127.0.0.1 that behaves well, badly, slowly, or not at all."""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from http_stub import JsonHandler, Stub
from waiting import wait_until

from gpu_rag.errors import BadInput, ContextOverflow, ModelError, RequestFailed
from gpu_rag.models.llm import http_wire, load_llm
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.http import MAX_STARVED, HttpLLM
from gpu_rag.models.llm.http_wire import MAX_WAIT_S, Exchanger, Style, retry_after_s
from gpu_rag.models.llm.interface import estimate_tokens
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

MODELS = {"data": [{"id": "tiny-7B", "max_model_len": 2048, "root": "/models/Tiny-7B"}, {"id": "alias"}]}
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'


def completion(text: str, finish: str = "stop", **choice: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
    return {"choices": [{"message": {"content": text}, "finish_reason": finish, **choice}], "usage": usage}


def echo(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, completion("re: " + body["messages"][-1]["content"])


class FakeServer(Stub):
    """`behave(body)` gives (status, JSON or bytes[, headers]) for a chat completion; it may sleep or raise OSError."""

    def __init__(self) -> None:
        self.behave: Callable[[dict[str, Any]], tuple] = echo
        self.models: tuple[int, Any] = (200, MODELS)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.seen: Counter[str] = Counter()
        self.times: list[float] = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()
        super().__init__(self._handler())
        self.url += "/v1"

    def _handler(self):
        server = self

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                self.send(*(server.models if self.path == "/v1/models" else (404, {})))

            def do_POST(self) -> None:
                body = self.body()
                if self.path != "/v1/chat/completions":
                    return self.send(404, {"detail": "Not Found"})
                with server.lock:
                    server.bodies.append(body)
                    server.times.append(time.monotonic())
                    server.keys.append(self.headers.get("authorization"))
                    server.seen[body["messages"][-1]["content"]] += 1
                    server.busy += 1
                    server.most_busy = max(server.most_busy, server.busy)
                try:
                    answer = server.behave(body)
                finally:
                    with server.lock:
                        server.busy -= 1
                if answer[0] == 0:  # break the connection
                    self.close_connection = True
                    return self.wfile.close()
                return self.send(*answer)

        return Handler


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


def connect(server: FakeServer, model: str = "tiny-7B", **options: Any) -> HttpLLM:
    return HttpLLM(server.url, model, **{"backoff_s": 0.01, "retries": 3, **options})


def failing_first(n: int, status: int, headers: dict[str, str] | None = None) -> Callable[[dict[str, Any]], tuple]:
    """Each prompt fails n times, then is echoed."""
    counts: Counter[str] = Counter()

    def behave(body: dict[str, Any]) -> tuple:
        prompt = body["messages"][-1]["content"]
        counts[prompt] += 1
        return (status, {"error": "busy"}, headers) if counts[prompt] <= n else echo(body)

    return behave


def test_replies_in_order_with_the_servers_counts(server):
    llm = connect(server, api_key="secret")
    requests = [Request("sys", f"p{i}", max_tokens=9, temperature=0.5, seed=2**63 + i) for i in range(50)]
    seen: dict[int, Reply] = {}
    replies = llm.complete(requests, lambda i, r: seen.update({i: r}))
    assert replies == [Reply(f"re: p{i}", "stop", 20, 16, 3) for i in range(50)]
    assert seen == dict(enumerate(replies))
    body = next(b for b in server.bodies if b["messages"][-1]["content"] == "p7")
    assert body == {
        "model": "tiny-7B",
        "messages": [{"role": "system", "content": "sys"}, {"role": "user", "content": "p7"}],
        "temperature": 0.5,
        "seed": 7,
        "max_tokens": 9,
    }
    assert set(server.keys) == {"Bearer secret"}
    assert llm.complete([]) == []


def test_without_system_text_or_key_none_is_sent(server):
    connect(server).complete([Request("", "p")])
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "p"}] and server.keys == [None]


def test_constraints_travel_as_vllm_reads_them(server):
    def obey(body):
        return 200, completion('{"n": 1}' if "response_format" in body else "yes")

    server.behave = obey
    llm, asked = connect(server, max_connections=1), Request("", "b", Choice(("yes", "no")))
    json_reply, choice = llm.complete([Request("", "a", JsonSchema(SCHEMA)), asked])
    assert (json_reply.text, choice.text) == ('{"n": 1}', "yes")
    sent = {"name": "reply", "schema": json.loads(SCHEMA), "strict": True}
    assert server.bodies[0]["response_format"] == {"type": "json_schema", "json_schema": sent}
    assert server.bodies[1]["structured_outputs"] == {"choice": ["yes", "no"]}
    server.behave = lambda body: (200, completion('"no"'))  # a server without structured outputs
    [choice] = connect(server, style=Style(choices="json_schema")).complete([asked])
    schema = {"type": "string", "enum": ["yes", "no"]}
    assert choice.text == "no" and server.bodies[2]["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize("text", ["Sure! Here is your JSON", '{"n": "one"}', "yes, I think", ""])
@pytest.mark.parametrize("constraint", [JsonSchema(SCHEMA), Choice(("yes", "no"))])
def test_a_reply_comes_as_it_was_said(server, constraint, text):
    """Whether it keeps to its constraint is for the reader to see."""
    server.behave = lambda body: (200, completion(text))
    [reply] = connect(server).complete([Request("", "a", constraint)])
    assert (reply.text, reply.finish_reason, reply.n_prompt) == (text, "stop", 20)


@pytest.mark.parametrize(
    ("style", "system", "form"),
    [
        (Style(objects="structured_outputs"), "S", {"structured_outputs": {"json": json.loads(SCHEMA)}}),
        (Style(objects="json_object"), f"S{http_wire._IN_WORDS}{SCHEMA}", {"response_format": {"type": "json_object"}}),
        (Style(objects="prompt"), f"S{http_wire._IN_WORDS}{SCHEMA}", {}),
    ],
)
def test_a_schema_travels_as_the_server_understands_it(server, style, system, form):
    connect(server, style=style, extra_body={"top_k": 1}).complete([Request("S", "a", JsonSchema(SCHEMA))])
    [body] = server.bodies
    assert body["messages"][0]["content"] == system and body["top_k"] == 1
    assert {key: body[key] for key in ("structured_outputs", "response_format") if key in body} == form


def test_a_thought_without_an_answer_is_sent_again_with_room(server):
    def thinks(body):
        if body["max_tokens"] < 100:
            message = {"content": None, "reasoning_content": "hm"}
            return 200, {"choices": [{"message": message, "finish_reason": "length"}]}
        return 200, completion("42")

    server.behave = thinks
    llm = connect(server, think_tokens=200, max_connections=1)
    replies = llm.complete([Request("", str(i), max_tokens=8) for i in range(12)])
    assert {reply.text for reply in replies} == {"42"}
    assert [body["max_tokens"] for body in server.bodies].count(208) == 12
    assert llm.style.thinks  # after some in a row each request has room at once
    llm.submit(1, Request("", "x", max_tokens=8))
    assert [reply.text for _, reply in llm.poll(20.0)] == ["42"] and server.bodies[-1]["max_tokens"] == 208
    alone = connect(server, think_tokens=200)
    for n in range(10):  # one after the other, as with one question open at a time
        assert alone.complete([Request("", str(n), max_tokens=8)])[0].text == "42"
        assert alone.style.thinks == (n >= MAX_STARVED - 1)


def test_rank_scores_letters(server):
    def letters(body):
        top = [("B", -0.5), (" B", -1.5), ("A", -2.0), ("The", -3.0)]
        shown = [{"token": token, "logprob": logprob} for token, logprob in top]
        return 200, completion("B", "length", logprobs={"content": [{"top_logprobs": shown}]})

    server.behave = letters
    [reply] = connect(server).complete([Request("", "which?", Rank(("red", "blue", "green")))])
    assert (reply.text, reply.finish_reason, reply.n_prompt) == ("blue", "rank", 20)
    assert reply.scores == pytest.approx((-2.0, math.log(math.exp(-0.5) + math.exp(-1.5)), -4.0))
    body = server.bodies[0]
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (1, True, 20)
    assert "A. red\nB. blue\nC. green" in body["messages"][-1]["content"]


def test_what_cannot_be_ranked_is_unscored(server):
    shown = [{"token": "The", "logprob": -0.1}]
    server.behave = lambda body: (200, completion("The", logprobs={"content": [{"top_logprobs": shown}]}))
    many, two = Rank(tuple(str(i) for i in range(21))), Rank(("x", "y"))
    replies = connect(server).complete([Request("", "a", two), Request("", "b", many)])
    assert [(reply.scores, reply.finish_reason) for reply in replies] == [((), "stop"), ((), "unscored")]
    [reply] = connect(server, style=Style(ranks=False)).complete([Request("", "a", two)])
    assert reply.finish_reason == "unscored" and len(server.bodies) == 1


def test_waits_grow_and_retry_after_is_obeyed(server):
    server.behave = failing_first(3, 500)
    connect(server, backoff_s=0.05).complete([Request("", "a")])
    waits = [b - a for a, b in zip(server.times, server.times[1:])]
    assert waits[0] >= 0.05 and waits[1] >= 0.1 and waits[2] >= 0.2
    server.times.clear()
    server.behave = failing_first(1, 429, {"Retry-After": "0.3"})
    connect(server).complete([Request("", "b")])
    assert server.times[1] - server.times[0] >= 0.3


def test_retry_after_may_be_a_date_and_is_bounded():
    ahead = datetime.now(UTC) + timedelta(seconds=MAX_WAIT_S - 1)
    assert 0 < retry_after_s(format_datetime(ahead, usegmt=True)) < MAX_WAIT_S
    assert retry_after_s(format_datetime(datetime.now(UTC) - timedelta(seconds=30), usegmt=True)) == 0
    assert [retry_after_s(text) for text in ("7", "86400", "soon", "", "nan")] == [7.0, MAX_WAIT_S, None, None, None]


ODD_COUNTS = {"prompt_tokens": 1e999, "completion_tokens": "9"}


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": [{"message": {"content": "x"}}], "usage": ODD_COUNTS},
        completion("x", "content_filter"),
        completion([{"type": "text", "text": "x"}]),  # type: ignore[arg-type]
    ],
)
def test_an_odd_completion_is_a_reply(server, odd):
    server.behave = lambda body: (200, odd)
    [reply] = connect(server).complete([Request("", "a")])
    assert (reply.text, reply.finish_reason, server.seen["a"]) == ("x", "stop", 1)


def test_a_server_that_dies_ends_the_run_and_keeps_what_arrived(server, tmp_path, monkeypatch):
    llm = connect(server, max_connections=1, retries=1)

    def last_words(body):
        if body["messages"][-1]["content"] == "3":
            server.models = (0, b"")
            server.httpd.socket.close()
            return 0, b""
        return echo(body)

    server.behave = last_words
    cached, tried, post = CachedLLM(llm, tmp_path / "r.sqlite"), [], Exchanger.post

    async def note(self, path, body, *options):
        tried.append(json.loads(body)["messages"][-1]["content"])
        return await post(self, path, body, *options)

    monkeypatch.setattr(Exchanger, "post", note)
    with pytest.raises(ModelError, match="does not answer.*2 times"):
        cached.complete([Request("", str(i)) for i in range(200)])
    assert len(cached) == 3 and tried[:4] == list("0123") and len(tried) <= 6, "and hardly anything after it"


def test_an_engine_that_was_interrupted_can_be_used_again(server):
    llm, stopped = connect(server, max_connections=2), threading.Event()

    def behave(body):
        if body["messages"][-1]["content"] not in ("0", "again"):
            stopped.wait(60)
        return echo(body)

    def interrupt(i, reply):
        raise KeyboardInterrupt

    server.behave = behave
    with pytest.raises(KeyboardInterrupt):
        llm.complete([Request("", str(i)) for i in range(40)], interrupt)
    servers = llm._thread.servers
    wait_until(lambda: not servers._open and not any(s.running for s in servers.servers))
    stopped.set()
    assert sum(server.seen.values()) <= 3  # nothing more was sent
    assert llm.complete([Request("", "again")])[0].text == "re: again"


def test_the_model_is_looked_up(server):
    llm = load_llm(f"{server.url}#tiny-7B", retries=0)
    assert (llm.name, llm.context_tokens, llm.capable) == (f"{server.url}#tiny-7B", 2048 - 64, True)
    assert llm.content_hash == connect(server).content_hash != connect(server, revision="2").content_hash
    assert connect(server, "alias").context_tokens == 4096 - 64
    assert connect(server, context_tokens=1000).context_tokens == 1000 - 64
    assert llm.count_tokens("abcd" * 30) == estimate_tokens("abcd" * 30)
    llm.close()


def test_a_small_served_model_is_not_capable_unless_told(server):
    server.models = (200, {"data": [{"id": "default", "root": "/models/SmolLM2-135M-Instruct"}]})
    assert not connect(server, "").capable and connect(server, "", capable=True).capable


def test_wrong_model_ids_and_addresses(server):
    with pytest.raises(ModelError, match="given other; expected one of alias, tiny-7B"):
        connect(server, "other")
    with pytest.raises(ModelError, match="given no name"):
        connect(server, "")
    with pytest.raises(ModelError, match=r"no such service.*HTTP 404"):
        HttpLLM(server.url + "/v2", "tiny-7B", retries=0)
    server.models = (200, b"not json")
    with pytest.raises(ModelError, match="does not list"):
        connect(server)
    with pytest.raises(BadInput, match="not an address"):
        HttpLLM("localhost:8000", "m")


def test_a_schema_that_is_not_json_fails_alone(server):
    bad, good = connect(server).complete([Request("", "a", JsonSchema("{")), Request("", "b")])
    assert isinstance(bad, RequestFailed) and good.text == "re: b"


EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


def events(*chunks: Any, done: bool = True) -> bytes:
    lines = [": a comment", *(f"data: {json.dumps(chunk)}" for chunk in chunks), *(["data: [DONE]"] if done else [])]
    return "\n\n".join(lines).encode() + b"\n\n"


def delta(text: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": finish}]}


def test_a_streamed_reply_is_that_of_one_piece(server):
    seen: list[str] = []
    usage = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}

    def behave(body):
        if not body.get("stream"):
            return 200, completion("a bridge at Kerling")
        assert body["stream_options"] == {"include_usage": True}
        thought = delta(None, reasoning_content="let me see")
        said = [delta("a bri"), thought, delta("dge at"), delta(" Kerling", "stop"), {"choices": [], "usage": usage}]
        return 200, events(*said), EVENTS

    server.behave = behave
    llm = connect(server)
    plain, streamed = Request("", "which?"), Request("", "which?", on_text=seen.append)
    assert plain == streamed and hash(plain) == hash(streamed), "one request to a cache"
    assert llm.complete([plain]) == llm.complete([streamed])
    assert seen and seen[-1] == "a bridge at Kerling" and all("a bridge at Kerling".startswith(text) for text in seen)
    assert [body.get("stream") for body in server.bodies] == [None, True]
    llm.close()


def test_a_server_that_does_not_stream_is_asked_plainly(server):
    seen: list[str] = []
    llm = connect(server)
    (reply,) = llm.complete([Request("", "ignored", on_text=seen.append)])  # it answers in one piece
    assert (reply.text, seen) == ("re: ignored", [])
    server.behave = lambda body: (
        (400, {"error": {"message": "no stream_options"}}) if body.get("stream") else echo(body)
    )
    (reply,) = llm.complete([Request("", "refused", on_text=seen.append)])
    assert (reply.text, seen, server.seen["refused"]) == ("re: refused", [], 2)
    server.behave = lambda body: (400, {"error": {"message": "maximum context length"}})
    (reply,) = llm.complete([Request("", "too long", on_text=seen.append)])
    assert isinstance(reply, ContextOverflow) and server.seen["too long"] == 1
    thinker = connect(server, style=Style(thinks=True))
    server.behave = echo
    thinker.complete([Request("", "think", on_text=seen.append)])
    assert "stream" not in server.bodies[-1], "its text may begin with a thought"
    thinker.close()
    llm.close()


def test_a_stream_that_breaks_off_is_tried_again(server):
    seen: list[str] = []
    answers = [
        events(delta("a br"), done=False),
        events(delta("a"), {"error": {"message": "out of memory"}}),
        events(delta("a bridge", "length")),
    ]
    server.behave = lambda body: (200, answers[server.seen["which?"] - 1], EVENTS)
    llm = connect(server)
    (reply,) = llm.complete([Request("", "which?", on_text=seen.append)])
    assert (reply.text, reply.finish_reason) == ("a bridge", "length") and seen == ["a br", "a", "a bridge"]
    answers[:] = [b"data: {\n\ndata: [DONE]\n\n"] * 9
    (reply,) = llm.complete([Request("", "which?", on_text=seen.append)])
    assert isinstance(reply, RequestFailed)
    llm.close()
