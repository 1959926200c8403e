"""A model server that this process starts, restarts and stops: its processes, its socket, its log."""

from __future__ import annotations

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

from gpu_rag.models.llm import guard

STOP_S = guard.GRACE_S + 5.0
LONGEST_SOCKET = 100  # bytes of a path; the system's own limit is 104 to 108
_LOG_BYTES = 256 * 2**10  # read from the end of a log
_ERROR = re.compile(r"\b(?:\w*(?:Error|Exception)|error): .+|the server ended with status .+")


class OwnServer:
    """One model server in a process group of its own, at a Unix socket in a folder that only this user can enter.

    command: the server's program and options, without the place where it listens; environment: variables beside ours;
    key_name: the variable by which it learns its API key. Where the path of a socket would be too long it listens on a
    free port of the loopback address. `guard` ends the whole group when this process ends, however it ends.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], key_name: str):
        """Make the folder. Nothing is started yet."""
        self.name, self._command = name, list(command)
        self.key = secrets.token_urlsafe(24)
        self._environment = {**environment, key_name: self.key}
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-rag-"))  # made with mode 0700
        path = self.folder / "socket"
        self.socket = str(path) if len(os.fsencode(path)) <= LONGEST_SOCKET else ""
        self.url = "http://localhost/v1" if self.socket else f"http://127.0.0.1:{_free_port()}/v1"
        self._log = self.folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def start(self) -> None:
        """Start the server; its log begins anew. It ends with the thread that calls this."""
        place = ["--uds", self.socket] if self.socket else ["--host", "127.0.0.1", "--port", self.url[17:-3]]
        Path(self.socket or self._log).unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, str(os.getpid()), *self._command, *place],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process group of the server that runs, or ran last; 0 before the first."""
        return 0 if self._process is None else self._process.pid

    def ended(self) -> bool:
        """Whether the server does not run."""
        return self._process is None or self._process.poll() is not None

    def last_words(self) -> str:
        """The errors in the log, the first and the last, or its last line."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - _LOG_BYTES))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return "no log"
        errors = list(dict.fromkeys(found[0][:300] for line in lines if (found := _ERROR.search(line))))
        if not errors:
            return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "an empty log")
        return " ... ".join(dict.fromkeys([errors[0], errors[-1]]))

    def stop(self) -> None:
        """End the server: asked first, killed after some seconds. A forked process leaves its parent's alone."""
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what a killed guard left
        process.wait()

    def close(self) -> None:
        """`stop`, and remove the folder."""
        if os.getpid() == self._owner:
            self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
