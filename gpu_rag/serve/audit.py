"""Audit log: one JSON line per request with time, client, path, status, duration; never a question's text."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gpu_rag.errors import StorageError

MAX_PATH_CHARS = 200
_ID = re.compile(r"[\w.:/+=-]{1,100}", re.ASCII)


class Audit:
    """The audit log of a server, appended to a file that only its owner can read. say(line): called when a line cannot
    be written, and when writing works again; the server continues."""

    def __init__(self, path: Path, say: Callable[[str], None]):
        """Open or create `path`. Raises StorageError."""
        self._path, self._say, self._fails = path, say, False
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError("the audit cannot be written", given=f"{path}: {error.strerror}") from error

    def write(self, key: str | None, method: str, path: str, status: int, ms: float, request_id: str) -> None:
        """Record the end of a request. key: the name of its client, None if there is none."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        row = {"time": time, "key": key, "method": method, "path": path[:MAX_PATH_CHARS], "status": status}
        line = json.dumps({**row, "ms": round(ms, 3), "request_id": request_id}).encode() + b"\n"
        try:
            whole = os.write(self._file, line) == len(line)
        except OSError:
            whole = False
        if whole == self._fails:
            self._say(f"the audit {'is' if whole else 'cannot be'} written{' again' if whole else ''}: {self._path}")
        self._fails = not whole

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def request_id(given: str | None) -> str:
    """The id of a request: the client's own if it is a short word, else a random one."""
    return given if given and _ID.fullmatch(given) else secrets.token_hex(8)
