"""The engine behind a server: shared batches, cancellation, deaths and revivals, the end. No socket, no process."""

import asyncio
import shutil
import threading
import time
import weakref
from concurrent.futures import Future

import pytest
from prometheus_client.parser import text_string_to_metric_families
from toy_steps import Toys, graph

from gpu_rag.engine import Engine
from gpu_rag.errors import BudgetExceeded, Cancelled, IndexCorrupt, ModelError
from gpu_rag.index.folder import is_held
from gpu_rag.index.index import Index
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.runtime import StreamingDriver
from gpu_rag.serve import watch as watch_module
from gpu_rag.serve.live import Wanted
from gpu_rag.settings.sections import ServeSettings
from gpu_rag.types import Question

PATIENCE_S = 300.0  # only a bug takes so long

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")


def asked(n: int, method: str = "ppr") -> dict:
    return {
        "method": method,
        "questions": [{"id": f"q{i}", "question": f"Which town is number {i}?"} for i in range(n)],
    }


@pytest.fixture
def driver():
    """A driver whose step is answered when `gate` is set."""
    gate, begun = threading.Event(), threading.Event()

    def answer(queries, k):
        begun.set()
        gate.wait(PATIENCE_S)
        return queries

    made = StreamingDriver(Toys({"graph": answer}).resources, None, max_live=1)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    yield made, gate, begun
    gate.set()
    made.close()
    thread.join(PATIENCE_S)


async def waits(ctx):
    return await graph(ctx.question.id)


def submitted(driver, name):
    ended = Future()
    return driver.submit(Question(name, "?"), waits, ended.set_result), ended


def test_a_question_is_cancelled_with_a_reason(driver):
    made, gate, begun = driver
    running, ended = submitted(made, "a")
    assert begun.wait(PATIENCE_S)
    waiting, never_begun = submitted(made, "b")
    assert made.n_running == 1
    late = BudgetExceeded("too late")
    made.cancel(running, late)
    made.cancel(running)  # the first reason counts
    made.cancel(waiting, late)
    gate.set()
    assert ended.result(PATIENCE_S).error is late and never_begun.result(PATIENCE_S).error is late
    assert made.n_running == 0


def test_a_handle_of_another_driver_cancels_nobody(driver):
    made, gate, begun = driver
    other = StreamingDriver({}, None)
    stranger, _ = submitted(other, "x")
    other.close()
    other.run()
    mine, ended = submitted(made, "a")
    assert begun.wait(PATIENCE_S) and stranger.order == mine.order == 0
    made.cancel(stranger)
    gate.set()
    assert ended.result(PATIENCE_S).draft == "a"


def test_what_stopped_a_run_is_told_to_all_that_were_open():
    died = ModelError("the engine died")

    def answer(queries, k):
        raise died

    driver = StreamingDriver(Toys({"graph": answer}).resources, None, max_live=1)
    ends = [submitted(driver, str(i))[1] for i in range(3)]
    with pytest.raises(ModelError):
        driver.run()
    errors = [ended.result(PATIENCE_S).error for ended in ends]
    assert [(type(error), error.__cause__) for error in errors] == [(Cancelled, died)] * 3


def test_groups_take_turns_where_questions_wait(driver):
    made, gate, begun = driver
    ended = []

    def ask(name, group):
        return made.submit(Question(name, "?"), waits, lambda outcome: ended.append(outcome.question.id), group)

    ask("running", "many")
    assert begun.wait(PATIENCE_S)
    for name in ("many1", "many2", "many3", "many4"):
        ask(name, "many")
    dropped = ask("few1", "few")
    ask("few2", "few")
    ask("alone", None)
    ask("again", None)
    made.cancel(dropped)
    gate.set()
    made.close()
    until(lambda: len(ended) == 9)
    ended.remove("few1")
    assert ended == ["running", "many1", "few2", "alone", "many2", "again", "many3", "many4"]


