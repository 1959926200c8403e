"""Replies kept in one SQLite file, so that nothing is asked twice and a killed run loses at most its last batch."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpu_rag.errors import IndexCorrupt, IndexMismatch, RequestFailed, StorageError
from gpu_rag.models.llm.interface import LLM, OnReply, reply_from_record, reply_key, reply_record
from gpu_rag.types import Reply, Request

FORMAT = 1
COMMIT_EVERY = 32
COMMIT_S = 0.05
BUSY_S = 60.0
KEYS_A_QUERY = 500


class CachedLLM:
    """An engine with a memory: `complete` asks `llm` only what `path` does not hold yet.

    Keys are `reply_key`: the same request to another model, or another attempt at it, is another key. Requests that are
    equal within a batch are asked once. A reply from the file, and the second and later of equal requests, has
    from_cache=True. Failures are not kept. A commit (synchronous=FULL, rollback journal: one plain file, no shared
    memory, so it also works on network disks and can be copied) follows a reply when 32 wait or the last commit is 50
    ms ago, so behind a slow engine each reply is safe as it comes, and the end of every batch, before `complete`
    returns; killed in between, the file holds every reply committed before and opens as usual. Readers and several
    writers may share the file: each waits up to 60 s for the other.
    """

    def __init__(self, llm: LLM, path: Path):
        """Open or create `path`. Raises IndexCorrupt (not such a file), IndexMismatch (newer), StorageError."""
        self.llm, self.path = llm, Path(path)
        self.name, self.content_hash = llm.name, llm.content_hash
        self.context_tokens, self.capable = llm.context_tokens, llm.capable
        self._lock = threading.Lock()  # one connection may serve a caller's thread and a driver's
        self._db = _open(self.path)

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, as the engine counts."""
        return self.llm.count_tokens(text)

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order, from the file where it has them."""
        keys = [reply_key(self.llm, request) for request in requests]
        known: dict[str, Reply | RequestFailed] = dict(self._read(list(dict.fromkeys(keys))))
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
                reply = replace(reply, from_cache=True) if isinstance(reply, Reply) else reply
                if on_reply is not None:
                    on_reply(i, reply)
            replies.append(reply)
        return replies

    def close(self) -> None:
        """Close the file and the engine."""
        with self._lock:
            self._db.close()
        self.llm.close()

    def __len__(self) -> int:
        """How many replies the file holds."""
        with self._lock, _storage_errors(self.path):
            return int(self._db.execute("SELECT count(*) FROM replies").fetchone()[0])

    def _ask(
        self, requests: Sequence[Request], first: dict[str, int], on_reply: OnReply | None
    ) -> dict[str, Reply | RequestFailed]:
        keys, places = list(first), list(first.values())
        waiting: list[tuple[str, Reply]] = []
        committed = time.monotonic()

        def keep(i: int, reply: Reply | RequestFailed) -> None:
            nonlocal committed
            if isinstance(reply, Reply):
                waiting.append((keys[i], reply))
            if len(waiting) >= COMMIT_EVERY or time.monotonic() - committed >= COMMIT_S:
                self._write(waiting)
                waiting.clear()
                committed = time.monotonic()
            if on_reply is not None:
                on_reply(places[i], reply)

        if not keys:
            return {}
        try:
            replies = self.llm.complete([requests[i] for i in places], keep)
        finally:  # an engine that gives up half-way has still finished these
            self._write(waiting)
        return dict(zip(keys, replies, strict=True))

    def _read(self, keys: list[str]) -> Iterator[tuple[str, Reply]]:
        with self._lock, _storage_errors(self.path):
            for start in range(0, len(keys), KEYS_A_QUERY):
                some = keys[start : start + KEYS_A_QUERY]
                marks = ",".join("?" * len(some))
                for key, text in self._db.execute(f"SELECT key, reply FROM replies WHERE key IN ({marks})", some):
                    try:
                        yield key, reply_from_record(json.loads(text), from_cache=True)
                    except (ValueError, KeyError, TypeError) as error:
                        raise IndexCorrupt("a cached reply cannot be read", given=f"{self.path}, key {key}") from error

    def _write(self, replies: list[tuple[str, Reply]]) -> None:
        if not replies:
            return
        rows = [(key, json.dumps(reply_record(reply), ensure_ascii=True)) for key, reply in replies]
        with self._lock, _storage_errors(self.path), self._db:
            self._db.executemany("INSERT OR IGNORE INTO replies (key, reply) VALUES (?, ?)", rows)


def _open(path: Path) -> sqlite3.Connection:
    with _storage_errors(path):
        db = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    try:
        with _storage_errors(path):
            found = int(db.execute("PRAGMA user_version").fetchone()[0])
            if found > FORMAT:
                raise IndexMismatch("a newer reply cache", given=f"{path}: format {found}", expected=f"<= {FORMAT}")
            db.execute("PRAGMA synchronous = FULL")
            if found < FORMAT:
                with db:
                    db.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT) WITHOUT ROWID")
                    db.execute(f"PRAGMA user_version = {FORMAT}")
    except (IndexMismatch, IndexCorrupt, StorageError):
        db.close()
        raise
    return db


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StorageError("the reply cache cannot be used", given=f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        do = "move it away: replies are asked again"
        raise IndexCorrupt("not a reply cache, or a damaged one", given=f"{path}: {error}", do=do) from error
