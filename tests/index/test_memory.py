"""The peak memory of a stage: what was held for a while counts, and pages of mapped files do not."""

import threading
from pathlib import Path

import numpy as np
import pytest

from gpu_rag.index import memory

MB = 1 << 20


def test_memory_that_was_released_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    held, twice = [100], threading.Semaphore(0)

    def sizes() -> tuple[int, int, int]:
        if threading.current_thread() is not threading.main_thread():
            twice.release()
        return held[0], 50, held[0] + 50

    monkeypatch.setattr(memory, "sizes", sizes)
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


def test_memory_of_work_that_lets_no_sample_be_taken_counts() -> None:
    if not memory.reset_mark():
        pytest.skip("this kernel cannot start a new high-water mark")
    with memory.watched_memory() as peak_memory_bytes:
        before = peak_memory_bytes()
        assert len(b"a" * (300 * MB)) and peak_memory_bytes() > before + 250 * MB


@pytest.mark.parametrize("status", ["Name:\tpython\nVmRSS:\t  300 kB\n", None])
def test_without_a_count_of_anonymous_pages_the_resident_size_counts(
    status: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    if status is not None:
        (tmp_path / "status").write_text(status)
    with memory.watched_memory() as peak_memory_bytes:
        assert peak_memory_bytes() == memory.memory_bytes() == 300 << 10 if status else memory.memory_bytes() > MB
