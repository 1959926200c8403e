"""The dispatcher: it picks the backend of an op or a loop, checks the needs of that backend, and records the choice.

An op takes its implementation by name or `auto`. `FAMILIES` lists the backends of a family of ops, and the order in
which `auto` tries them; `BACKENDS` lists the needs of a backend. Inside `preferring`, which the settings use, `auto`
means the preferred backend. Each choice is recorded in the innermost `recording`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gpu_rag.errors import MissingBackend, UsageError

if TYPE_CHECKING:
    import torch  # the command line reads `spelled` without loading it

Preferences = dict[str, str]  # setting of [graph] -> backend; a missing setting means auto


@dataclass(frozen=True)
class Backend:
    """Needs of a backend: modules (`install` tells how to get them); the only device, "cpu" or "cuda", or any."""

    modules: tuple[str, ...] = ()
    install: str = ""
    device: str = ""


@dataclass(frozen=True)
class Family:
    """Ops with the same backends. names: allowed in a call; auto: the order in which `auto` tries them; setting: the
    key of [graph] that replaces auto; title: for errors."""

    names: tuple[str, ...]
    auto: tuple[str, ...]
    setting: str = ""
    title: str = "implementation"


BACKENDS = {
    "numba": Backend(("numba",), "pip install 'gpu-rag[cpu]'", "cpu"),
    "torch": Backend(),
    "reference": Backend(),
    "triton": Backend(("triton",), "pip install 'gpu-rag[gpu]'", "cuda"),
    "cugraph": Backend(("pylibcugraph", "cupy"), "pip install 'gpu-rag[gpu]'", "cuda"),
    "faiss": Backend(("faiss",), "pip install 'gpu-rag[faiss]' (CPU) or 'gpu-rag[gpu]'"),
}
FAMILIES = {
    "ops": Family(("numba", "torch"), ("numba", "torch"), "ops"),
    "components": Family(("torch", "cugraph"), ("torch",)),
    "frontier": Family(("numba", "torch", "triton"), ("triton", "numba", "torch"), "ops"),
    "pagerank": Family(("numba", "torch"), ("numba", "torch"), "pagerank", "PageRank"),
    "neighbours": Family(("torch", "faiss"), ("torch",), "neighbours"),
    "loops": Family(("triton", "reference"), ("triton", "reference")),
}
LOOPS = {  # loop -> folder, for loops with a plain reference and a Triton version
    "minplus_relax": "bubble",
    "msbfs_or": "ego",
    "ppr_step": "pagerank",
    "ragged_gather_dot_topk": "frontier",
}

_preferred: ContextVar[Preferences | None] = ContextVar("preferred", default=None)
_record: ContextVar[dict[str, set[str]] | None] = ContextVar("record", default=None)


def pick_implementation(device: torch.device, implementation: str = "auto", op: str = "", family: str = "ops") -> str:
    """The backend that runs an op of a family on tensors of `device`: `implementation`, or the meaning of `auto`.

    auto: the preferred backend of the family, else the first of its `auto` list that works here. All backends of an op
    give the same result, as its docstring says. op: its name in the record. Raises MissingBackend; UsageError for an
    unknown name or a backend that cannot take this device.
    """
    implementation, names = preferred(family, implementation), FAMILIES[family].names
    if implementation == "auto":
        implementation = _first(family, is_cpu(device), find_spec)
    elif implementation not in names:
        title = FAMILIES[family].title
        raise UsageError(f"no such {title}", given=implementation, expected=", ".join((*names, "auto")))
    else:
        check_backend(implementation, device)
    return chosen(op, implementation) if op else implementation


def check_backend(name: str, device: torch.device | None = None) -> None:
    """Raise MissingBackend if a backend is not installed, UsageError if it cannot take tensors on `device`."""
    needed = BACKENDS[name]
    if not all(installed(module) for module in needed.modules):
        raise MissingBackend(f"{needed.modules[0]} is not installed", do=needed.install)
    if device is None or needed.device in ("", device.type) or (name == "triton" and interpreted()):
        return
    if needed.device == "cpu":
        raise UsageError(f"{name} works on the CPU", given=f"tensors on {device}", expected="torch or auto")
    expected = "a GPU, or TRITON_INTERPRET=1" if name == "triton" else "a GPU"
    raise UsageError(f"{name} works on a GPU", given=f"tensors on {device}", expected=expected)


@cache
def _first(family: str, on_cpu: bool, look_up: Callable[[str], object]) -> str:
    """The meaning of `auto` without a preference. The cache key includes the function that looks up modules."""
    device = "cpu" if on_cpu else "cuda"
    for name in FAMILIES[family].auto:
        if BACKENDS[name].device in ("", device) and all(_finds(look_up, m) for m in BACKENDS[name].modules):
            return name
    raise MissingBackend(f"no backend of {family} works on {device}", do="pip install gpu-rag")


def installed(module: str) -> bool:
    """Whether a module is installed; cached, because a look-up costs more than some of the ops that need it."""
    return _finds(find_spec, module)


@cache
def _finds(look_up: Callable[[str], object], module: str) -> bool:
    return look_up(module) is not None


def interpreted() -> bool:
    """Whether Triton's own switch makes kernels run interpreted on the CPU, as in tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def is_cpu(device: torch.device) -> bool:
    """Whether a device is the CPU; cached, because torch takes ten times as long to tell the type."""
    return device.type == "cpu"