def test_questions_of_clients_and_methods_share_batches(here):
    server = here(llm=lambda: ScriptedLLM(lambda request: "x"))
    gate, reached = threading.Event(), threading.Event()

    def hold(outcome):  # the engine's thread, so that all questions are there when it goes on
        reached.set()
        gate.wait(PATIENCE_S)

    async def clients():
        server.live.submit(server.live.prepare(Wanted("bm25", True)), Question("first", "Which town?"), hold)
        assert reached.wait(PATIENCE_S)
        async with server.client() as client:
            one = [
                client.post(
                    "/v1/answer", json={"question": f"Which town is number {i}?", "method": method, "support": False}
                )
                for i in range(16)
                for method in ("dense", "bm25", "hybrid", "ppr")
            ]
            asking = asyncio.gather(*one)
            while server.admission.n_open < 64:
                await asyncio.sleep(0.005)
            gate.set()
            return await asking

    rows = [got.json() for got in asyncio.run(clients())]
    assert not [row for row in rows if row["status"] == "failed"] and len(rows) == 64
    steps = server.thread.stats.steps
    for step, n in (("embed", 48), ("rank_by_graph", 16), ("search_dense", 16)):
        assert (steps[step].n_calls, steps[step].batch_sizes) == (n, {n: 1}), step
    assert steps["llm"].n_calls == 64 and steps["llm"].n_batches < 64


class Gated:
    """A model that answers when it is let go."""

    def __init__(self):
        self.gate, self.begun = threading.Event(), threading.Event()

    def __call__(self, request):
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        return "x"


def until(reached, limit_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_client_that_goes_away_gives_up_its_questions(here, accept):
    gated = Gated()
    server = here(llm=lambda: ScriptedLLM(gated))
    sent, gone = [], threading.Event()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/answer", "query_string": b"", "raw_path": b"/v1/answer",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"accept", accept.encode())],
    }  # fmt: skip
    body = iter([b'{"method": "dense", "questions": [{"question": "a?"}, {"question": "b?"}]}'])

    async def receive():
        piece = next(body, None)
        if piece is not None:
            return {"type": "http.request", "body": piece}
        while not gone.is_set():
            await asyncio.sleep(0.005)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def client():
        task = asyncio.ensure_future(server.app(scope, receive, send))
        while not gated.begun.is_set() or server.thread.driver._flights.n_open < 2:  # both wait for the model
            await asyncio.sleep(0.005)
        assert server.admission.n_open == 2
        gone.set()
        await task
        while server.admission.n_open:  # the engine looks at it between batches
            await asyncio.sleep(0.005)

    asyncio.run(client())
    assert server.admission.batches == set() and server.thread.driver.n_running == 0
    gated.gate.set()
    until(lambda: server.thread.stats.n_late_calls == 2)  # taken though nobody asks: a reply cache below keeps them
    assert b"".join(message.get("body", b"") for message in sent) == b""
    assert server.n_refused("client gone") == 1 and not [m for m in sent if m.get("status", 200) != 200]
    assert server.ask("POST", "/v1/answer", json=asked(3)).status_code == 200, "the accounts are sound"


def test_a_client_that_does_not_read_is_taken_to_be_gone(here):
    """Its answers are given up; the time that it has is `client_seconds`."""
    server = here({"serve": {"client_seconds": 0.1}})
    scope = {"type": "http", "method": "GET", "path": "/v1/index", "query_string": b"", "raw_path": b"/v1/index"}
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message["type"])
        await asyncio.sleep(2 * PATIENCE_S if message["type"] == "http.response.body" else 0)

    began = time.monotonic()
    asyncio.run(server.app({**scope, "headers": [(b"host", b"localhost")]}, receive, send))
    assert time.monotonic() - began < PATIENCE_S and sent == ["http.response.start", "http.response.body"]
    assert server.n_refused("client gone") == 1


