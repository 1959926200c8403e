"""Model servers that this process starts and stops: their processes, sockets and logs. Imports nothing of the product,
so that the program below starts at once.

usage: python own_server.py PARENT COMMAND...      Run a command in this process group, and end the whole group with it
or with the process that started this one.
"""

from __future__ import annotations

import ctypes
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

GRACE_S = 5.0  # time for a command to end when asked
STOP_S = GRACE_S + 5.0
PR_SET_PDEATHSIG = 1
MAX_SOCKET_BYTES = 100  # bytes of a path; the system's limit is 104 to 108
_LOG_BYTES = 256 * 2**10  # read from the end of a log
_ERROR = re.compile(r"\b(?:\w*(?:Error|Exception)|error): .+|the server ended with status .+")


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