def kernel(loop: str, function: str, device: torch.device, implementation: str = "auto") -> Callable[..., Any]:
    """`function` of a loop, in Triton or as the plain reference. The choice is recorded under the loop's name. Triton
    starts kernels on the current device, so the tensors' device is made current for the call."""
    name = pick_implementation(device, implementation, loop, "loops")
    target: Callable[..., Any] = getattr(import_module(f"gpu_rag_kernels.{LOOPS[loop]}.{name}"), function)
    return partial(_on, device, target) if name == "triton" and device.type == "cuda" else target


def _on(device: torch.device, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    import torch

    with torch.cuda.device(device):
        return function(*arguments, **options)


@cache
def loaded(module: str) -> Any:
    """A module, imported by the first call. An import statement would be noticeable in a call of 20 us."""
    return import_module(module)


def compiled_checks(device: torch.device) -> Any:
    """The compiled checks of arguments; None if the device is not the CPU or numba is not installed. Checks take most
    of the time of a short call: a dozen calls of torch take 30 us."""
    return loaded("gpu_rag_kernels.checks") if is_cpu(device) and installed("numba") else None


@contextmanager
def preferring(preferences: Preferences) -> Iterator[None]:
    """Make `auto` mean the backend named for a family's setting: pagerank, neighbours, or ops (all others). An op that
    is called with a name keeps that name."""
    token = _preferred.set(dict(preferences))
    try:
        yield
    finally:
        _preferred.reset(token)


def preferred(family: str, implementation: str) -> str:
    """`implementation`, or the preferred backend of the family if it is "auto"."""
    if implementation != "auto":
        return implementation
    preferences = _preferred.get()
    return preferences.get(FAMILIES[family].setting, "auto") if preferences else "auto"


def taken(preferences: Preferences, device: str) -> dict[str, str]:
    """The backend of each setting on `device`: {"pagerank", "ops", "neighbours"}. A check before any work: raises
    MissingBackend or UsageError if a preferred backend is not installed or cannot take the device."""
    import torch

    with preferring(preferences):
        return {
            name: pick_implementation(torch.device(device), family=name) for name in ("pagerank", "ops", "neighbours")
        }


@contextmanager
def recording() -> Iterator[dict[str, set[str]]]:
    """Record the backends that ops choose inside, by the op's name: {"reachable": {"numba"}}."""
    record: dict[str, set[str]] = {}
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def chosen(op: str, implementation: str) -> str:
    """Record that `op` runs by `implementation`; return `implementation`."""
    record = _record.get()
    if record is not None:
        record.setdefault(op, set()).add(implementation)
    return implementation


def spelled(record: Mapping[str, set[str]]) -> dict[str, str]:
    """{op: its backends, joined by ", "}, sorted by name."""
    return {op: ", ".join(sorted(record[op])) for op in sorted(record)}
