"""Changes of the index that clients ask for: each is a `gpu-rag` command in a process of its own, one after another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from gpu_rag.serve.bodies import read_object
from gpu_rag.serve.refusal import Refusal

MOST_WAITING = 16
KEPT = 256  # changes whose outcome a client can still read
COUNTS = ("added", "changed", "removed", "copies", "rejects", "receipt")


class Changed(msgspec.Struct):
    """A change as clients see it. status: waiting, running, done, failed; result: COUNTS of the command."""

    change: str
    status: str = "waiting"
    result: dict[str, Any] | None = None
    error: str | None = None


class Changes:
    """Runs changes of an index. All of it runs in the event loop's thread.

    program: the words that run `gpu-rag`. index: the folder. settings: further words for all commands.
    """

    def __init__(self, program: Sequence[str], index: str, settings: Sequence[str] = ()):
        self._program, self._index, self._settings = list(program), index, list(settings)
        self._one = asyncio.Lock()
        self._changes: dict[str, Changed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._n = 0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> Changed:
        """Add documents; one whose id the index has replaces it. Raises Refusal (429)."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        return self._begin(["add", self._index, "-"], lines.encode())

    def remove(self, document: str) -> Changed:
        """Remove a document by its id. Raises Refusal (429)."""
        return self._begin(["remove", self._index, f"--doc={document}"], b"")

    def get(self, name: str) -> Changed:
        """A change by its name. Raises Refusal (404)."""
        if name not in self._changes:
            raise Refusal(404, "no such change", given=name[:80], expected="the name of a change of this server")
        return self._changes[name]

    def _begin(self, words: list[str], given: bytes) -> Changed:
        if len(self._tasks) >= MOST_WAITING:
            expected = f"at most {MOST_WAITING}"
            raise Refusal(429, "too many changes wait", expected=expected, headers={"Retry-After": "10"})
        self._n += 1
        change = self._changes[f"c{self._n}"] = Changed(f"c{self._n}")
        for name in list(self._changes)[:-KEPT]:
            del self._changes[name]
        task = asyncio.ensure_future(self._run(change, words, given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return change

    async def _run(self, change: Changed, words: list[str], given: bytes) -> None:
        async with self._one:
            change.status, pipe = "running", asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *self._program, *words, "--json", *self._settings, stdin=pipe, stdout=pipe, stderr=pipe
            )
            try:
                out, errors = await process.communicate(given)
            finally:
                with suppress(ProcessLookupError):  # the server stops: the next build goes on with what was made
                    if process.returncode is None:
                        process.terminate()
            if process.returncode == 0:
                document = json.loads(out)
                change.result, change.status = {name: document[name] for name in COUNTS}, "done"
            else:
                lines = errors.decode(errors="replace").strip().splitlines()
                change.status, change.error = "failed", lines[-1] if lines else f"exit status {process.returncode}"


def read_documents(raw: bytes) -> list[dict[str, Any]]:
    """The rows of a body {"documents": [{"id", "text", ...}, ...]}. Raises Refusal (400)."""
    rows = read_object(raw).get("documents")
    if not isinstance(rows, list) or not rows:
        raise Refusal(400, "no documents", expected='{"documents": [{"id": ..., "text": ...}]}')
    for row in rows:
        if not isinstance(row, dict) or not all(
            isinstance(row.get(name), str) and row[name] for name in ("id", "text")
        ):
            raise Refusal(400, "a document lacks an id or a text", expected='{"id": "...", "text": "..."}')
    return rows
