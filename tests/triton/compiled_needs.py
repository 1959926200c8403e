"""What a compiled kernel needs of an H100 / H200, read off its binary, and which of its offsets are 32 bits wide."""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import Any, NamedTuple

MOST_SHARED = 227 << 10  # bytes that a program may take there
REGISTERS = 65536  # of a multiprocessor
WARPS = 64  # that it holds at most


class Needs(NamedTuple):
    """registers: of a thread; stack: bytes of a thread in the device's memory, where registers are spilled to; shared:
    bytes of a program; warps: how many of this kernel a multiprocessor holds at a time, by its registers."""

    registers: int
    stack: int
    shared: int
    warps: int


def needs_of(kernel: Any) -> Needs:
    """By the `cuobjdump` that Triton brings along."""
    from triton import knobs

    tool = knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.findall(rf"\b{name}:(\d+)", told)[0]) for name in ("REG", "STACK"))
    program = kernel.metadata.num_warps
    held = REGISTERS // (-(-registers // 8) * 8 * 32 * program) * program  # they are given out by 8 a thread
    return Needs(registers, stack, int(kernel.metadata.shared), min(held, WARPS))


def narrow_products(ttir: str) -> list[str]:
    """The products of 32 bits in a kernel that may be too large for them: all but those of a constant and the number of
    a program on the second axis of the grid, which ends at 65,535."""
    programs = set(re.findall(r"(%\w+) = tt\.get_program_id y : i32", ttir))
    constants = set(re.findall(r"(%\w+) = arith\.constant \d+ : i32", ttir))
    found = re.findall(r"arith\.muli (%[\w#]+), (%[\w#]+)[^:\n]*: (?:tensor<[^>\n]*x)?i32\b", ttir)
    return [f"{a} * {b}" for a, b in found if not (a in programs and b in constants)]
