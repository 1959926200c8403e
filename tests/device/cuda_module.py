"""torch.cuda as it answers where one device is: what the stand-in puts in the place of its functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

NAME = "stand-in"
CAPABILITY = (9, 0)


class Generator(torch.Generator):
    """A generator of random numbers for either device."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls)
        made.place = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu"):
        pass

    device = property(lambda self: self.place)


def is_on_device(generator: torch.Generator) -> bool:
    return generator.device.type == "cuda"


class _Stream:
    """Work is done in order: waiting is nothing."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any):
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def nothing(self, *_: Any, **__: Any) -> None:
        pass

    synchronize = wait_stream = wait_event = wait = record = record_event = nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


def _graphs(device: Any) -> dict[str, Any]:
    """CUDA graphs: the steps of one are kept as calls that write where they wrote at first, and done again."""

    class CUDAGraph:
        def __init__(self) -> None:
            self.steps: list[Callable[[], Any]] = []

        def replay(self) -> None:
            device.replays += 1
            for step in self.steps:
                step()

    @contextmanager
    def graph(recorded: CUDAGraph, **_: Any) -> Iterator[None]:
        device.recording = recorded
        try:
            yield
        finally:
            device.recording = None

    return {"CUDAGraph": CUDAGraph, "graph": graph}


def _answers(device: Any, total: int) -> dict[str, Any]:
    properties = SimpleNamespace(
        name=NAME, total_memory=total, major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=132,
        warp_size=32, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
        shared_memory_per_block_optin=232448, L2_cache_size=50 << 20,
    )  # fmt: skip
    constant: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "memory_allocated": 0,
        "memory_reserved": 0, "max_memory_allocated": 0, "max_memory_reserved": 0, "get_device_name": NAME,
        "get_device_capability": CAPABILITY, "get_device_properties": properties, "is_bf16_supported": True,
    }  # fmt: skip
    answers: dict[str, Any] = {name: (lambda *_, _held=held, **__: _held) for name, held in constant.items()}
    quiet = ("synchronize", "empty_cache", "set_device", "init", "manual_seed", "manual_seed_all",
             "reset_peak_memory_stats", "ipc_collect")  # fmt: skip
    answers.update({name: (lambda *_, **__: None) for name in quiet})  # each its own: torch tells functions apart
    answers["mem_get_info"] = lambda *_, **__: (device.free, total)
    waited = ("current_stream", "default_stream", "Stream", "Event", "device", "stream")
    answers.update({name: type(name, (_Stream,), {}) for name in waited})
    return answers


@contextmanager
def patched(device: Any, total: int, mode: Callable[[], Any], from_dlpack: Callable[..., Any]) -> Iterator[None]:
    """torch.cuda for one device with `device.free` of `total` bytes; `mode` is entered in every thread that starts."""
    plain_run = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with mode():
            plain_run(self)

    with ExitStack() as stack:
        for name, answer in (_answers(device, total) | _graphs(device)).items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(torch, "Generator", Generator))
        stack.enter_context(patch.object(torch, "from_dlpack", from_dlpack))
        stack.enter_context(patch.object(threading.Thread, "run", run))
        yield
