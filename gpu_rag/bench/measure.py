"""Timing: medians of interleaved rounds, the copy bandwidth, and a memory fill that reveals unwritten output."""

from __future__ import annotations

import contextlib
import gc
import math
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

COPY_BYTES = 256 * 2**20  # well above the caches of most processors
TURN_S = 2.0  # limit of a turn with several calls in a round

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Turn:
    """A timed call: `run`, on different questions in every call and round.

    inputs(round, call): the inputs of a call, made before the clock starts. Call 0 is not timed, because the previous
    turn has left other data in the caches. calls: timed calls of a round, fewer if they would take more than TURN_S.
    threads: torch's threads during the turn; None: unchanged.
    """

    inputs: Callable[[int, int], Any]
    run: Callable[[Any], Any]
    calls: int = 1
    threads: int | None = None


@dataclass(frozen=True)
class Spent:
    """The cost of one turn, in milliseconds of a call: clock time, and processor time of all threads of this process.
    Each is the mean over the `calls` timed in a round, then the median over the rounds."""

    ms: float
    cpu_ms: float
    calls: int


def time_turns(
    turns: Mapping[Name, Turn], rounds: int, device: torch.device, say: Callable[[str], None]
) -> dict[Name, Spent]:
    """The cost of a call of each turn, over rounds in which all take turns.

    On a GPU the clock stops when the device has finished.
    """
    spent: dict[Name, list[tuple[float, float]]] = {name: [] for name in turns}
    calls: dict[Name, int] = {}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for round_number in range(rounds):
            say(f"round {round_number + 1} of {rounds}")
            for name, turn in turns.items():
                with torch_threads(turn.threads):
                    first, _ = _timed(turn.run, [turn.inputs(round_number, 0)], device)
                    calls.setdefault(name, max(1, min(turn.calls, math.floor(TURN_S * 1e3 / max(first, 1e-6)))))
                    given = [turn.inputs(round_number, call) for call in range(1, calls[name] + 1)]
                    spent[name].append(_timed(turn.run, given, device))
                del given  # frees memory before the next turn
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    medians = {name: np.median(times, axis=0) for name, times in spent.items()}
    return {name: Spent(float(ms), float(cpu_ms), calls[name]) for name, (ms, cpu_ms) in medians.items()}


def _timed(run: Callable[[Any], Any], given: Sequence[Any], device: torch.device) -> tuple[float, float]:
    """Mean milliseconds of a call, over one call for each of the inputs `given`: (clock time, processor time)."""
    settle(device)
    start, start_cpu = time.perf_counter(), time.process_time()
    for inputs in given:
        _result = run(inputs)  # kept, so that the last result is freed after the timing
        settle(device)
    end_cpu, end = time.process_time(), time.perf_counter()
    return (end - start) * 1e3 / len(given), (end_cpu - start_cpu) * 1e3 / len(given)


def settle(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Copy:
    """A copy of COPY_BYTES on the device, with as many threads as the op has: the memory bandwidth at this moment."""

    moved = 2 * COPY_BYTES  # read and written

    def __init__(self, device: torch.device, threads: int):
        self.source = torch.ones(COPY_BYTES // 4, device=device)
        self.target = torch.zeros_like(self.source)
        self.threads = threads

    def __call__(self, _: object = None) -> None:
        if self.source.device.type != "cpu":
            self.target.copy_(self.source)
            return
        sources = np.array_split(self.source.numpy(), self.threads)
        targets = np.array_split(self.target.numpy(), self.threads)
        if self.threads == 1:
            np.copyto(targets[0], sources[0])
            return
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(np.copyto, targets, sources))

    def gb_s(self, ms: float) -> float:
        """Gigabytes per second of a copy that took `ms`."""
        return self.moved / ms / 1e6


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Inside, torch fills fresh memory with NaN (integers: the largest value), to reveal unwritten output."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switch: Any = torch.utils.deterministic
    fill = switch.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ignore warnings about ops without a deterministic form on this device
        torch.use_deterministic_algorithms(True, warn_only=True)
        switch.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            switch.fill_uninitialized_memory = fill


@contextlib.contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Inside, torch uses this number of threads; None: unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
