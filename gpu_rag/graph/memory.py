"""Refusing what cannot fit: the least that a call will allocate, against the memory that is left.

The estimates are from below, so nothing that could run is refused; a call may still run out of memory.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

from gpu_rag.errors import BadInput

LOOK_FROM = 1 << 28  # bytes: less is given without a look, which takes some 30 us


def is_small(most: int) -> bool:
    """Whether `check_memory` gives so many bytes without a look: a caller need not find out how many fewer it needs."""
    return most < LOOK_FROM


def check_memory(needed: int, device: torch.device, what: str, do: str) -> None:
    """Raises BadInput where `needed` bytes for `what` are more than what is left on the device; `do`: the way out."""
    if needed < LOOK_FROM:
        return
    left = free_bytes(device)
    if needed > left:
        given = f"at least {needed / 2**30:,.1f} GiB for {what}"
        raise BadInput("not enough memory", given=given, expected=f"at most {left / 2**30:,.1f} GiB on {device}", do=do)


def free_bytes(device: torch.device) -> int:
    """Memory that can still be allocated on the device, what torch holds ready there included."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reserved
    with contextlib.suppress(OSError), Path("/proc/meminfo").open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
