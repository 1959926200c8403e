"""Triton's interpreter on the stand-in device: a launch takes tensors of the device, and no others, as on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from stand_in import OnDevice, Refused, _record


def _arguments(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor) and not isinstance(value, OnDevice):
            raise Refused("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        yield value.inner if isinstance(value, OnDevice) else value


@contextmanager
def launches() -> Iterator[list[str]]:
    """The names of the kernels that are launched inside. Needs triton and TRITON_INTERPRET=1."""
    from triton.runtime.interpreter import GridExecutor

    names: list[str] = []
    plain = GridExecutor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        names.append(self.fn.__name__)
        given, named = [*_arguments(args)], dict(zip(kwargs, _arguments(kwargs.values())))
        _record(lambda: plain(self, *given, **named))
        plain(self, *given, **named)

    with patch.object(GridExecutor, "__call__", launch):
        yield names
