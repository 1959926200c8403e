"""Peak memory of this process, by stage (Linux: the kernel's high-water mark can be reset)."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import pyarrow as pa


def release_memory() -> None:
    """Give free memory of the allocators back to the system, so that a stage is not charged for what others used."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def reset_peak_memory() -> bool:
    """Release free memory and start a new high-water mark. Returns False if the kernel does not offer that."""
    release_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory_bytes() -> int:
    """Highest resident size since the last reset, or since the process began."""
    return _status_bytes("VmHWM:")


def memory_bytes() -> int:
    """Current resident size; without /proc, the highest so far."""
    return _status_bytes("VmRSS:")


def _status_bytes(name: str) -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(line for line in status.splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