def test_more_questions_than_there_is_room_for_are_refused(here):
    gated = Gated()
    settings = {"runtime": {"max_live": 2}, "serve": {"max_queue": 3}}
    server = here(settings, llm=lambda: ScriptedLLM(gated))

    async def clients():
        async with server.client() as client:
            first = asyncio.ensure_future(client.post("/v1/answer", json=asked(4, "bm25")))
            while server.thread.driver.n_running < 2:
                await asyncio.sleep(0.005)
            assert server.admission.n_open == 4
            text = (await client.get("/metrics")).text
            assert "gpu_rag_questions_running 2.0\n" in text and "gpu_rag_questions_queued 2.0\n" in text
            over = await client.post("/v1/answer", json=asked(2, "bm25"))
            gated.gate.set()
            fits = await client.post("/v1/answer", json=asked(1, "bm25"))
            return over, fits, await first

    over, fits, first = asyncio.run(clients())
    assert over.status_code == 429 and 1 <= int(over.headers["retry-after"]) <= 60
    assert "at most 5" in over.json()["error"]["message"]
    assert (fits.status_code, first.status_code) == (200, 200)
    assert 'gpu_rag_refused_total{reason="overloaded"} 2.0\n' in server.ask("GET", "/metrics").text
    assert server.ask("POST", "/v1/answer", json=asked(6)).status_code == 429, "a request that can never fit"


def test_a_single_question_does_not_wait_for_all_of_another_request(here):
    gated, order = Gated(), []

    def say(request):
        gated(request)
        order.append(request.prompt.count("number"))
        return "x"

    server = here({"runtime": {"max_live": 1}}, llm=lambda: ScriptedLLM(say))

    async def clients():
        async with server.client() as client:
            many = asyncio.ensure_future(client.post("/v1/answer", json=asked(8, "bm25")))
            while not gated.begun.is_set():
                await asyncio.sleep(0.005)
            body = {"question": "Which town is alone?", "method": "bm25"}
            single = asyncio.ensure_future(client.post("/v1/answer", json=body))
            while server.admission.n_open < 9:
                await asyncio.sleep(0.005)
            gated.gate.set()
            return await many, await single

    many, single = asyncio.run(clients())
    assert (many.status_code, single.status_code, len(order)) == (200, 200, 9)
    assert order.index(0) in (1, 2), "after one or two questions of the other request, not after eight"


def test_a_dead_engine_is_told_and_comes_back(here):
    mood = {"dead": False, "opened": 0}

    def say(request):
        if mood["dead"]:
            raise ModelError("the model is gone")
        return "x"

    def open_llm():
        mood["opened"] += 1
        if mood["dead"]:
            raise ModelError("nobody listens")
        return ScriptedLLM(say)

    server = here(llm=open_llm)
    assert server.ask("POST", "/v1/answer", json=asked(2)).status_code == 200
    mood["dead"] = True
    got = server.ask("POST", "/v1/answer", json=asked(2))
    assert got.status_code == 503 and "the model is gone" in got.json()["error"]["message"]
    until(lambda: server.ask("GET", "/ready").status_code == 503 and mood["opened"] >= 3)
    again = server.ask("POST", "/v1/answer", json=asked(1))
    assert again.status_code == 503 and int(again.headers["retry-after"]) > 0
    assert server.ask("GET", "/ready").json()["state"] == "dead"
    assert server.ask("GET", "/health").status_code == 200, "somebody tries to change that"
    assert "gpu_rag_ready 0.0\n" in server.ask("GET", "/metrics").text
    mood["dead"] = False
    until(lambda: server.ask("GET", "/ready").status_code == 200)
    rows = server.ask("POST", "/v1/answer", json=asked(2)).json()["answers"]
    assert [row["status"] for row in rows] == ["unsupported"] * 2  # "x" stands in no passage
    assert server.said[-1] == "the engine answers again" and "the model is gone" in server.said[0]


def test_a_dead_engine_opens_no_model_for_a_client(here, monkeypatch):
    opened = []

    def open_llm():
        opened.append(1)
        return ScriptedLLM(dies)

    def dies(request):
        raise ModelError("the model is gone")

    monkeypatch.setattr(ServeSettings, "revive_seconds", 0)
    server = here({"serve": {"params": ["ppr.damping"]}}, llm=open_llm)
    described = server.ask("GET", "/v1/index").json()["models"]["llm"]
    server.ask("POST", "/v1/answer", json=asked(1))
    until(lambda: server.thread.gone)
    models = server.live.engine.models
    models.close()  # as the engine's thread does before it opens others
    models.llm = lambda: pytest.fail("a model was opened for a client")
    body = {"question": "a?", "method": "ppr", "params": {"damping": 0.4}}  # prepared for nobody yet
    assert server.ask("POST", "/v1/answer", json=body).status_code == 503
    assert server.ask("GET", "/v1/index").json()["models"]["llm"] == described and opened == [1]


