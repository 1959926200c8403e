"""Shared by the tests of the server: server processes, a server in this process, and what the tests of the command
line have (a tiny index, scripted model servers)."""

import contextlib
import importlib.util
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

_SPEC = importlib.util.spec_from_file_location("cli_shared", Path(__file__).parents[1] / "cli" / "conftest.py")
assert _SPEC is not None and _SPEC.loader is not None
shared = importlib.util.module_from_spec(_SPEC)
sys.modules["cli_shared"] = shared  # its dataclasses look their module up
_SPEC.loader.exec_module(shared)

cli, run, templates, index, questions = shared.cli, shared.run, shared.templates, shared.index, shared.questions
chat_server, made_once = shared.chat_server, shared.made_once

JSON = {"content-type": "application/json"}
PATIENCE_S = 300.0  # only a bug takes so long


class Process:
    """A running `gpu-rag serve`."""

    def __init__(self, words: tuple[object, ...], errors: Path):
        self._errors = errors.open("w+")
        command = shared.command_line("serve", *words, "--port", 0, "--json")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: lines.put(self.process.stdout.readline()), daemon=True).start()
        line = lines.get(timeout=PATIENCE_S)
        assert line, self.err
        self.document = json.loads(line)
        self.url: str = self.document["url"]
        limits = httpx.Limits(max_keepalive_connections=0)  # none that the server closes while it is used again
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S, limits=limits)

    @property
    def err(self) -> str:
        """The process's stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        url = httpx.URL(self.url)
        return url.host, int(url.port or 0)

    def ask(self, path: str = "/v1/answer", **body: Any) -> httpx.Response:
        """POST a body."""
        return self.client.post(path, json=body)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.split("{")[0] == f"gpu_rag_{name}" and all(f'{k}="{v}"' in head for k, v in labels.items()):
                total += float(value)
        return total

    def until(self, reached: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
        """Waits until reached()."""
        end = time.monotonic() + limit_s
        while not reached():
            assert time.monotonic() < end and self.process.poll() is None, f"nothing happened; {self.err}"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Tells it to end, and waits; returns its exit status."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=PATIENCE_S)
        finally:
            self.process.kill()


def processes(folder: Path) -> Iterator[Callable[..., Process]]:
    """Gives a function that starts server processes, and ends them at last. folder: of what they say."""
    started: list[Process] = []

    def start(*words: object, settings: tuple[str, ...] = shared.HASH) -> Process:
        started.append(Process((*words, *settings), folder / f"err{len(started)}.txt"))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.stop()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """served(index, "--set", ...): a server process, which ends with the test; by the hash embedder, or `settings`."""
    yield from processes(tmp_path)


@pytest.fixture(scope="module")
def served_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Process]]:
    """The same as `served`, but a process ends with the module."""
    yield from processes(tmp_path_factory.mktemp("served"))


class Here:
    """A server in this process, without a socket: the application, its engine, and what is behind them."""

    def __init__(
        self,
        index: Path | dict[str, Path],
        settings: dict[str, Any],
        open_llm: Callable[[], Any],
        key: Any,
        host: str,
        audit: Any,
    ):
        from gpu_rag import Index
        from gpu_rag.cli.trace_text import step_words
        from gpu_rag.engine import Engine
        from gpu_rag.models.set import ModelSet
        from gpu_rag.serve.admission import Admission
        from gpu_rag.serve.api import make_app
        from gpu_rag.serve.keys import Client, Keys, KeySettings
        from gpu_rag.serve.live import EngineThread
        from gpu_rag.settings import make_settings, merge

        folders = index if isinstance(index, dict) else {"ix": index}
        held = {name: Index.open(folder) for name, folder in folders.items()}
        chosen = make_settings(merge({"models": {"embedder": "hash"}, "serve": {"warm": False}}, settings))
        self.said: list[str] = []

        def open_engines() -> dict[str, Engine]:
            models = ModelSet(chosen.models, llm=open_llm())
            return {name: Engine(index, chosen, models) for name, index in held.items()}

        self.thread = EngineThread(open_engines, chosen.serve, self.said.append)
        self.live = next(iter(self.thread.indexes.values()))
        self.admission = Admission(chosen)
        self.counts = self.admission.counts
        self.thread.start()
        keys = None if key is None else Keys({key: Client("key", KeySettings())}) if isinstance(key, str) else key
        self.app = make_app(self.thread, self.admission, step_words, host, keys, audit)

    def n_refused(self, reason: str) -> float | None:
        """Questions and requests that were not served for this reason."""
        return self.counts.registry.get_sample_value("gpu_rag_refused_total", {"reason": reason})

    def client(self, **options: Any) -> httpx.AsyncClient:
        """A client of the application."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request, in an event loop of its own."""
        import asyncio

        async def asked() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(asked())


@pytest.fixture
def here(index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Here]]:
    """here(settings, llm=..., key=..., host=..., index=..., audit=...): a server in this process, which ends with the
    test. key: one with all rights, or `Keys`. index: a folder, or several by name."""
    from gpu_rag.models.llm.scripted import ScriptedLLM
    from gpu_rag.settings.sections import ServeSettings

    monkeypatch.setattr(ServeSettings, "revive_seconds", 0.05)
    started: list[Here] = []

    def start(settings: dict[str, Any] | None = None, **options: Any) -> Here:
        open_llm = options.get("llm") or (lambda: ScriptedLLM(lambda request: shared.say(request.prompt)))
        host = options.get("host", "127.0.0.1")
        given = (options.get("index", index), settings or {}, open_llm, options.get("key"), host, options.get("audit"))
        started.append(Here(*given))
        return started[-1]

    yield start
    for one in started:
        one.thread.stop()
