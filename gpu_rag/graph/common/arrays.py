"""Tensors as the numba kernels read them, which know no f16 and no bf16, and arrays with memory to spare."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def component_bits(vectors: torch.Tensor) -> Array:
    """Vectors f32, or the bits of f16 in u16."""
    vectors = vectors.contiguous()
    bits: Array = (vectors.view(torch.uint16) if vectors.dtype == torch.float16 else vectors).numpy()
    return bits


def score_bits(scores: torch.Tensor) -> Array:
    """Scores f32, or the bits of bf16 in i16."""
    bits: Array = (scores.view(torch.int16) if scores.dtype == torch.bfloat16 else scores).numpy()
    return bits


def form_of(tensor: torch.Tensor) -> str:
    """The dtype and the shape of a tensor, for errors."""
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def shortened(array: Array, size: int) -> Array:
    """The first `size` rows of an array of its own, in place: memory behind them was never written and goes back."""
    array.resize((size, *array.shape[1:]), refcheck=False)
    return array