def test_an_engine_that_is_not_revived_makes_the_process_worthless(here, monkeypatch):
    def dies(request):
        raise ModelError("the model is gone")

    monkeypatch.setattr(ServeSettings, "revive_seconds", 0)
    server = here(llm=lambda: ScriptedLLM(dies))
    streamed = server.ask("POST", "/v1/answer", json=asked(2), headers={"accept": "application/x-ndjson"})
    assert streamed.text.count('"type": "ModelError"') == 2, "rows were promised: failed ones come"
    until(lambda: server.ask("GET", "/health").status_code == 503)


def test_a_slow_question_keeps_its_index_and_delays_nobody(here, index, tmp_path):
    gated = Gated()
    server = here(llm=lambda: ScriptedLLM(gated))
    folder, held = shutil.copytree(index, tmp_path / "ix"), weakref.ref(server.live.engine)

    def replaced() -> weakref.ref:
        engine = server.live.engine
        assert server.live.replace(Engine(Index.open(folder), engine.settings, engine.models))
        return weakref.ref(server.live.engine.index)

    middle = replaced()

    async def clients():
        async with server.client() as client:

            async def ask(path):
                return (await client.post(path, json={"question": "Which town is it?", "method": "bm25"})).json()

            slow = asyncio.ensure_future(ask("/v1/answer"))
            while not gated.begun.is_set():
                await asyncio.sleep(0.005)
            newest = await asyncio.to_thread(replaced)
            row = await asyncio.wait_for(ask("/v1/retrieve"), 30)
            assert not slow.done() and row["status"] == "retrieved" and newest() is not middle()
            server.live.release()
            server.live.release()
            assert middle() is not None and is_held(middle_stage), "its question is open"
            gated.gate.set()
            return await slow

    middle_stage = folder / middle().manifest.stages["passages"].folder
    assert asyncio.run(clients())["status"] != "failed"
    for _ in range(2):
        server.live.release()
    assert middle() is None and held() is None


def test_an_index_that_cannot_be_opened_is_said_once_and_tried_more_and_more_seldom(here, tmp_path, monkeypatch):
    (tmp_path / "manifest.json").write_text("{}")
    monkeypatch.setattr(watch_module, "PAUSE_S", 0.01)
    live, reads, said = here().live, [], []
    monkeypatch.setattr(watch_module.Manifest, "read", lambda folder: reads.append(time.monotonic()) or fails())
    watch = watch_module.Watch(tmp_path, live, said.append)
    watch.start()
    until(lambda: len(reads) == 6)
    assert len(said) == 1 and reads[-1] - reads[0] >= 0.01 * (1 + 2 + 4 + 8 + 16)
    (tmp_path / "manifest.json").write_text("{ }")  # another one is tried at once
    until(lambda: len(said) == 2)
    watch.stop()


def fails():
    raise IndexCorrupt("broken")


NAMES = """ready uptime_seconds questions questions_open questions_running questions_queued refused requests llm_calls
tokens service_seconds driver_seconds llm_busy_seconds llm_idle_seconds llm_requests_open late_calls question_seconds
batch_size"""


def test_metrics_are_lines_that_prometheus_reads(here):
    server = here()
    server.ask("POST", "/v1/answer", json=asked(3))
    server.ask("GET", "/v1/passages/%22}%0a")
    got = server.ask("GET", "/metrics")
    assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = list(text_string_to_metric_families(got.text))
    assert {family.name for family in found} == {f"gpu_rag_{name}" for name in NAMES.split()}
    assert "_created" not in got.text
    samples = {(sample.name, *sorted(sample.labels.values())): sample.value for f in found for sample in f.samples}
    assert samples["gpu_rag_questions_total", "ppr", "unsupported"] == 3
    assert samples["gpu_rag_requests_total", "/v1/passages/{name:path}", "404"] == 1
    assert samples["gpu_rag_question_seconds_bucket", "+Inf", "ppr"] == 3
    assert samples["gpu_rag_service_seconds_total", "graph"] > 0
    assert 'gpu_rag_batch_size_bucket{le="1",verb="rank_by_graph"}' in got.text
