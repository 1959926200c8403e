"""Which code runs an op: compiled on the CPU, torch on any device, or a library; and a record of what was chosen.

An op takes its implementation by name or `auto`. What `auto` means can be narrowed for all ops that run inside
`preferring`, as settings do; what was chosen is told to the innermost `recording`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from gpu_rag.errors import BadInput, MissingBackend, UsageError

if TYPE_CHECKING:
    import torch  # the command line reads `spelled` without loading it

IMPLEMENTATIONS = ("numba", "torch")
MOST_THREADS = 1024  # more than any machine has: a library asked for more ends the process

Part = TypeVar("Part")
Result = TypeVar("Result")
Preferences = dict[str, str]  # implementation by family of ops; a family without one stays auto

_preferred: ContextVar[Preferences | None] = ContextVar("preferred", default=None)
_record: ContextVar[dict[str, set[str]] | None] = ContextVar("record", default=None)


@contextmanager
def preferring(preferences: Preferences) -> Iterator[None]:
    """Inside, `auto` of the ops of a family means the implementation named for it.

    Families: pagerank, neighbours, ops (all others). An op that is given a name keeps to that name.
    """
    token = _preferred.set(dict(preferences))
    try:
        yield
    finally:
        _preferred.reset(token)


def preferred(family: str, implementation: str) -> str:
    """`implementation`, or what is preferred for the family where it is "auto"."""
    if implementation != "auto":
        return implementation
    return (_preferred.get() or {}).get(family, "auto")


@contextmanager
def recording() -> Iterator[dict[str, set[str]]]:
    """The implementations that ops chose inside, by the name of the op: {"reachable": {"numba"}}."""
    record: dict[str, set[str]] = {}
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def chosen(op: str, implementation: str) -> str:
    """Tells the record that `op` runs by `implementation`, and returns that."""
    record = _record.get()
    if record is not None:
        record.setdefault(op, set()).add(implementation)
    return implementation


def spelled(record: Mapping[str, set[str]]) -> dict[str, str]:
    """{op: what ran it}, by name; of several all."""
    return {op: ", ".join(sorted(record[op])) for op in sorted(record)}


@cache
def is_cpu(device: torch.device) -> bool:
    """Whether a device is the CPU; kept, as asking torch for the type takes ten times as long."""
    return device.type == "cpu"


@cache
def has_numba() -> bool:
    """Whether numba is installed; kept, as looking for it costs more than some of the ops that ask."""
    return find_spec("numba") is not None


def pick_implementation(device: torch.device, implementation: str = "auto", op: str = "") -> str:
    """Which implementation of a clustering, join, neighbourhood or reachability op runs: numba | torch.

    auto: what is preferred for the family `ops`, else numba on the CPU where it is installed, else torch. Both give the
    same bits. op: its name for the record. Raises MissingBackend, or UsageError for a name that does not exist or
    cannot take this device.
    """
    implementation = preferred("ops", implementation)
    if implementation not in (*IMPLEMENTATIONS, "auto"):
        raise UsageError("no such implementation", given=implementation, expected=", ".join((*IMPLEMENTATIONS, "auto")))
    on_cpu = is_cpu(device)
    if implementation == "numba" and not has_numba():
        raise MissingBackend("numba is not installed", do="pip install 'gpu-rag[cpu]'")
    if implementation == "numba" and not on_cpu:
        raise UsageError("numba works on the CPU", given=f"tensors on {device}", expected="torch or auto")
    if implementation == "auto":
        implementation = "numba" if on_cpu and has_numba() else "torch"
    return chosen(op, implementation) if op else implementation


def check_threads(threads: int) -> None:
    """Raises BadInput unless `threads` is 1 to MOST_THREADS."""
    if not 1 <= threads <= MOST_THREADS:
        raise BadInput("threads is out of range", given=threads, expected=f">= 1, at most {MOST_THREADS:,}")


def run_parts(work: Callable[[Part], Result], parts: Iterable[Part], threads: int) -> list[Result]:
    """[work(part) for part in parts], up to `threads` at once; the first error by position is raised."""
    if threads == 1:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, parts))
