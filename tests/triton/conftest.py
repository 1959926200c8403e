"""Makes the modules of this folder importable, `from kernel_device import DEVICE`, and what the kernels' tests need."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.bench.measure import poisoned

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))
from kernel_device import ABLE  # noqa: E402  (beside this file)


@pytest.fixture
def nan_in_fresh_memory() -> Iterator[None]:
    """So output that is not written cannot look right."""
    with poisoned():
        yield


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch, nan_in_fresh_memory: None) -> Callable[..., None]:
    """lowered(loop, NAME=value): constants of a loop's kernels, since the interpreter takes milliseconds a program."""

    def lower(loop: str, **constants: int) -> None:
        if ABLE:
            for name, value in constants.items():
                monkeypatch.setattr(importlib.import_module(f"gpu_rag_kernels.{loop}.triton"), name, value)

    return lower


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A module of scripts/, by name."""
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "scripts"))
    return importlib.import_module
