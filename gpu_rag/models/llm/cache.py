"""Replies kept in one SQLite file: no request is computed twice, and a killed run loses at most its last batch."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_rag.errors import GpuRagError, IndexCorrupt, IndexMismatch, ModelError, RequestFailed, StorageError
from gpu_rag.models.llm.interface import (
    LLM,
    OnReply,
    StreamingLLM,
    aborted,
    check_key,
    reply_from_record,
    reply_key,
    reply_record,
)
from gpu_rag.models.llm.service import as_streaming
from gpu_rag.models.sqlite_file import SqliteFile, rows_of_keys
from gpu_rag.types import Reply, Request

FORMAT = 1


class ReplyFile:
    """Replies by key, for several threads and processes.

    A write is one commit (synchronous=FULL, rollback journal: one plain file, no shared memory, so it also works on
    network disks and can be copied): killed at any time, the file holds every reply written before and opens as usual.
    Readers and writers wait up to 60 s for each other.
    """

    def __init__(self, path: Path):
        """Open or create `path`. Raises IndexCorrupt (not such a file), IndexMismatch (newer), StorageError."""
        self.path = Path(path)
        self._lock = threading.Lock()  # one connection may serve a caller's thread and a driver's
        self._file = SqliteFile(self.path, "reply cache", "move it away: replies are asked again")
        self.db = _open(self._file)

    def read(self, keys: Sequence[str]) -> dict[str, Reply]:
        """The replies that are there, with from_cache=True. Raises IndexCorrupt naming a row."""
        found: dict[str, Reply] = {}
        with self._lock, self._file.errors():
            for key, text in rows_of_keys(self.db, "SELECT key, reply FROM replies WHERE key", keys):
                try:
                    found[key] = reply_from_record(json.loads(text), from_cache=True)
                except (ValueError, KeyError, TypeError) as error:
                    raise IndexCorrupt("a cached reply cannot be read", given=f"{self.path}, key {key}") from error
        return found

    def write(self, replies: Sequence[tuple[str, Reply]]) -> None:
        """Add replies, durably; a key that is there keeps its reply."""
        if not replies:
            return
        rows = [(key, json.dumps(reply_record(reply), ensure_ascii=True)) for key, reply in replies]
        with self._lock, self._file.errors(), self.db:
            self.db.executemany("INSERT OR IGNORE INTO replies (key, reply) VALUES (?, ?)", rows)

    def __len__(self) -> int:
        """The number of replies."""
        with self._lock, self._file.errors():
            return int(self.db.execute("SELECT count(*) FROM replies").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.db.close()


def _open(file: SqliteFile) -> sqlite3.Connection:
    db = file.connect()
    try:
        with file.errors():
            found = int(db.execute("PRAGMA user_version").fetchone()[0])
            if found > FORMAT:
                given = f"{file.path}: format {found}"
                raise IndexMismatch("a newer reply cache", given=given, expected=f"<= {FORMAT}")
            db.execute("PRAGMA synchronous = FULL")
            if found < FORMAT:
                with db:
                    db.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT) WITHOUT ROWID")
                    db.execute(f"PRAGMA user_version = {FORMAT}")
    except (IndexMismatch, IndexCorrupt, StorageError):
        db.close()
        raise
    return db


COMMIT_EVERY = 32
COMMIT_S = 0.01
JOIN_S = 5.0


class CachedLLM:
    """An engine with a cache: it computes only what `path` does not have yet, by `complete` and by `submit` alike.

    Keys are `reply_key`: the same request to another model, or another attempt at it, is another key. Requests that are
    equal within a batch, or open at the same time, are computed once. A reply from the file, and the second and later
    of equal requests, has from_cache=True. Failures are not kept. A reply is committed within 10 ms, with those that
    came meanwhile: in `complete`, 32 at most, however long the engine is at the next one; by a thread where the caller
    of `poll` is away, in a long batch of its own. `poll` gives out what is committed, nothing else.
    """

    def __init__(self, llm: LLM, path: Path):
        """Open or create `path`. Raises IndexCorrupt (not such a file), IndexMismatch (newer), StorageError."""
        self.llm, self.path = llm, Path(path)
        self.name, self.content_hash = llm.name, llm.content_hash
        self.context_tokens, self.capable = llm.context_tokens, llm.capable
        self.file = ReplyFile(self.path)
        self._stream: StreamingLLM | None = None
        self._ready: dict[int, Reply | RequestFailed] = {}  # for the next `poll`
        self._waits: dict[int, _Sent] = {}  # by the caller's key; each is in here until `poll` gives it out
        self._sent: dict[str, _Sent] = {}  # by reply key: what an equal request may join
        self._n_sent = 0
        self._turn = threading.Lock()  # guards the engine's streaming face and what follows
        self._running: dict[int, _Sent] = {}  # by the number under which the engine knows it
        self._arrived: list[tuple[_Sent, Reply | RequestFailed]] = []  # finished, and not in the file yet
        self._kept: list[tuple[_Sent, Reply | RequestFailed]] = []  # for the next `poll`
        self._busy, self._closed = threading.Event(), False
        self._keeper: threading.Thread | None = None

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, as the engine counts."""
        return self.llm.count_tokens(text)

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order, from the file where it has them."""
        keys = [reply_key(self.llm, request) for request in requests]
        known: dict[str, Reply | RequestFailed] = dict(self.file.read(list(dict.fromkeys(keys))))
        first: dict[str, int] = {}
        for i, key in enumerate(keys):
            if key not in known:
                first.setdefault(key, i)
        if on_reply is not None:
            for i, key in enumerate(keys):
                if key in known:
                    on_reply(i, known[key])
        fresh = self._ask(requests, first, on_reply)
        replies: list[Reply | RequestFailed] = []
        for i, key in enumerate(keys):
            reply = known[key] if key in known else fresh[key]
            if key in first and i != first[key]:
                reply = _again(reply)
                if on_reply is not None:
                    on_reply(i, reply)
            replies.append(reply)
        return replies

    # --- the streaming face ---

    @property
    def n_open(self) -> int:
        """The number of keys that were submitted and not yet given out by `poll`."""
        return len(self._waits) + len(self._ready)

    def submit(self, key: int, request: Request) -> None:
        """Hand over a request; a kept reply is there for the next `poll`. Raises UsageError for a key that is open."""
        check_key(key, self._waits, self._ready)
        name = reply_key(self.llm, request)
        known = self.file.read([name])
        if known:
            self._ready[key] = known[name]
            return
        sent = self._sent.get(name)
        if sent is None:
            self._n_sent += 1
            sent = _Sent(name, self._n_sent, [])
            with self._turn:
                self._streaming().submit(sent.number, request)
                self._sent[name] = self._running[sent.number] = sent
            self._busy.set()
        sent.keys.append(key)
        self._waits[key] = sent

    def poll(self, timeout_s: float) -> list[tuple[int, Reply | RequestFailed]]:
        """Finished requests; see `StreamingLLM.poll`. Replies are in the file before they are given out."""
        found, self._ready = list(self._ready.items()), {}
        with self._turn:
            try:
                self._collect(0.0 if found or self._kept else timeout_s)
            except ModelError:
                if not found and not self._kept:
                    raise  # otherwise the next poll meets it again
            done, self._kept = self._kept, []
        for sent, reply in done:
            if self._sent.get(sent.name) is sent:
                del self._sent[sent.name]
            for i, key in enumerate(sent.keys):
                found.append((key, _again(reply) if i else reply))
                del self._waits[key]
        return found

    def abort(self, key: int) -> None:
        """Give up a request; the engine is told when no equal one waits for the same reply."""
        sent = self._waits.get(key)
        if sent is None:
            return
        if len(sent.keys) > 1:
            sent.keys.remove(key)
            del self._waits[key]
            self._ready[key] = aborted()
            return
        if self._sent.get(sent.name) is sent:  # an equal request from here on is computed anew
            del self._sent[sent.name]
        with self._turn:
            self._streaming().abort(sent.number)

    def close(self) -> None:
        """Close the file and the engine."""
        with self._turn:
            self._closed = True
            self._busy.set()
        if self._keeper is not None:
            self._keeper.join(JOIN_S)
        self.file.close()
        (self._stream or self.llm).close()

    def __len__(self) -> int:
        """The number of replies in the file."""
        return len(self.file)

    def _streaming(self) -> StreamingLLM:
        if self._stream is None:
            self._stream = as_streaming(self.llm)
            self._keeper = threading.Thread(target=self._keep, name="replies", daemon=True)
            self._keeper.start()
        return self._stream

    def _collect(self, timeout_s: float) -> None:
        """Take what the engine has finished, waiting so long for the first, and commit it."""
        if self._running and not self._arrived:
            found = self._streaming().poll(timeout_s)
            self._arrived = [(self._running.pop(number), reply) for number, reply in found]
        self.file.write([(sent.name, reply) for sent, reply in self._arrived if isinstance(reply, Reply)])
        self._kept += self._arrived
        self._arrived = []

    def _keep(self) -> None:
        """Commits what comes while nobody polls. What goes wrong is met again, and said, by the next `poll`."""
        while self._busy.wait() and not self._closed:
            time.sleep(COMMIT_S)
            if self._turn.acquire(blocking=False):
                with suppress(GpuRagError):
                    self._collect(0.0)
                if not (self._running or self._arrived or self._closed):
                    self._busy.clear()
                self._turn.release()

    def _ask(
        self, requests: Sequence[Request], first: dict[str, int], on_reply: OnReply | None
    ) -> dict[str, Reply | RequestFailed]:
        keys, places = list(first), list(first.values())
        commits = _Commits(self.file)

        def keep(i: int, reply: Reply | RequestFailed) -> None:
            if isinstance(reply, Reply):
                commits.add(keys[i], reply)
            if on_reply is not None:
                on_reply(places[i], reply)

        if not keys:
            return {}
        try:
            replies = self.llm.complete([requests[i] for i in places], keep)
        finally:  # an engine that gives up half-way has still finished these
            commits.close()
        return dict(zip(keys, replies, strict=True))


class _Commits:
    """The replies of one batch on their way to the file: none waits longer than COMMIT_S, a commit has COMMIT_EVERY."""

    def __init__(self, file: ReplyFile):
        self._file = file
        self._lock = threading.Lock()  # guards what follows
        self._waiting: list[tuple[str, Reply]] = []
        self._committed = time.monotonic()
        self._timer: threading.Timer | None = None

    def add(self, key: str, reply: Reply) -> None:
        """A reply has come."""
        with self._lock:
            self._waiting.append((key, reply))
            since = time.monotonic() - self._committed
            if len(self._waiting) >= COMMIT_EVERY or since >= COMMIT_S:
                self._write()
            elif self._timer is None:  # the next reply may be long in coming
                self._timer = threading.Timer(COMMIT_S - since, self._late)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Commit what is left."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._write()

    def _late(self) -> None:
        with self._lock:
            self._timer = None
            with suppress(StorageError, IndexCorrupt):  # what could not be written waits on: the next commit says so
                self._write()

    def _write(self) -> None:
        self._file.write(self._waiting)
        self._waiting.clear()
        self._committed = time.monotonic()


@dataclass(eq=False)
class _Sent:
    """One request at the engine. name: its reply key; number: the engine's key; keys: the callers that wait for it."""

    name: str
    number: int
    keys: list[int]


def _again(reply: Reply | RequestFailed) -> Reply | RequestFailed:
    """The reply that a second request for it gets."""
    return replace(reply, from_cache=True) if isinstance(reply, Reply) else reply
