"""Checks of tensor dtypes and shapes; tensors as arrays for the numba kernels, which support neither f16 nor bf16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gpu_rag_kernels.dispatch import is_cpu

from gpu_rag.errors import BadInput
from gpu_rag.lazy import torch

Array = np.ndarray[Any, Any]

INTEGERS, FLOATS, ANY_FLOAT = ("i32", "i64"), ("f16", "f32"), ("f16", "bf16", "f32", "f64")
_SHORT = {
    "bool": "bool", "int32": "i32", "int64": "i64", "float16": "f16", "bfloat16": "bf16", "float32": "f32",
    "float64": "f64",
}  # fmt: skip


def check_form(
    tensor: torch.Tensor, what: str, dtypes: Sequence[str], shape: Sequence[int | str],
    device: torch.device | None = None,
) -> None:  # fmt: skip
    """Raise BadInput, with `what` as its message, unless the tensor has one of the dtypes, the shape, and the device
    (if given). A name in `shape` stands for an axis of any size."""
    sized = tensor.dim() == len(shape) and all(s == n or isinstance(s, str) for s, n in zip(shape, tensor.shape))
    if not sized or dtype_of(tensor) not in dtypes or (device is not None and tensor.device != device):
        expected = f"{' or '.join(dtypes)} [{', '.join(map(str, shape))}]"
        place = "" if device is None else f" on {device}"
        raise BadInput(what, given=f"{form_of(tensor)} on {tensor.device}", expected=expected + place)


def dtype_of(tensor: torch.Tensor) -> str:
    """The short name of the dtype of a tensor, such as f32; "" for a rare one."""
    return _SHORT.get(str(tensor.dtype).removeprefix("torch."), "")


def form_of(tensor: torch.Tensor) -> str:
    """The dtype and shape of a tensor, for error messages."""
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def component_bits(vectors: torch.Tensor) -> Array:
    """Vectors as f32, or as the bits of f16 in u16."""
    vectors = vectors.contiguous()
    bits: Array = (vectors.view(torch.uint16) if vectors.dtype == torch.float16 else vectors).numpy()
    return bits


def score_bits(scores: torch.Tensor) -> Array:
    """Scores as f32, or as the bits of bf16 in i16."""
    bits: Array = (scores.view(torch.int16) if scores.dtype == torch.bfloat16 else scores).numpy()
    return bits


def shortened(array: Array, size: int) -> Array:
    """The first `size` rows of an array that owns its memory, resized in place; the rest of it is freed."""
    array.resize((size, *array.shape[1:]), refcheck=False)
    return array


def are_masses(values: torch.Tensor) -> torch.Tensor:
    """Whether all values are finite and at least 0: bool[] on their device. One pass, and no wait."""
    if not values.numel():
        return torch.ones((), dtype=torch.bool, device=values.device)
    low, high = values.aminmax()  # both are NaN if any value is
    return (low >= 0) & (high < torch.inf)


def to_device(device: str | torch.device, *arrays: Array) -> tuple[torch.Tensor, ...]:
    """Move arrays to a device as tensors, in one copy."""
    device, parts = torch.device(device), [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    if is_cpu(device):
        return tuple(parts)
    moved = _packed(parts).pin_memory().to(device, non_blocking=True)
    return _unpacked(moved, parts)


def to_host(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Move tensors of one device to the CPU, in one copy, because each copy waits."""
    if is_cpu(tensors[0].device):
        return tensors
    return _unpacked(_packed(tensors).cpu(), tensors)


_ALIGNED = 16  # alignment of each part, in bytes


def _packed(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of several tensors, one after another, each padded to a multiple of 16."""
    pieces = []
    for part in parts:
        flat = part.contiguous().flatten().view(torch.uint8)
        pieces += [flat, flat.new_zeros(-flat.shape[0] % _ALIGNED)]
    return torch.cat(pieces)


def _unpacked(whole: torch.Tensor, like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    tensors, start = [], 0
    for part in like:
        size = part.numel() * part.element_size()
        tensors.append(whole[start : start + size].view(part.dtype).view(part.shape))
        start += size + -size % _ALIGNED
    return tuple(tensors)
