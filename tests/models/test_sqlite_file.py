"""Shared by the files of replies and of vectors: errors that name the file, and look-ups of many keys."""

from pathlib import Path

import pytest

from gpu_rag.errors import IndexCorrupt, StorageError
from gpu_rag.models.sqlite_file import KEYS_A_QUERY, SqliteFile, rows_of_keys


def file_at(path: Path) -> SqliteFile:
    return SqliteFile(path, "drawer", "empty it")


@pytest.mark.parametrize("n", [0, 1, KEYS_A_QUERY, KEYS_A_QUERY + 1, 3 * KEYS_A_QUERY + 7])
def test_every_key_that_is_there_is_found_once(tmp_path: Path, n: int) -> None:
    db = file_at(tmp_path / "x").connect()
    db.execute("CREATE TABLE drawer (key INTEGER PRIMARY KEY, what TEXT)")
    db.executemany("INSERT INTO drawer VALUES (?, ?)", [(i, f"w{i}") for i in range(0, n, 2)])
    found = sorted(rows_of_keys(db, "SELECT key, what FROM drawer WHERE key", list(range(n))))
    assert found == [(i, f"w{i}") for i in range(0, n, 2)]


def test_a_file_of_another_kind_is_corrupt_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 9)
    file = file_at(path)
    with pytest.raises(IndexCorrupt, match=r"not a drawer.*empty it"), file.errors():
        file.connect().execute("SELECT 1 FROM drawer")


def test_what_the_disk_or_another_process_refuses_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the drawer cannot be used"):
        file_at(tmp_path / "none" / "x").connect()
    file = file_at(tmp_path / "y")
    with pytest.raises(StorageError, match="no such table"), file.errors():
        file.connect().execute("SELECT 1 FROM drawer")
