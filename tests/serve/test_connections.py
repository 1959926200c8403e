"""Connections of clients that send or read slowly, or not at all; files that many of them need; names of loopback."""

import asyncio
import resource
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gpu_rag.errors import UsageError
from gpu_rag.serve import server
from gpu_rag.settings.sections import ServeSettings

REQUEST = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Loop:
    """An event loop whose timers fire when the test says so, and whose tasks never run."""

    def __init__(self):
        self.timers = []

    def call_later(self, seconds, call):
        timer = SimpleNamespace(seconds=seconds, call=call, on=True)
        timer.cancel = lambda: setattr(timer, "on", False)
        self.timers.append(timer)
        return timer

    def create_task(self, work, **options):
        work.close()
        return Mock()

    def pass_time(self):
        """Every timer that is set fires once."""
        due, self.timers = [timer for timer in self.timers if timer.on], []
        for timer in due:
            timer.call()


class Transport(Mock):
    """A connection of which the test says how much waits to be sent."""

    waits, closing, aborted = 0, False, False

    def get_extra_info(self, name):
        return None

    def get_write_buffer_size(self):
        return self.waits

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.aborted = True


@pytest.fixture
def connect(monkeypatch):
    """connect(): a protocol of one server over a transport, and its loop."""
    monkeypatch.setattr(server.PatientProtocol, "client_s", 30.0)
    config = server.config_of(lambda scope, receive, send: asyncio.sleep(0), ServeSettings(max_connections=2))
    config.load()
    state = server.uvicorn.server.ServerState()

    def made():
        loop, transport = Loop(), Transport()
        protocol = server.PatientProtocol(config, state, {}, loop)
        protocol.connection_made(transport)
        return protocol, transport, loop

    return made


def test_headers_have_a_time_and_a_request_under_way_has_not(connect):
    _, slow, loop = connect()
    loop.pass_time()
    assert slow.closing
    protocol, slow, loop = connect()
    protocol.data_received(REQUEST[:20])
    loop.pass_time()
    assert slow.closing, "half of the headers are none"
    protocol, quick, loop = connect()
    protocol.data_received(REQUEST)
    loop.pass_time()
    assert not quick.closing and not quick.aborted
    protocol.cycle.response_complete = True
    protocol.data_received(b"GET ")  # of the next request
    loop.pass_time()
    assert quick.closing


@pytest.mark.parametrize("ended", [True, False])
def test_a_client_that_does_not_read_is_cut_off(connect, ended):
    """A connection that closes waits until all is sent, so for good; one whose response is too large waits too."""
    protocol, transport, loop = connect()
    protocol.data_received(REQUEST)
    transport.waits = 100_000
    if ended:
        transport.close()
    else:
        protocol.pause_writing()
    loop.pass_time()
    assert not transport.aborted, "it had no time yet"
    transport.waits -= server.MIN_BYTES - 1
    loop.pass_time()
    assert transport.aborted
    protocol.connection_lost(None)
    assert not [timer for timer in loop.timers if timer.on]


def test_a_client_that_reads_slowly_is_waited_for(connect):
    protocol, transport, loop = connect()
    protocol.data_received(REQUEST)
    protocol.pause_writing()
    transport.waits = 1_000_000
    while transport.waits > server.MIN_BYTES:
        loop.pass_time()
        transport.waits -= server.MIN_BYTES
    protocol.resume_writing()  # it has taken nearly all, and the next piece waits
    protocol.pause_writing()
    transport.waits = 1_000_000
    loop.pass_time()
    assert not transport.aborted
    loop.pass_time()
    assert transport.aborted


def test_what_waits_for_a_client_of_a_stream_is_no_fault_of_it(connect):
    protocol, transport, loop = connect()
    protocol.data_received(REQUEST)
    transport.waits = 1000  # of rows that come all the time: writing was not paused
    for _ in range(5):
        loop.pass_time()
    assert not transport.aborted


def test_connections_far_beyond_the_limit_are_cut_off(connect):
    open_ = [connect() for _ in range(2 + server.SPARE)]
    assert not [transport for _, transport, _ in open_ if transport.aborted]
    protocol, transport, loop = connect()
    assert transport.aborted and not loop.timers
    protocol.connection_lost(None)
    open_[0][0].connection_lost(None)
    assert not connect()[1].aborted


def test_the_process_may_open_the_files_that_its_connections_need(monkeypatch):
    set_to = []
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: set_to.append(limits))
    others = server.SPARE + server.BACKLOG + server.OTHER_FILES
    for soft, hard, expected in (
        (256, 100_000, [(1024 + others, 100_000)]),
        (256, resource.RLIM_INFINITY, [(1024 + others, resource.RLIM_INFINITY)]),
        (1024 + others, 1024 + others, []),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, []),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda what, found=(soft, hard): found)
        set_to.clear()
        server.allow_files(1024)
        assert set_to == expected
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, 1024))
    told = rf"max_connections=1024, 1024 open files \(ulimit -Hn\); expected at most {1024 - others}$"
    with pytest.raises(UsageError, match=told):
        server.allow_files(1024)


def test_a_name_that_stands_for_loopback_is_checked_too(served, index):
    """The bound address counts, not its name: a page whose name was rebound is refused under any name."""
    process = served(index, "--host", "127.1", "--set", "models.llm=none", "--set", "serve.warm=false")
    for name, status in {"127.1": 200, "localhost": 200, "127.0.0.1:80": 200, "evil.example": 421}.items():
        assert process.client.get("/health", headers={"host": name}).status_code == status, name
    assert process.stop() == 0 and process.err == "", "no warning of an address that others reach"
