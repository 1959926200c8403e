"""A mark that what ops are given was made by ours: on a device they then look at no number before they begin.

A look is a wait: the host stands until the device has come so far. Steps of methods pass lists from op to op, and read
an index whose files have checksums, so a batch would wait a dozen times to learn what is known. Dtypes, shapes and
devices are still checked, and on the CPU everything is: there a look costs little.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_marked: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trusted() -> Iterator[None]:
    """Inside, ops on a device trust the numbers that they are given. As a decorator: in the whole function."""
    token = _marked.set(True)
    try:
        yield
    finally:
        _marked.reset(token)


def is_trusted(device: torch.device) -> bool:
    """Whether numbers on `device` need no look."""
    return device.type != "cpu" and _marked.get()
