"""A case of scripts/device_check.py, and the plan of a run: on which device, how large, by which kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import device_graphs as made
import torch

from gpu_rag.errors import GpuRagError
from gpu_rag.types import CSR

Outputs = tuple[torch.Tensor, ...]
ROWS = 64  # that are checked in f64
Result = dict[str, Any]
Keep = Callable[[Result], None]


def refusals() -> tuple[type[Exception], ...]:
    """Errors by which one kernel, size or op fails and the section goes on: whatever libraries raise. Out of memory
    torch raises a RuntimeError, others a MemoryError; a kernel too large for the device is an error of Triton's own."""
    usual = (
        ArithmeticError, AssertionError, AttributeError, GpuRagError, ImportError, LookupError, MemoryError, OSError,
        RuntimeError, TypeError, ValueError,
    )  # fmt: skip
    try:
        from triton.errors import TritonError
    except ImportError:
        return usual
    return *usual, TritonError


@dataclass(frozen=True)
class Plan:
    """small: tiny sizes, as in a dry run. kernel: what stands for the kernels, triton or, where that cannot run, the
    reference."""

    device: torch.device
    small: bool = False
    kernel: str = "triton"

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def ms(self, run: Callable[[], Any]) -> float:
        """Milliseconds of a call: the median of many on a GPU, with an empty cache; of one elsewhere."""
        if self.device.type == "cuda":
            from triton.testing import do_bench

            return float(do_bench(run, return_mode="median"))
        began = time.perf_counter()
        run()
        return max((time.perf_counter() - began) * 1e3, 1e-6)

    def captured(self, run: Callable[[], Any]) -> Callable[[], None]:
        """What does `run` again as one CUDA graph; elsewhere `run`. It is run first: a capture may neither compile nor
        ask for sizes."""
        if self.device.type != "cuda" or self.small:
            return run
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        replay: Callable[[], None] = graph.replay
        return replay


@dataclass(frozen=True)
class Case:
    """run(implementation): the outputs. error(outputs): how far the ROWS checked are from exact, and how far they may
    be. alone(implementation): outputs of one question by itself; part: that part of the outputs of all. exact:
    whether implementations must give equal bits. bytes, flop: of a run. peers: other libraries for the same work, by
    name: a call prepares them and gives what is timed."""

    name: str
    size: dict[str, int | str]
    run: Callable[[str], Outputs]
    error: Callable[[Outputs], tuple[float, float]]
    alone: Callable[[str], Outputs]
    part: Callable[[Outputs], Outputs]
    exact: bool
    bytes: int = 0
    flop: int = 0
    peers: dict[str, Callable[[], Callable[[], Any]]] = field(default_factory=dict)


def some(n: int, device: torch.device) -> torch.Tensor:
    return torch.randperm(n, generator=made.generator(9, device), device=device)[:ROWS]


def neighbours(csr: CSR, row: int) -> torch.Tensor:
    return csr.indices[int(csr.indptr[row]) : int(csr.indptr[row + 1])].long()
