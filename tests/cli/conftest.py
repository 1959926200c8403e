"""Shared by the tests of the command line: a tiny index, questions, recorded replies, a chat server, ways to run."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from http_stub import JsonHandler

from gpu_rag.models.llm.http import TRIAL
from gpu_rag.models.misbehave.replies import completion, well_formed

METHODS = ("dense", "bm25", "hybrid", "ppr")
HASH = ("--set", "models.embedder=hash")
NO_LLM = (*HASH, "--set", "models.llm=none")

QUESTIONS: list[dict[str, Any]] = [
    {"id": "q1", "question": "Who founded the University of Loss?", "gold_ids": ["d5"], "answers": ["Hugo Brandt"]},
    {"id": "q2", "question": "Where was the designer of the Halden Bridge born?", "gold_ids": ["d0", "d1"],
     "answers": ["Tamsin"]},
    {"id": "q3", "question": "At which university did the teacher of Marta Orlo teach?", "gold_ids": ["d1", "d2"],
     "answers": ["Loss", "University of Loss"]},
    {"id": "q4", "question": "Who was mayor where the Halden Bridge stands?", "gold_ids": ["d0", "d3"],
     "answers": ["Anna Stroud"]},
    {"id": "q5", "question": "What is the colour of the moon?", "gold_ids": ["d4"], "answers": ["grey"]},
]  # fmt: skip
SAID = {"q1": "Hugo Brandt", "q2": "the port of Tamsin", "q3": "The University of Loss.", "q4": "Piet", "q5": "unknown"}


def say(prompt: str) -> str:
    """Reply of the scripted model: it looks for a known question in the prompt."""
    for row in QUESTIONS:
        if row["question"] in prompt:
            return SAID[row["id"]]
    return "nothing"


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def settled(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its seconds, and the digest of these: all that two runs must agree on."""
    usage = {name: value for name, value in row["usage"].items() if not name.endswith("_s")}
    steps = [{name: value for name, value in step.items() if name != "s"} for step in row["trace"]]
    return {**{name: value for name, value in row.items() if name != "digest"}, "usage": usage, "trace": steps}


@dataclass(frozen=True)
class Result:
    """Result of one command."""

    status: int
    out: str
    err: str

    @property
    def ok(self) -> Result:
        """This result, of a command that must have done all that it should."""
        assert self.status == 0, self.err
        return self

    @property
    def document(self) -> Any:
        """The JSON document: the last line of stdout."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def error(self) -> str:
        """The line of an error, without the program's name."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("gpu-rag: ")]
        return line.removeprefix("gpu-rag: ").removeprefix("error: ")


def run_here(*arguments: object) -> Result:
    """Runs a command in this process."""
    from gpu_rag.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    hook = sys.excepthook
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(os.environ):
        try:
            status = main([str(argument) for argument in arguments])
        finally:
            sys.excepthook = hook
    return Result(status, out.getvalue(), err.getvalue())


def command_line(*arguments: object) -> list[str]:
    """The same command as a process of its own."""
    return [sys.executable, "-m", "gpu_rag", *(str(argument) for argument in arguments)]


def run_process(*arguments: object, **options: Any) -> Result:
    """Runs a command as a process and waits for it."""
    done = subprocess.run(command_line(*arguments), capture_output=True, text=True, timeout=600, **options)
    return Result(done.returncode, done.stdout, done.stderr)


class Shared:
    """The code above, for test modules (they import nothing from one another)."""

    METHODS, HASH, NO_LLM, QUESTIONS, SAID = METHODS, HASH, NO_LLM, QUESTIONS, SAID
    say, write_rows, read_rows, settled = map(staticmethod, (say, write_rows, read_rows, settled))
    run, command_line, run_process = map(staticmethod, (run_here, command_line, run_process))


@pytest.fixture(scope="session")
def cli() -> type[Shared]:
    return Shared


