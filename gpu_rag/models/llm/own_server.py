"""Model servers that this process starts, restarts and stops: their processes, sockets and logs, and reactions to a
death.

usage: python own_server.py PARENT COMMAND...      Run a command in this process group, and end the whole group with it
or with the process that started this one.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_rag.errors import ModelError, RequestFailed

if TYPE_CHECKING:  # as a program this file starts at once, without the rest
    from gpu_rag.models.llm.http_servers import Card, Job, Server, Servers
    from gpu_rag.models.llm.http_wire import Failure

GRACE_S = 5.0  # time for a command to end when asked
STOP_S = GRACE_S + 5.0
PR_SET_PDEATHSIG = 1
START_S = 1800.0  # time for a server to answer
START_LOOK_S = 0.2
LOOK_S = 10.0  # limit of GET /health and /metrics
ATTEND_S = 0.5  # pause between checks whether a server runs
RESTARTS = 4  # in a row, without a reply between them
RESTART_S = 1.0  # pause before the first restart, doubled each time: a driver or a device may need time
MAX_RESTART_S = 60.0
GROUPS = 16  # after a death, the requests that ran are retried in this many groups, one after the other
PREEMPTIONS = re.compile(r"^vllm:num_preemptions_total(?:\{.*\})? (\S+)$", re.MULTILINE)
QUEUED_S = re.compile(r"^vllm:request_queue_time_seconds_sum(?:\{.*\})? (\S+)$", re.MULTILINE)
MAX_SOCKET_BYTES = 100  # bytes of a path; the system's limit is 104 to 108
_LOG_BYTES = 256 * 2**10  # read from the end of a log
_ERROR = re.compile(r"\b(?:\w*(?:Error|Exception)|error): .+|the server ended with status .+")
_log = logging.getLogger(__name__)


class OwnServer:
    """One model server in a process group of its own, at a Unix socket in a folder that only this user can enter.

    command: the server's program and options, without its address; environment: additional variables; key_name: the
    variable with its API key. If the path of a socket would be too long, it listens on a free port of the loopback
    address. `main` ends the whole group when this process ends, for any reason.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], key_name: str):
        """Make the folder. Starts nothing yet."""
        self.name, self._command = name, list(command)
        self.key = secrets.token_urlsafe(24)
        self._environment = {**environment, key_name: self.key}
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-rag-"))  # mode 0700
        path = self.folder / "socket"
        self.socket = str(path) if len(os.fsencode(path)) <= MAX_SOCKET_BYTES else ""
        self.url = "http://localhost/v1" if self.socket else f"http://127.0.0.1:{_free_port()}/v1"
        self._log = self.folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def start(self) -> None:
        """Start the server with a new log. It ends with the thread that calls this."""
        place = ["--uds", self.socket] if self.socket else ["--host", "127.0.0.1", "--port", self.url[17:-3]]
        Path(self.socket or self._log).unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, str(os.getpid()), *self._command, *place],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process group of the server that runs, or ran last; 0 before the first start."""
        return 0 if self._process is None else self._process.pid

    def ended(self) -> bool:
        """Whether the server does not run."""
        return self._process is None or self._process.poll() is not None

    def last_words(self) -> str:
        """First and last error in the log, or its last line."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - _LOG_BYTES))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return "no log"
        errors = list(dict.fromkeys(match[0][:300] for line in lines if (match := _ERROR.search(line))))
        if not errors:
            return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "an empty log")
        return " ... ".join(dict.fromkeys([errors[0], errors[-1]]))

    def stop(self) -> None:
        """End the server: ask first, kill after some seconds. A forked process leaves its parent's server alone."""
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # processes that a killed guard left
        process.wait()

    def close(self) -> None:
        """Stop the server, and remove the folder."""
        if os.getpid() == self._owner:
            self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Keeper:
    """Keeper that starts, restarts and stops our own servers among `servers`, in the thread of their event loop.

    It restarts a server that dies or stops answering, at most RESTARTS times without a reply. The requests that ran at
    that time are retried in groups, one group at a time; after their second death each runs alone. A request that
    runs alone at its second or later death is given up. So a request that kills servers takes no others with it.
    """

    def __init__(self, servers: Servers):
        self._servers = servers
        self._loop = asyncio.get_running_loop()

    async def start(self, server: Server) -> Card | ModelError:
        """Start a server. Returns its model card once it answers."""
        own = _own(server)
        own.start()
        until = self._loop.time() + START_S
        while not own.ended() and self._loop.time() < until:
            await asyncio.sleep(START_LOOK_S)
            if not isinstance(await server.exchanger.get("../health", LOOK_S), bytes):
                continue
            card = await self._servers.look(server)
            if isinstance(card, (dict, ModelError)):
                return card
        given = f"{server.name}: {own.last_words()}" if own.ended() else f"no answer in {START_S:g} s"
        await asyncio.to_thread(own.stop)
        return ModelError("the model server did not start", given=given)

    async def attend(self) -> None:
        """Check now and then whether the servers still run."""
        while True:
            await asyncio.sleep(ATTEND_S)
            for server in self._servers.servers:
                if server.own is not None and server.live and _own(server).ended():
                    self._servers.look_at(server)

    async def tend(self, server: Server) -> None:
        """Check a server whose state is unknown; restart it if it is dead."""
        if not await self._is_well(server):
            await self._revive(server)
            return
        server.watch = None
        questions, server.in_question = server.in_question, []
        for job, failure in questions:
            self._servers.try_again(job, failure)
        self._servers.dispatch()

    async def sleep(self) -> None:
        """Let idle servers free the memory of their GPUs until their next request."""
        for server in self._servers.servers:
            if server.own is not None and server.live and not server.running and not server.asleep:
                server.asleep = True
                await server.exchanger.post("../sleep?level=1", b"", self._servers.patience.timeout_s)

    async def wake(self, server: Server) -> None:
        """Wake a sleeping server; concurrent callers share one request."""
        if server.waking is None:
            request = server.exchanger.post("../wake_up", b"", self._servers.patience.timeout_s)
            server.waking = self._loop.create_task(request)
        await asyncio.shield(server.waking)
        server.asleep, server.waking = False, None

    async def count(self) -> None:
        """Read the servers' preemptions and queue times."""
        for server in self._servers.servers:
            if server.own is not None and server.live:
                answer = await server.exchanger.get("../metrics", LOOK_S)
                if isinstance(answer, bytes):
                    text = answer.decode("utf-8", "replace")
                    server.counted = (int(_metric(PREEMPTIONS, text)), _metric(QUEUED_S, text))

    async def _is_well(self, server: Server) -> bool:
        own, patience = _own(server), self._servers.patience
        for n_before in range(patience.retries + 1):
            answer = await server.exchanger.get("../health", LOOK_S)
            if own.ended() or isinstance(answer, bytes):
                return not own.ended()
            await asyncio.sleep(patience.pause_s(n_before))
        return False

    async def _revive(self, server: Server) -> None:
        """Restart a server, and set apart the requests that ran when it died."""
        own = _own(server)
        server.live = False
        server.n_deaths += 1
        reason = own.last_words()
        self._suspect(server, self._took_part(server), reason)
        server.before = (server.before[0] + server.counted[0], server.before[1] + server.counted[1])
        server.counted = (0, 0.0)
        _log.warning("%s died, %d times since its last reply: %s", server.name, server.n_deaths, reason)
        await asyncio.to_thread(own.stop)
        given = f"{server.name}: {reason}; {server.n_deaths} deaths without a reply between them"
        dead = ModelError("the model server died", given=given, do="run again to continue")
        if server.n_deaths <= RESTARTS:
            await asyncio.sleep(min(RESTART_S * 2 ** (server.n_deaths - 1), MAX_RESTART_S))
            card = await self.start(server)
            if isinstance(card, dict):
                server.live, server.asleep, server.watch = True, False, None
                self._servers.dispatch()
                return
            dead = card
        server.watch = None
        self._servers.put_down(server, dead)

    def _took_part(self, server: Server) -> list[Job]:
        """Requests that ran when a server died. Requests that never reached it are sent again at once."""
        running: list[tuple[Job, Failure | None]] = [(job, None) for job in server.running]
        questions, server.in_question = server.in_question, []
        suspects = []
        for job, failure in [*questions, *running]:
            task, job.task = job.task, None
            server.left(job, self._loop.time())
            if task is not None:
                task.cancel()
            if failure is not None and failure.unreached:
                self._servers.send_again(job)
            else:
                suspects.append(job)
        return suspects

    def _suspect(self, server: Server, jobs: list[Job], reason: str) -> None:
        """Give up the request that surely killed a server; put the others into groups to be retried."""
        groups: list[list[Job]] = []
        size = max(1, len(jobs) // GROUPS)
        for job in jobs:
            job.deaths += 1
            if job.unwanted or job.over:
                self._servers.abort([job])
            elif job.deaths > 1 and len(jobs) == 1:
                given = f"{server.name}: {reason}"
                what = f"the model server died {job.deaths} times while this request ran, at last alone"
                self._servers.end(job, RequestFailed(what, given=given))
            elif job.deaths == 1 and groups and len(groups[-1]) < size:
                groups[-1].append(job)
            else:
                groups.append([job])
        server.suspects.extendleft(reversed(groups))


def _own(server: Server) -> OwnServer:
    assert isinstance(server.own, OwnServer)
    return server.own


def _metric(name: re.Pattern[str], text: str) -> float:
    """Sum of a metric over all lines that report it."""
    return sum(float(number) for number in name.findall(text))


# --- the program that a server runs under ---------------------------------------------------------


class Ended(Exception):
    """The parent has ended, or has asked this process to end."""


def end_with_parent(number: int) -> None:
    """Let the system send this process a signal when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Ended


def main(parent: int, command: list[str]) -> None:
    """Run the command. Never returns: it kills the group, including this process."""
    child = None
    try:
        signal.signal(signal.SIGTERM, _end)
        end_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            raise Ended
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: end_with_parent(signal.SIGKILL))
        print(f"the server ended with status {child.wait()}", flush=True)
    except Ended:
        if child is not None:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
    finally:
        sys.stdout.flush()
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
