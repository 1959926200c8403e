"""Real server processes: many clients at once, streamed rows, lost and slow clients, signals, the page in a browser."""

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from gpu_rag.cli import serve_command
from gpu_rag.errors import MissingBackend

QUESTION = "Who founded the University of Loss?"
METHODS = ("dense", "bm25", "hybrid", "ppr")
COLD = ("--set", "serve.warm=false")


def say(prompt: str) -> tuple[int, str]:
    return 200, f"word {sum(map(ord, prompt)) % 997}"


def test_sixty_four_clients_get_the_rows_of_answer(served, index, run, cli, chat_server, tmp_path):
    server = chat_server(say, seconds=0.02, width=16)
    llm = ("--set", f"models.llm={server.spec}")
    rows = [{"id": f"q{i}", "question": f"Which town lay on the Ves in {1700 + i}?"} for i in range(64)]
    questions = cli.write_rows(tmp_path / "many.jsonl", rows)
    process = served(index, *llm)
    assert process.document["methods"][:4] == list(METHODS) and process.document["pid"] == process.process.pid

    async def clients():
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=process.url, timeout=300, limits=limits) as client:
            bodies = ({**row, "method": METHODS[i % 4], "support": False} for i, row in enumerate(rows))
            sent = (client.post("/v1/answer", json=body) for body in bodies)
            return await asyncio.gather(*sent)

    got = [response.json() for response in asyncio.run(clients())]
    assert {row["status"] for row in got} == {"unsupported"}  # its words stand in no passage
    for i, method in enumerate(METHODS):
        out = tmp_path / f"{method}.jsonl"
        assert run("answer", index, questions, "--method", method, "--out", out, *cli.HASH, *llm).status == 0
        expected = {row["id"]: cli.settled(row) for row in cli.read_rows(out)}
        for row in got[i::4]:
            assert cli.settled(row) == expected[row["id"]]
    assert process.stop() == 0, process.err
    assert process.err == ""