@pytest.fixture
def run() -> Callable[..., Result]:
    """run("verify", folder): a command in this process."""
    return run_here


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an index and its recorded replies are kept from the first test that makes them on."""
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def made_once(templates: Path, tmp_path: Path) -> Callable[..., Path]:
    """made_once("index", words): what `gpu-rag index WORDS --out FOLDER` makes once a session; a copy for each test."""

    def copy(name: str, *words: object) -> Path:
        if not (templates / name).exists():
            unfinished = templates / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            run_here("index", *words, "--out", unfinished, *NO_LLM).ok  # noqa: B018
            unfinished.rename(templates / name)
        return Path(shutil.copytree(templates / name, tmp_path / name))

    return copy


@pytest.fixture
def index(tiny_corpus: Path, made_once: Callable[..., Path]) -> Path:
    """An index of the tiny corpus with the layers of every method."""
    return made_once("index", tiny_corpus, "--for", ",".join(METHODS))


@pytest.fixture
def tables(index: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables of the index, by name."""
    from pyarrow import parquet

    found = sorted((index / "stages").rglob("*.parquet"))
    return {path.stem: parquet.read_table(path).to_pylist() for path in found}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """QUESTIONS as a file."""
    return write_rows(tmp_path / "questions.jsonl", QUESTIONS)


@pytest.fixture
def replay(index: Path, tmp_path: Path, templates: Path) -> Path:
    """Recorded replies to all QUESTIONS by all METHODS: --set models.llm=replay:FILE."""
    if not (templates / "replies.jsonl").exists():
        from recording_llm import RecordingLLM

        from gpu_rag import Index
        from gpu_rag.models.llm.scripted import ScriptedLLM
        from gpu_rag.types import Question

        unfinished = templates / "unfinished.jsonl"
        asked = [Question(row["id"], row["question"]) for row in QUESTIONS]
        for method in METHODS:
            llm = RecordingLLM(ScriptedLLM(lambda request: say(request.prompt)), unfinished)
            Index.open(index).answer(asked, method=method, settings={"models": {"embedder": "hash"}}, llm=llm)
        unfinished.rename(templates / "replies.jsonl")
    return Path(shutil.copy(templates / "replies.jsonl", tmp_path / "replies.jsonl"))


@pytest.fixture
def answer(index: Path, questions: Path, replay: Path, tmp_path: Path) -> Callable[..., Result]:
    """answer("--limit", 2): `gpu-rag answer` of QUESTIONS by ppr into answers.jsonl, with recorded replies."""
    given = (index, questions, "--method", "ppr", "--out", tmp_path / "answers.jsonl")
    return functools.partial(run_here, "answer", *given, *HASH, "--set", f"models.llm=replay:{replay}")


class QuietServer(ThreadingHTTPServer):
    """open: connections that were accepted and are not yet ended."""

    daemon_threads, open, _lock = True, 0, threading.Lock()
    request_queue_size = 1024  # five, the default, leaves connections of a burst unanswered for minutes

    def process_request(self, *arguments: Any) -> None:
        with self._lock:
            self.open += 1
        super().process_request(*arguments)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self.open -= 1

    def handle_error(self, *_: Any) -> None:
        """An asker that was killed is no event."""


