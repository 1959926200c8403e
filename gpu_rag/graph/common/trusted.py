"""A mark that the inputs of ops come from this package: on a device, ops then do not read the values to check them.

Reading values makes the host wait for the device. Steps of methods pass lists from op to op, and read an index whose
files have checksums, so a batch would wait a dozen times to confirm known facts. Dtypes, shapes and devices are still
checked. On the CPU everything is checked, because that is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gpu_rag.lazy import torch

_marked: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trusted() -> Iterator[None]:
    """Inside, ops on a device trust the values of their inputs. Also a decorator for a whole function."""
    token = _marked.set(True)
    try:
        yield
    finally:
        _marked.reset(token)


def is_trusted(device: torch.device) -> bool:
    """Whether values on `device` need no check."""
    return device.type != "cpu" and _marked.get()
