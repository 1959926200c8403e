"""The process of a server: its socket, its signals, and its shutdown."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpu_rag.errors import BadInput, GpuRagError, UsageError
from gpu_rag.serve.admission import Admission
from gpu_rag.serve.keys import KeyFile
from gpu_rag.settings.sections import ServeSettings

OnReady = Callable[[], None]
BACKLOG = 512
LAST_ROWS_S = 5  # time for the rows of questions failed at shutdown
SPARE = 64  # connections beyond the limit that get an error response; more are cut off
OTHER_FILES = 256  # files that the engine may have open in addition to connections
MIN_BYTES = 64 * 1024  # bytes that a waiting client must read within the time limit


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, so that a port in use is noticed before models are loaded.

    Raises UsageError for a name that is not an address, GpuRagError if the system refuses.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: an impossible name
        why = getattr(error, "strerror", None) or "not a name of a host"
        raise UsageError("no such address", given=f"{host[:80]}: {why}", expected="such as 127.0.0.1") from error
    bound = socket.socket(family, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        do = "choose another --port, or 0 for any that is free"
        raise GpuRagError("cannot listen", given=f"{host}:{port}: {error.strerror}", do=do) from error
    return bound


def allow_files(n_connections: int) -> None:
    """Raise the limit of open files to what connections and engine need. Raises UsageError if that is not allowed.

    Otherwise a full server could no longer read its own index.
    """
    reserve = SPARE + BACKLOG + OTHER_FILES  # a whole backlog may be accepted before any of it is cut off
    needed = n_connections + reserve
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        given = f"serve.max_connections={n_connections}, {hard} open files (ulimit -Hn)"
        expected = f"at most {hard - reserve}" if hard > reserve else f"{needed} open files"
        raise UsageError("more connections than the system allows", given=given, expected=expected)
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def check_tls(settings: ServeSettings) -> bool:
    """Whether https is used. Raises BadInput for unusable files, before models are loaded."""
    cert, key = settings.tls_cert, settings.tls_key
    if not cert and not key:
        return False
    if not cert or not key:
        given, expected = f"serve.tls_{'cert' if cert else 'key'} alone", "serve.tls_cert and serve.tls_key"
        raise BadInput("https needs a certificate and its key", given=given, expected=expected)
    try:
        # The empty password makes a protected key fail instead of asking on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:  # also of ssl
        given = f"{cert}, {key}: {error}"
        raise BadInput("the certificate or its key cannot be used", given=given, expected="PEM files") from error
    return True


def run(app: ASGIApp, admission: Admission, bound: socket.socket, on_ready: OnReady, keys: KeyFile | None) -> None:
    """Serve until SIGINT or SIGTERM, then shut down as the settings say. A second signal fails open questions. SIGHUP
    reads the keys again."""
    server = _Server(config_of(app, admission.settings.serve), admission, on_ready, keys)
    asyncio.run(server.serve(sockets=[bound]))


def config_of(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    """The uvicorn configuration of the application."""
    PatientProtocol.client_s = settings.client_seconds
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="error",  # clients see their own errors, which are counted and must not fill the log
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        limit_concurrency=settings.max_connections,
        timeout_graceful_shutdown=int(settings.grace_seconds) + LAST_ROWS_S,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, with a shutdown on signals as set in the settings. keys: read again on SIGHUP, and when their
    file has changed."""

    def __init__(self, config: uvicorn.Config, admission: Admission, on_ready: OnReady, keys: KeyFile | None):
        super().__init__(config)
        self._admission, self._on_ready, self._keys = admission, on_ready, keys
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if self._keys is not None:
            loop.add_signal_handler(signal.SIGHUP, self._keys.reload)
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: look at the file of keys once a second."""
        if self._keys is not None and counter % 10 == 0:
            self._keys.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down: connections first, then waits for questions."""
        await super().shutdown(sockets)
        if self._ending is not None:
            await self._ending

    def _stop(self) -> None:
        if self._ending is None:
            self.should_exit = True
            self._ending = asyncio.ensure_future(self._admission.close(self._admission.settings.serve.grace_seconds))
        else:
            self._admission.fail_all()


class PatientProtocol(H11Protocol):
    """HTTP on one connection. It is cut off if its client does not send all headers of a request within `client_s`, or
    reads less than MIN_BYTES of a waiting response in that time."""

    client_s = 30.0
    _deadline: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _stuck = 0  # unsent bytes at the last check

    def connection_made(self, transport: Any) -> None:
        """A connection is open: wait for its first request."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency + SPARE:
            transport.abort()
            return
        self._await_headers()
        self._look = self.loop.call_later(self.client_s, self._look_at_client)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived: check whether the headers are complete."""
        super().data_received(data)
        self._await_headers()

    def resume_writing(self) -> None:
        """The client has read all waiting data."""
        self._stuck = 0
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        for timer in (self._deadline, self._look):
            if timer is not None:
                timer.cancel()
        self._deadline = self._look = None
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.client_s, self.transport.close)

    def _look_at_client(self) -> None:
        """Cut off a client that does not read: while writing is paused, only reading shrinks the buffer."""
        waits = self.transport.get_write_buffer_size()
        if self._stuck and waits > self._stuck - MIN_BYTES:
            self.transport.abort()
            return
        self._stuck = waits if self.flow.write_paused or self.transport.is_closing() else 0
        self._look = self.loop.call_later(self.client_s, self._look_at_client)
