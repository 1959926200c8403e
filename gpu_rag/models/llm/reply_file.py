"""The SQLite file that keeps replies."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from gpu_rag.errors import IndexCorrupt, IndexMismatch, StorageError
from gpu_rag.models.llm.interface import reply_from_record, reply_record
from gpu_rag.models.sqlite_file import SqliteFile, rows_of_keys
from gpu_rag.types import Reply

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
        """Those of the replies that are there, with from_cache=True. Raises IndexCorrupt naming a row."""
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
        """How many replies there are."""
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