class ChatServer:
    """A model server on 127.0.0.1 that speaks the OpenAI chat protocol and counts what it was asked.

    behave(prompt) -> (HTTP status, text). seconds: how long each reply takes; `width` are worked on at once. pace:
    where a reply is asked for as a stream its words come so many seconds apart; None: it comes in one piece all the
    same. broken: how many streams break off after their first word.
    `let_through(n)`: so many more replies are sent, and those after them wait until more are let through.
    """

    def __init__(
        self,
        behave: Callable[[str], tuple[int, str]],
        seconds: float = 0.0,
        width: int = 4,
        pace: float | None = None,
        broken: int = 0,
    ):
        self.behave, self.seconds, self.places = behave, seconds, threading.Semaphore(width)
        self.pace, self.broken, self.n_streamed = pace, broken, 0
        self.came: list[float] = []  # when each request came, by time.perf_counter
        self.sent_first: list[float] = []  # when the first word of each stream was sent
        self.begun: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._room, self._more = math.inf, threading.Condition()
        self._httpd = QuietServer(("127.0.0.1", 0), self._handler())
        self.spec = f"http://127.0.0.1:{self._httpd.server_address[1]}/v1#scripted-8B"
        threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.let_through(math.inf)
        self._httpd.shutdown()
        self._httpd.server_close()

    def let_through(self, n: float) -> None:
        with self._more:
            self._room = n
            self._more.notify_all()

    def settle(self) -> None:
        """Waits for what was sent by askers that have ended, read here or not yet: their replies nobody takes."""
        with socket.create_connection(self._httpd.server_address) as last:  # those before it are accepted before it
            last.sendall(b"GET /models HTTP/1.0\r\n\r\n")
            while last.recv(4096):
                pass
        limit = time.monotonic() + 300
        while self._httpd.open and time.monotonic() < limit:
            time.sleep(0.01)
        assert self.begun == self.finished, "an asker has not ended"

    def forget(self) -> None:
        """Lets all through that wait, settles, and begins to count anew."""
        self.let_through(math.inf)
        self.settle()
        self.begun, self.finished = Counter(), Counter()

    def _reply(self, prompt: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.begun[prompt] += 1
            self.came.append(time.perf_counter())
        with self.places:
            time.sleep(self.seconds)
            status, text = self.behave(prompt)
        with self._more:
            self._more.wait_for(lambda: self._room > 0)
            self._room -= 1
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
        return status, {"choices": [choice], "usage": usage} if status == 200 else {"error": {"message": text}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                self.send(200, {"data": [{"id": "scripted-8B", "max_model_len": 4096}]})

            def do_POST(self) -> None:
                body = self.body()
                prompt = body["messages"][-1]["content"]
                if prompt.startswith(TRIAL):  # what a server understands is tried once, and not counted here
                    return self.send(200, completion(body, well_formed(body)))
                try:
                    status, content = server._reply(prompt)
                    if status == 200 and body.get("stream") and server.pace is not None:
                        self.stream(content, server.pace)
                    else:
                        self.send(status, content)
                finally:  # also when the asker is gone
                    with server._lock:
                        server.finished[prompt] += 1

            def stream(self, content: dict[str, Any], pace: float) -> None:
                """The words of a completion, each as an event, the end and the usage."""
                (choice,) = content["choices"]
                words = re.findall(r"\S+\s*", choice["message"]["content"])
                self.send_response(200)
                self.send_header("content-type", "text/event-stream; charset=utf-8")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                server.n_streamed += 1
                for i, word in enumerate(words):
                    time.sleep(pace if i else 0.0)
                    self.event({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
                    if not i:
                        server.sent_first.append(time.perf_counter())
                    if server.broken:
                        server.broken -= 1
                        return
                self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                self.event({"choices": [], "usage": content["usage"]})
                self.wfile.write(b"data: [DONE]\n\n")

            def event(self, chunk: dict[str, Any]) -> None:
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                self.wfile.flush()

        return Handler


@pytest.fixture
def chat_server() -> Iterator[Callable[..., ChatServer]]:
    """chat_server(behave, seconds=0.1): a model server; it ends with the test."""
    started: list[ChatServer] = []

    def start(behave: Callable[[str], tuple[int, str]], **options: Any) -> ChatServer:
        started.append(ChatServer(behave, **options))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def small_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpu-rag bench on one OpenMP thread, with a small memory copy."""
    from gpu_rag.bench import measure

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(measure, "COPY_BYTES", 2**20)
    monkeypatch.setattr(measure.Copy, "moved", 2**21)
