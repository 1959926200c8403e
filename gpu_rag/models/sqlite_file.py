"""An SQLite file of replies or vectors: waiting, look-ups by key, and errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rag.errors import IndexCorrupt, StorageError

BUSY_S = 60.0  # longest wait for another reader or writer
KEYS_A_QUERY = 500  # below SQLite's limit of variables in any version


@dataclass(frozen=True)
class SqliteFile:
    """One file. kind: its name in errors ("reply cache"); remedy: advice for a damaged one."""

    path: Path
    kind: str
    remedy: str

    def connect(self) -> sqlite3.Connection:
        """Open or create the file, for any thread that holds the owner's lock. Raises StorageError, IndexCorrupt."""
        with self.errors():
            db = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False)
            db.execute("PRAGMA trusted_schema = OFF")  # the file may be somebody else's
            db.execute("PRAGMA cell_size_check = ON")  # a damaged page is found before use
            return db

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn SQLite's errors into StorageError (the disk, or another process) and IndexCorrupt (the file)."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StorageError(f"the {self.kind} cannot be used", given=f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            given = f"{self.path}: {error}"
            raise IndexCorrupt(f"not a {self.kind}, or a damaged one", given=given, do=self.remedy) from error


def rows_of_keys(db: sqlite3.Connection, select: str, keys: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of "SELECT ... WHERE key" whose key is in `keys`, in no order."""
    for start in range(0, len(keys), KEYS_A_QUERY):
        part = keys[start : start + KEYS_A_QUERY]
        yield from db.execute(f"{select} IN ({','.join('?' * len(part))})", part)
