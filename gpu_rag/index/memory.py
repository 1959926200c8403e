"""Peak memory of this process, by stage: its anonymous pages, sampled by a thread."""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa


def release_memory() -> None:
    """Give free memory of the allocators back to the system, so that a stage is not charged for what others used."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


@contextmanager
def watched_memory() -> Iterator[Callable[[], int]]:
    """The highest `memory_bytes` in the block so far, as a function. Frees what allocators keep first."""
    release_memory()
    peak, ended = memory_bytes(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, memory_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: max(peak, memory_bytes())
    finally:
        ended.set()
        thread.join()


def memory_bytes() -> int:
    """Memory of this process that no file backs: the kernel can drop pages of mapped files. Without /proc, the highest
    resident size so far."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.split("RssAnon:")[1].split()[0]) * 1024
