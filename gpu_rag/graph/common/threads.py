"""Run parts of a call on several threads; compiled loops release the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from gpu_rag.errors import BadInput

MAX_THREADS = 1024  # more than any machine has; some libraries abort the process above it

Part = TypeVar("Part")
Result = TypeVar("Result")


def check_threads(threads: int) -> None:
    """Raise BadInput unless `threads` is 1 to MAX_THREADS."""
    if not 1 <= threads <= MAX_THREADS:
        raise BadInput("threads is out of range", given=threads, expected=f">= 1, at most {MAX_THREADS:,}")


def run_parts(work: Callable[[Part], Result], parts: Iterable[Part], threads: int) -> list[Result]:
    """[work(part) for part in parts], with up to `threads` at once; the first error by position is raised.

    Each part runs in a copy of the caller's context, so that `recording` also records choices made in threads.
    """
    parts = list(parts)
    if threads == 1 or len(parts) < 2:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return [done.result() for done in [pool.submit(copy_context().run, work, part) for part in parts]]
