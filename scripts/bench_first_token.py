"""How long the first token of an answer takes through the server, beside the model's own time: a JSON line.

usage: OMP_NUM_THREADS=1 python scripts/bench_first_token.py INDEX QUESTIONS [--llm SPEC] [--method bm25] [--n 8]
       [--delay 0.3 --pace 0.05]

Each question is asked as a streamed chat completion of a server in this process, over a socket, one after the other.
served_ms: from the submission of the answer request to the model until the client has the first piece of the answer;
model_ms: until the model has said the first token of that same request. own_ms: the request given to the model alone,
until it says the first token. Medians over the questions, after a round that does not count, served first and alone
first in turns. ratio: of served_ms to model_ms, and to own_ms. Without --llm the model is a server of our own that
streams: its first word comes after --delay seconds, the next ones every --pace.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from gpu_rag import Index, load_questions
from gpu_rag.cli.trace_text import said
from gpu_rag.serve.admission import Admission
from gpu_rag.serve.api import make_app
from gpu_rag.serve.live import Live
from gpu_rag.serve.server import config_of
from gpu_rag.settings import make_settings
from gpu_rag.types import Request

WORDS = ["The", "Halden", "Bridge", "was", "designed", "by", "Marta", "Orlo"]


class Pacer(BaseHTTPRequestHandler):
    """A model server that says the same words at a pace."""

    protocol_version = "HTTP/1.1"
    delay_s, pace_s = 0.3, 0.05

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        """The one model."""
        self._send(json.dumps({"data": [{"id": "paced-8B", "max_model_len": 8192}]}).encode())

    def do_POST(self) -> None:
        """A completion, streamed where that is asked for."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not body.get("stream"):
            choice = {"message": {"content": " ".join(WORDS)}, "finish_reason": "stop"}
            return self._send(json.dumps({"choices": [choice]}).encode())
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for i, word in enumerate(WORDS):
            time.sleep(self.pace_s if i else self.delay_s)
            self._event({"choices": [{"delta": {"content": f"{word} "}, "finish_reason": None}]})
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        return None

    def _event(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Noting:
    """A language model that notes its last answer request, when it was submitted, and when its text began."""

    def __init__(self, llm: Any):
        self._llm, self.began = llm, list[float]()
        self.request, self.submitted = Request("", ""), 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def submit(self, key: int, request: Request) -> None:
        """As of the model."""
        on_text = request.on_text
        assert on_text is not None
        self.request, self.submitted, self.began = request, time.perf_counter(), []

        def noted(text: str) -> None:
            self.began.append(time.perf_counter())
            on_text(text)

        self._llm.submit(key, replace(request, on_text=noted))


@contextmanager
def serving(index: Index, spec: str) -> Iterator[tuple[str, Noting, Any]]:
    """(address, what notes requests, the model itself) of a server over an index."""
    settings = make_settings({"models": {"llm": spec, "decider": "rule"}})
    engine = index.engine(settings)
    noting = engine.models._streaming = Noting(engine.models.streaming_llm())  # type: ignore[assignment]
    live = Live(lambda: engine, settings.serve, print)
    live.start()
    app = make_app(Admission(live, settings), said, "127.0.0.1", None)
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config_of(app, settings.serve))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}", noting, engine.models.llm()
    finally:
        server.should_exit = True
        thread.join()
        live.stop()


def first_piece(client: httpx.Client, url: str, method: str, question: str) -> float:
    """When the first piece of the answer came, by time.perf_counter."""
    body = {"model": method, "stream": True, "messages": [{"role": "user", "content": question}]}
    came = 0.0
    with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                piece = chunk["choices"][0]["delta"].get("content")
                came = came or (time.perf_counter() if piece else 0.0)
    return came


def own_seconds(llm: Any, request: Request) -> float:
    """The model's own time to its first text."""
    times: list[float] = []
    began = time.perf_counter()
    llm.complete([replace(request, on_text=lambda _: times.append(time.perf_counter()))])
    return times[0] - began


def middle(seconds: list[float]) -> float:
    """The median in milliseconds."""
    return 1000 * statistics.median(seconds)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--llm")
    parser.add_argument("--method", default="bm25")
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--delay", type=float, default=0.3)
    parser.add_argument("--pace", type=float, default=0.05)
    options = parser.parse_args()
    Pacer.delay_s, Pacer.pace_s = options.delay, options.pace
    paced = ThreadingHTTPServer(("127.0.0.1", 0), Pacer)
    threading.Thread(target=paced.serve_forever, daemon=True).start()
    spec = options.llm or f"http://127.0.0.1:{paced.server_address[1]}/v1#paced-8B"
    questions = [row.question.text for row in load_questions(options.questions)[0]][: options.n]
    served, model, own = [], [], []
    with serving(Index.open(options.index), spec) as (url, noting, llm), httpx.Client(timeout=600) as client:
        requests = [noting.request for text in questions if first_piece(client, url, options.method, text)]
        for i, (question, request) in enumerate(zip(questions, requests)):
            if i % 2:
                own.append(own_seconds(llm, request))
            came = first_piece(client, url, options.method, question)
            served.append(came - noting.submitted)
            model.append(noting.began[0] - noting.submitted)
            if not i % 2:
                own.append(own_seconds(llm, request))
    found = {"llm": options.llm or f"paced: {options.delay} s, then every {options.pace} s", "method": options.method}
    found |= {"n": len(own), "served_ms": middle(served), "model_ms": middle(model), "own_ms": middle(own)}
    ratios = [one / other for one, other in zip(served, model)]
    found |= {"ratio": statistics.median(ratios), "worst": max(ratios), "ratio_alone": middle(served) / middle(own)}
    machine = {"cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "python": platform.python_version()}
    print(json.dumps({**found, "machine": machine}))


if __name__ == "__main__":
    main()
