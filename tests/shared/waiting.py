"""Waiting for what other threads and processes do."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path


def wait_until(reached: Callable[[], bool], limit_s: float = 60.0, pause_s: float = 0.005) -> None:
    """Until reached(); only a bug takes so long."""
    until = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(pause_s)


def kept_replies(path: Path) -> int:
    """Number of replies in a file that another thread or process writes."""
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path, timeout=300)) as file:
        made = file.execute("SELECT count(*) FROM sqlite_master WHERE name = 'replies'").fetchone()[0]
        return int(file.execute("SELECT count(*) FROM replies").fetchone()[0]) if made else 0
