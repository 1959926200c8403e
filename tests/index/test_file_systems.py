"""File systems without locks, hard links or durable folders: it works, or one line says what is missing."""

import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.errors import StorageError
from gpu_rag.index import recorded
from gpu_rag.models import packaged
from gpu_rag.models.llm.cache import mend_replies
from gpu_rag.models.llm.scripted import ScriptedLLM

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}
EXTRACT: dict[str, Any] = {"models": {"embedder": "hash"}, "index": {"extractor": "llm", "min_yield": 0.0}}


def refusing(number: int) -> Any:
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_nothing_is_written_and_one_line_says_why(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(number))
    with pytest.raises(StorageError, match="no locks") as caught:
        gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=["bm25"], settings=FAST)
    assert str(tmp_path / "ix") in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "ix" / "stages").exists()


def test_an_index_without_locks_can_be_asked(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=["bm25"], settings=FAST)
    monkeypatch.setattr(fcntl, "flock", refusing(errno.ENOLCK))
    index = gpu_rag.Index.open(tmp_path / "ix")
    assert index.retrieve("Halden Bridge", method="bm25").evidence
    with pytest.raises(StorageError, match="no locks"):
        index.answer_file(_questions(tmp_path), tmp_path / "answers.jsonl", method="bm25")


def _questions(folder: Path) -> Path:
    (folder / "questions.txt").write_text("Who designed the Halden Bridge?\n")
    return folder / "questions.txt"


def test_folders_that_cannot_be_made_durable_are_no_error(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    index = gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=["bm25"], settings=FAST)
    assert index.retrieve("Halden Bridge", method="bm25").evidence


def test_files_that_cannot_be_made_durable_are_an_error(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO))
    with pytest.raises((OSError, StorageError)):
        gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=["bm25"], settings=FAST)


def test_one_key_is_made_by_processes_that_start_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "_cache_dir", tmp_path / "cache")
    together, random_bytes = threading.Barrier(4, timeout=20), secrets.token_bytes

    def slow_bytes(count: int) -> bytes:
        time.sleep(0.05)
        return random_bytes(count)

    def signature(_: int) -> str:
        together.wait()
        return recorded.Record(corpus=("/corpus",)).signed()

    monkeypatch.setattr(secrets, "token_bytes", slow_bytes)
    with ThreadPoolExecutor(4) as pool:
        signatures = set(pool.map(signature, range(4)))
    assert len(signatures) == 1 and signatures != {""}
    assert stat.S_IMODE((tmp_path / "cache" / "sources.key").stat().st_mode) == 0o600


def test_damaged_replies_are_mended_without_hard_links(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    llm = ScriptedLLM(lambda _: '{"entities": ["Halden Bridge"], "triples": []}')
    gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=["bm25", "ppr"], settings=EXTRACT, llm=llm)
    replies = tmp_path / "ix" / "replies.sqlite"
    data = bytearray(replies.read_bytes())
    at = data.rindex(b"Halden Bridge")
    data[at] ^= 1
    replies.write_bytes(bytes(data))
    monkeypatch.setattr(os, "link", refusing(errno.EPERM))
    mend_replies(replies)
    damaged = replies.with_name("replies.sqlite.damaged")
    assert damaged.read_bytes()[:16] == b"SQLite format 3\0" and "replies are kept" in caplog.text
