"""Changes of the index that clients request. Each is a `gpu-rag` command in its own process; one runs at a time."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from gpu_rag.serve.bodies import read_object
from gpu_rag.serve.refusal import Refusal

MAX_WAITING = 16
KEPT = 256  # changes whose outcome a client can read
COUNTS = ("added", "changed", "removed", "copies", "rejects", "receipt")


class Changed(msgspec.Struct):
    """A change as its client sees it. change: its name; status: waiting, running, done or failed; result: COUNTS of the
    command."""

    change: str
    status: str = "waiting"
    result: dict[str, Any] | None = None
    error: str | None = None


class Changes:
    """Runs changes of indexes in the order of requests. Call it only in the thread of the event loop.

    program: the command line that starts `gpu-rag`. settings: options of all commands. Arguments of the methods: owner:
    who asked for a change, and is the only one who sees it; folder: folder of the index.
    """

    def __init__(self, program: Sequence[str], settings: Sequence[str] = ()):
        self._program, self._settings = list(program), list(settings)
        self._running = asyncio.Lock()
        self._changes: dict[str, tuple[Hashable, Changed]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, owner: Hashable, folder: str, rows: Sequence[Mapping[str, Any]]) -> Changed:
        """Add documents; one replaces an added document of its id, and fails with the id of a file. Raises Refusal
        (429)."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        return self._begin(owner, ["add", folder, "-"], lines.encode())

    def remove(self, owner: Hashable, folder: str, document: str) -> Changed:
        """Remove a document by its id. Raises Refusal (429)."""
        return self._begin(owner, ["remove", folder, f"--doc={document}"], b"")

    def get(self, owner: Hashable, name: str) -> Changed:
        """A change by its name. Raises Refusal (404)."""
        asker, change = self._changes.get(name, (None, None))
        if change is None or asker != owner:
            raise Refusal(404, "no such change", given=name[:80], expected="the name of a change of this client")
        return change

    def _begin(self, owner: Hashable, arguments: list[str], stdin: bytes) -> Changed:
        """Start a command as soon as the earlier ones have ended."""
        if len(self._tasks) >= MAX_WAITING:
            expected = f"at most {MAX_WAITING}"
            raise Refusal(429, "too many changes wait", expected=expected, headers={"Retry-After": "10"})
        name = secrets.token_hex(8)  # no server gives it twice, and nobody guesses it
        change = Changed(name)
        self._changes[name] = owner, change
        for old in list(self._changes)[:-KEPT]:
            del self._changes[old]
        task = asyncio.ensure_future(self._run(change, arguments, stdin))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return change

    async def _run(self, change: Changed, arguments: list[str], stdin: bytes) -> None:
        """Run a command, and record its outcome in `change`."""
        async with self._running:
            change.status = "running"
            try:
                await self._finish(change, arguments, stdin)
            except (OSError, ValueError, KeyError) as error:  # no process, a word with NUL, output of another form
                change.status, change.error = "failed", f"the change could not be run: {error}"

    async def _finish(self, change: Changed, arguments: list[str], stdin: bytes) -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._program, *arguments, "--json", *self._settings, stdin=pipe, stdout=pipe, stderr=pipe
        )
        try:
            out, errors = await process.communicate(stdin)
        finally:  # the server may stop; the next build resumes this one
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    process.terminate()
        if process.returncode == 0:
            document = json.loads(out)
            change.result, change.status = {name: document[name] for name in COUNTS}, "done"
        else:
            lines = errors.decode(errors="replace").strip().splitlines()
            change.status, change.error = "failed", lines[-1] if lines else f"exit status {process.returncode}"


def read_documents(raw: bytes) -> list[dict[str, Any]]:
    """Rows of documents from a body {"documents": [{"id", "text", ...}, ...]}. Raises Refusal (400)."""
    rows = read_object(raw).get("documents")
    if not isinstance(rows, list) or not rows:
        raise Refusal(400, "no documents", expected='{"documents": [{"id": ..., "text": ...}]}')
    for row in rows:
        values = [row.get(name) for name in ("id", "text")] if isinstance(row, dict) else [None]
        if not all(isinstance(value, str) and value for value in values):
            raise Refusal(400, "a document lacks an id or a text", expected='{"id": "...", "text": "..."}')
    return rows
