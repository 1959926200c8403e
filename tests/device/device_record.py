"""The record of a stand-in device, and moving data in and out of it."""

import sys
from collections import Counter
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import torch


class Copy(NamedTuple):
    """A copy between host and device. where: the file and function of the project that asked for it."""

    to: str
    bytes: int
    where: str


@dataclass
class Record:
    """Events of the device. free: bytes that torch.cuda.mem_get_info tells.

    copies: between host and device, `Device.put` and `back` not counted; syncs: (op, where) for which the host waited,
    with copies either way, unless they are asked not to block; atomic_sums: (op, where) whose last bits would differ
    from run to run; launches: ops by name.
    """

    free: int
    copies: list[Copy] = field(default_factory=list)
    syncs: list[tuple[str, str]] = field(default_factory=list)
    atomic_sums: list[tuple[str, str]] = field(default_factory=list)
    launches: Counter[str] = field(default_factory=Counter)
    recording: Any = None  # the CUDA graph that is being recorded
    replays: int = 0  # of CUDA graphs

    def forget(self) -> None:
        """Empties the records."""
        for record in (self.copies, self.syncs, self.atomic_sums, self.launches):
            record.clear()

    def copied(self, to: str, tensor: torch.Tensor, *, waits: bool) -> None:
        where = caller()
        self.copies.append(Copy(to, tensor.numel() * tensor.element_size(), where))
        if waits:
            self.syncs.append(("copy", where))


def moved(value: Any, move: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return move(value)
    if is_dataclass(value) and not isinstance(value, type):
        held = copy(value)
        for one in fields(value):
            object.__setattr__(held, one.name, moved(getattr(value, one.name), move))
        return held
    if isinstance(value, dict):
        return {key: moved(one, move) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(one, move) for one in value))
    return type(value)(moved(one, move) for one in value) if type(value) in (list, tuple) else value


def caller() -> str:
    """The nearest frame of the project: "matrix.py:sweep"."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/gpu_rag/" in file or "/gpu_rag_kernels/" in file:
            return f"{file.rsplit('/', 1)[1]}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "test"
