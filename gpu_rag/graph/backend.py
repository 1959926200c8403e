"""Which code runs an op: compiled on the CPU, or torch on any device; and on how many threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TypeVar

import torch

from gpu_rag.errors import BadInput, MissingBackend, UsageError

IMPLEMENTATIONS = ("numba", "torch")

Part = TypeVar("Part")
Result = TypeVar("Result")


def pick_implementation(device: torch.device, implementation: str = "auto") -> str:
    """Which implementation of a clustering, join, neighbourhood or reachability op runs: numba | torch.

    auto: numba on the CPU where it is installed, else torch. Both give the same bits. Raises MissingBackend, or
    UsageError for a name that does not exist or cannot take this device.
    """
    if implementation not in (*IMPLEMENTATIONS, "auto"):
        raise UsageError("no such implementation", given=implementation, expected=", ".join((*IMPLEMENTATIONS, "auto")))
    on_cpu, has_numba = device.type == "cpu", find_spec("numba") is not None
    if implementation == "auto":
        return "numba" if on_cpu and has_numba else "torch"
    if implementation == "numba" and not has_numba:
        raise MissingBackend("numba is not installed", do="pip install 'gpu-rag[cpu]'")
    if implementation == "numba" and not on_cpu:
        raise UsageError("numba works on the CPU", given=f"tensors on {device}", expected="torch or auto")
    return implementation


def check_threads(threads: int) -> None:
    """Raises BadInput unless `threads` >= 1."""
    if threads < 1:
        raise BadInput("threads is out of range", given=threads, expected=">= 1")


def run_parts(work: Callable[[Part], Result], parts: Iterable[Part], threads: int) -> list[Result]:
    """[work(part) for part in parts], up to `threads` at once; the first error by position is raised."""
    if threads == 1:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, parts))
