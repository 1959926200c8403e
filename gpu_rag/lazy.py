"""The module `torch`, imported when one of its names is first used: a change of an index may need none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        """A stand-in that becomes the module on first use."""

        def __getattr__(self, name: str) -> Any:
            module = import_module("torch")
            self.__dict__ = module.__dict__  # later names are read from the module itself
            return getattr(module, name)

    torch = _Torch()
