"""What the compiled ops share: checks for the CPU, where numba is installed, and arrays with room to spare.

The checks in torch behind the compiled ones say what is wrong. Around a short call the checks are most of the time: a
dozen calls of torch are 30 us, and ten times that where other work has emptied the caches.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
import torch

from gpu_rag.graph.common.backend import has_numba, is_cpu


def compiled_checks(device: torch.device) -> ModuleType | None:
    """The module `check_kernels`; None for another device than the CPU, and where numba is not installed."""
    return _check_kernels() if is_cpu(device) else None


@cache
def _check_kernels() -> ModuleType | None:
    if not has_numba():
        return None
    from gpu_rag_kernels.checks import rows as check_kernels

    return check_kernels


def shortened(array: np.ndarray, size: int) -> np.ndarray:
    """The first `size` rows of an array of its own, in place: memory behind them was never written and goes back."""
    array.resize((size, *array.shape[1:]), refcheck=False)
    return array
