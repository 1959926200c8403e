"""The peak memory of a stage: what was held for a while counts, and pages of mapped files do not."""

import threading
from pathlib import Path

import numpy as np
import pytest

from gpu_rag.index import memory

MB = 1 << 20


def test_memory_that_was_released_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    held, twice = [100], threading.Semaphore(0)

    def memory_bytes() -> int:
        if threading.current_thread() is not threading.main_thread():
            twice.release()
        return held[0]

    monkeypatch.setattr(memory, "memory_bytes", memory_bytes)
    with memory.watched_memory() as peak_memory_bytes:
        held[0] = 900
        assert all(twice.acquire(timeout=60) for _ in range(3)), "the second reading is of 900, and noted at the third"
        held[0] = 200
        assert peak_memory_bytes() == 900


def test_pages_of_a_mapped_file_do_not_count(tmp_path: Path) -> None:
    np.ones(64 * MB, np.int8).tofile(tmp_path / "file")
    with memory.watched_memory() as peak_memory_bytes:
        before = peak_memory_bytes()
        mapped = np.memmap(tmp_path / "file", np.int8, "r")
        assert int(mapped.sum(dtype=np.int64)) == 64 * MB
        assert peak_memory_bytes() < before + 30 * MB