def test_rows_come_as_questions_end_and_the_reply_to_a_lost_client_is_kept(served, index, chat_server, tmp_path):
    slow, lost = threading.Event(), threading.Event()

    def answer(prompt: str) -> tuple[int, str]:
        if "slow one" in prompt:
            slow.wait(600)
        if QUESTION in prompt:
            lost.wait(600)
        return say(prompt)

    server = chat_server(answer, width=8)
    process = served(index, "--set", f"models.llm={server.spec}", "--replies", tmp_path / "kept.sqlite", *COLD)
    asked = [{"id": name, "question": f"Which town is the {name} one?"} for name in ("slow", "quick")]
    body, headers = {"questions": asked, "method": "bm25"}, {"accept": "application/x-ndjson"}
    with process.client.stream("POST", "/v1/answer", json=body, headers=headers) as got:
        assert got.headers["content-type"] == "application/x-ndjson; charset=utf-8"
        lines = got.iter_lines()
        assert json.loads(next(lines))["id"] == "quick"
        slow.set()
        assert json.loads(next(lines))["id"] == "slow" and list(lines) == []
    body = json.dumps({"question": QUESTION, "method": "ppr"}).encode()
    head = (
        f"POST /v1/answer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    with socket.create_connection(process.address) as gone:
        gone.sendall(head.encode() + b"\r\n\r\n" + body)
        process.until(lambda: sum(server.begun.values()) == 3)
    process.until(lambda: process.metric("questions_open") == 0)
    lost.set()
    process.until(lambda: process.metric("late_calls_total") == 1)
    assert process.metric("refused_total", reason="client gone") == 1
    assert process.metric("questions_total", status="failed") == 1
    row = process.ask(question=QUESTION, method="ppr").json()
    assert row["status"] == "unsupported" and sum(server.begun.values()) == 3, "it was asked once"


def test_slow_clients_are_cut_off(served, index):
    process = served(index, "--set", "models.llm=none", "--set", "serve.client_seconds=4", *COLD)
    head = b"POST /v1/retrieve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 30\r\n"
    cases = {b"": b"", head: b"", head + b"\r\n{": b"HTTP/1.1 408"}
    with contextlib.ExitStack() as stack:
        slow = {sent: stack.enter_context(socket.create_connection(process.address, timeout=300)) for sent in cases}
        for sent, connection in slow.items():
            connection.sendall(sent)
        for sent, connection in slow.items():
            got = b""
            while piece := connection.recv(4096):
                got += piece
            assert got.startswith(cases[sent]) and bool(got) == bool(cases[sent]), sent
    with socket.create_connection(process.address) as gone:  # in the middle of a body
        gone.sendall(head + b"\r\n{")
    process.until(lambda: process.metric("refused_total", reason="client gone") == 1)
    for junk in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n" + b"x" * 100_000, b"{" * 70_000):
        with socket.create_connection(process.address, timeout=300) as hostile:
            hostile.sendall(junk)
            hostile.recv(4096)
    assert process.ask("/v1/retrieve", question=QUESTION, method="ppr").json()["status"] == "retrieved"
    assert process.stop() == 0 and process.err == "", "what clients do wrong does not fill the log"


def test_a_signal_lets_questions_in_flight_end(served, index, chat_server):
    """SIGINT; for SIGTERM see below."""
    gate = threading.Event()
    server = chat_server(lambda prompt: gate.wait(600) and say(prompt))
    process = served(index, "--set", f"models.llm={server.spec}", "--set", "serve.grace_seconds=600", *COLD)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(process.ask, question=f"number {i}?") for i in range(2)]
        process.until(lambda: sum(server.begun.values()) == 2)
        process.process.send_signal(signal.SIGINT)
        process.until(lambda: not listens(process))
        gate.set()
        rows = [one.result().json() for one in asked]
    assert [row["status"] for row in rows] == ["unsupported"] * 2
    assert process.process.wait(timeout=300) == 0 and "Traceback" not in process.err


def listens(process) -> bool:
    try:
        socket.create_connection(process.address, timeout=300).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(("grace_s", "signals"), [(0.3, 1), (600, 2)])
def test_what_lasts_longer_than_the_grace_is_failed(served, index, chat_server, grace_s, signals):
    """The model's reply is not waited for: it does not come before the process has ended."""
    gate = threading.Event()
    server = chat_server(lambda prompt: gate.wait(600) and say(prompt))
    process = served(index, "--set", f"models.llm={server.spec}", "--set", f"serve.grace_seconds={grace_s}", *COLD)
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(process.ask, question=QUESTION, method="ppr")
            process.until(lambda: sum(server.begun.values()) == 1)
            for _ in range(signals):
                process.process.send_signal(signal.SIGTERM)
                process.until(lambda: not listens(process))
            row = asked.result().json()
        assert (row["status"], row["error"]["type"]) == ("failed", "Cancelled")
        assert process.process.wait(timeout=300) == 0 and "Traceback" not in process.err
    finally:
        gate.set()


def test_what_keeps_a_server_from_starting(run, cli, index, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", index, "--port", port, *cli.NO_LLM)
    assert result.status == 1 and f"127.0.0.1:{port}" in result.error
    (tmp_path / "short").write_text("abc\n")
    cases = {
        ("--port", "70000"): "70000",
        ("--host", "no.such.host.invalid"): "no.such.host.invalid",
        ("--host", "x" * 70): "x" * 70,
        ("--api-key-file", tmp_path / "none"): str(tmp_path / "none"),
        ("--api-key-file", tmp_path / "short"): str(tmp_path / "short"),
        ("--set", "serve.max_queue=-1"): "serve.max_queue",
    }
    for words, said in cases.items():
        result = run("serve", index, *cli.NO_LLM, *words)
        assert result.status == 2 and said in result.error and result.out == "", words


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(serve_command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingBackend, match=r"uvicorn.*gpu-rag\[serve\]"):
        serve_command.run(argparse.Namespace())


@pytest.mark.slow
def test_the_packaged_model_answers_and_is_stopped_in_the_middle_of_a_reply(served, tmp_path, tiny_corpus, run):
    assert run("index", tiny_corpus, "--out", tmp_path / "tiny").status == 0
    process = served(tmp_path / "tiny", "--set", "serve.grace_seconds=0.5", settings=("--set", "models.llm=smollm2"))
    row = process.ask(question=QUESTION, method="ppr").json()
    assert row["status"] != "failed" and row["usage"]["generated_tokens"] > 0 and row["evidence"]
    many = [{"question": f"Who was born in {1800 + i}?"} for i in range(32)]  # not answered in a moment anywhere
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(process.ask, questions=many)
        process.until(lambda: process.metric("questions_open") > 0)
        process.process.send_signal(signal.SIGTERM)
        rows = asked.result().json()["answers"]
    assert len(rows) == 32 and {row["status"] for row in rows} <= {"answered", "unsupported", "failed"}
    assert process.process.wait(timeout=300) == 0, process.err
    assert "terminate" not in process.err
