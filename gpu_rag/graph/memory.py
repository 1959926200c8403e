"""Refuse calls that cannot fit in memory, by comparing the estimated allocation with free memory; and halve batches.

PageRank counts all its allocations; other estimates are lower bounds, so nothing that could run is refused. If a device
still runs out of memory, the batch of questions is halved, repeatedly, down to one question.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from gpu_rag.errors import BadInput
from gpu_rag.lazy import torch

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")
P = ParamSpec("P")

LOOK_FROM = 1 << 28  # bytes: less is granted without a check, which takes about 30 us


def is_small(n_bytes: int) -> bool:
    """Whether `check_memory` grants this many bytes without a check, so that the exact need is not computed."""
    return n_bytes < LOOK_FROM


def fits(needed: int, device: torch.device) -> bool:
    """Whether `check_memory` would grant this many bytes."""
    return needed < LOOK_FROM or needed <= free_bytes(device)


def threads_that_fit(threads: int, needed: Callable[[int], int]) -> int:
    """The given number of CPU threads, or a half, a quarter .. of it until `needed(threads)` bytes fit; at least 1."""
    while threads > 1 and not fits(needed(threads), torch.device("cpu")):
        threads //= 2
    return threads


def check_memory(needed: int, device: torch.device, what: str, do: str) -> None:
    """Raise BadInput if `needed` bytes for `what` exceed the free memory of the device; `do`: advice for the user."""
    if needed < LOOK_FROM:
        return
    free = free_bytes(device)
    if needed > free:
        given = f"at least {needed / 2**30:,.1f} GiB for {what}"
        raise BadInput("not enough memory", given=given, expected=f"at most {free / 2**30:,.1f} GiB on {device}", do=do)


def free_bytes(device: torch.device) -> int:
    """Memory that can still be allocated on the device, including torch's reserved but unused memory."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reserved
    from gpu_rag.machine import free_host_bytes  # small calls never ask

    return free_host_bytes()


def halved(
    function: Callable[Concatenate[R, list[Q], P], list[A]],
) -> Callable[Concatenate[R, list[Q], P], list[A]]:
    """Wrap a function of many queries so that it processes each half separately if a device runs out of memory; with a
    single query that is BadInput. Its answers must not depend on which queries are in one batch."""

    @functools.wraps(function)
    def both(resource: R, queries: list[Q], *args: P.args, **kwargs: P.kwargs) -> list[A]:
        try:
            return function(resource, queries, *args, **kwargs)
        except torch.OutOfMemoryError as error:
            short = str(error)
        halve(len(queries), short)  # outside the handler: the error kept allocated memory alive
        cut = len(queries) // 2
        return [answer for part in (queries[:cut], queries[cut:]) for answer in both(resource, part, *args, **kwargs)]

    return both


_warned: set[str] = set()


def halve(n_questions: int, error: str) -> None:
    """Prepare for half as many questions; warns once in a process. Raises BadInput if there is only one question."""
    if n_questions < 2:
        do = "use a device of more memory, or models.device=cpu"
        raise BadInput("the device ran out of memory", given=f"one question; {error}", do=do)
    torch.cuda.empty_cache()
    if "halved" not in _warned:
        _warned.add("halved")
        warnings.warn(
            f"the device ran out of memory with {n_questions} questions at a time: going on with half as many, and "
            "again where it must be; answers are the same",
            RuntimeWarning,
            stacklevel=3,
        )
