"""Tensors as the numba kernels read them: numba knows no f16 and no bf16."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def raw_components(vectors: torch.Tensor) -> Array:
    """What kernels read vectors from: f32, or the bits of f16 in u16."""
    vectors = vectors.contiguous()
    raw: Array = (vectors.view(torch.uint16) if vectors.dtype == torch.float16 else vectors).numpy()
    return raw


def raw_scores(scores: torch.Tensor) -> Array:
    """What kernels read scores from: f32, or the bits of bf16 in i16."""
    raw: Array = (scores.view(torch.int16) if scores.dtype == torch.bfloat16 else scores).numpy()
    return raw
