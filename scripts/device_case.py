"""What a case of scripts/device_check.py is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import device_graphs as made
import torch

from gpu_rag.types import CSR

Outputs = tuple[torch.Tensor, ...]
ROWS = 64  # that are checked in f64


@dataclass(frozen=True)
class Case:
    """run(implementation): the outputs. error(outputs): how far the ROWS checked are from exact, and how far they may
    be. alone: outputs of one question by itself, and that part of the outputs of all. exact: whether implementations
    must give equal bits. bytes, flop: of a run. peers: other libraries for the same work, by name:
    a call prepares them and gives what is timed."""

    name: str
    size: dict[str, int | str]
    run: Callable[[str], Outputs]
    error: Callable[[Outputs], tuple[float, float]]
    alone: Callable[[], Outputs]
    part: Callable[[Outputs], Outputs]
    exact: bool
    bytes: int = 0
    flop: int = 0
    peers: dict[str, Callable[[], Callable[[], Any]]] = field(default_factory=dict)


def some(n: int, device: torch.device) -> torch.Tensor:
    return torch.randperm(n, generator=made.generator(9, device), device=device)[:ROWS]


def neighbours(csr: CSR, row: int) -> torch.Tensor:
    return csr.indices[int(csr.indptr[row]) : int(csr.indptr[row + 1])].long()
