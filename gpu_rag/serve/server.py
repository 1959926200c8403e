"""The process of a server: its socket, its signals, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.serve.desk import Desk
from gpu_rag.settings_serve import ServeSettings

BACKLOG = 512
LAST_ROWS_S = 5  # for the rows of questions that the end has failed


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, so that a port that is taken is found before models are loaded.

    Raises UsageError for a name that is no address, GpuRagError where the system refuses.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError("no such address", given=f"{host}: {error.strerror}", expected="such as 127.0.0.1") from error
    bound = socket.socket(family, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        do = "choose another --port, or 0 for any that is free"
        raise GpuRagError("cannot listen", given=f"{host}:{port}: {error.strerror}", do=do) from error
    return bound


def url_of(bound: socket.socket) -> str:
    """The address of a bound socket, for people and programs."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: ASGIApp, desk: Desk, bound: socket.socket, settings: ServeSettings, on_ready: Callable[[], None]) -> None:
    """Serves until SIGINT or SIGTERM, then ends as the settings say; a second signal fails all that is open at once."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=settings.max_connections,
        timeout_graceful_shutdown=int(settings.grace_seconds) + LAST_ROWS_S,
    )
    PatientProtocol.headers_s = settings.client_seconds
    asyncio.run(_Server(config, desk, settings.grace_seconds).until_told(bound, on_ready))


class _Server(uvicorn.Server):
    """uvicorn's server; signals are taken here, so that a stop by one is an end like any other."""

    def __init__(self, config: uvicorn.Config, desk: Desk, grace_s: float):
        super().__init__(config)
        self._desk, self._grace_s = desk, grace_s
        self._ending: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: `until_told` has done it."""
        yield

    async def until_told(self, bound: socket.socket, on_ready: Callable[[], None]) -> None:
        """Serve until a signal comes; on_ready is called when connections are accepted."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        serving = asyncio.ensure_future(self.serve(sockets=[bound]))
        while not self.started and not serving.done():
            await asyncio.sleep(0.005)
        if self.started:
            on_ready()
        await serving
        if self._ending is not None:
            await self._ending

    def _stop(self) -> None:
        if self._ending is None:
            self.should_exit = True
            self._ending = asyncio.ensure_future(self._desk.close(self._grace_s))
        else:
            self._desk.fail_all()


class PatientProtocol(H11Protocol):
    """HTTP on one connection; a client that does not send all headers of a request within `headers_s` is cut off."""

    headers_s = 30.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection is open: its first request is awaited."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Bytes have come: are the headers complete?"""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.headers_s, self.transport.close)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
