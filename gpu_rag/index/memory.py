"""Peak memory of this process, by stage: pages that no file backs, by samples and the kernel's high-water mark."""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

STATUS = Path("/proc/self/status")


def release_memory() -> None:
    """Give free memory of the allocators back to the system, so that a stage is not charged for what others used."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


@contextmanager
def watched_memory() -> Iterator[Callable[[], int]]:
    """The highest `memory_bytes` in the block so far, as a function. Frees what allocators keep first.

    It is the highest sample of every 10 ms, or the highest resident size without the most pages of files in a sample if
    that is more: work that holds the GIL lets no sample be taken.
    """
    release_memory()
    is_marked, ended = reset_mark(), threading.Event()
    peak, mapped, _ = sizes()

    def watch() -> None:
        nonlocal peak, mapped
        while not ended.wait(0.01):
            now, now_mapped, _ = sizes()
            peak, mapped = max(peak, now), max(mapped, now_mapped)

    def highest() -> int:
        now, now_mapped, mark = sizes()
        return max(peak, now, mark - max(mapped, now_mapped) if is_marked else 0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield highest
    finally:
        ended.set()
        thread.join()


def memory_bytes() -> int:
    """Memory of this process alone that no file backs: the kernel can drop pages of mapped files. The resident size
    where the kernel does not count them apart, and without /proc the highest one so far."""
    return sizes()[0]


def reset_mark() -> bool:
    """Start a new high-water mark of the resident size. Returns False if the kernel does not offer that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def sizes() -> tuple[int, int, int]:
    """(bytes as in `memory_bytes`, bytes of mapped files and shared memory, the high-water mark of both together)."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        lines = []
    kib = {name: int(value.split()[0]) for name, value in (line.split(":", 1) for line in lines) if value[-3:] == " kB"}
    resident = kib.get("VmRSS", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    own = kib.get("RssAnon", resident)
    return own * 1024, (resident - own) * 1024, kib.get("VmHWM", resident) * 1024
