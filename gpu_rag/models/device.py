"""Device of a model, its number format, and the layout of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpu_rag.errors import BadInput, MissingBackend, ModelError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def check_device(name: str) -> torch.device:
    """Torch device "cpu", "cuda" or "cuda:N". Raises BadInput if it is unknown or not there, else MissingBackend."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadInput("unknown device", given=name, expected="cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise BadInput("unsupported device", given=name, expected="cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MissingBackend("no CUDA device was found", given=name, do="use cpu, or install a CUDA build of torch")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput("no such CUDA device", given=name, expected=f"a number below {torch.cuda.device_count()}")
    return device


def choose_dtype(device: torch.device, name: str = "auto") -> torch.dtype:
    """Number format of weights: `name`; for "auto" bfloat16 if the processor computes in it.

    Processors without bfloat16 instructions emulate them many times slower than float32. Without them, "auto" is
    float32 on a CPU and float16 on a GPU. The caller keeps the choice in its `dtype` attribute, which is shown to the
    user.
    """
    if name != "auto":
        if name not in DTYPES:
            raise BadInput("unknown number format", given=name, expected=f"auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cuda":
        with torch.cuda.device(device):  # is_bf16_supported asks about the current device
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def use_threads(device: torch.device, threads: int) -> None:
    """Let torch compute with `threads` CPU threads, a setting of the whole process. Has no effect for a GPU.

    One is the default throughout: because OpenMP threads spin while they wait, two threads are many times slower than
    one as soon as something else runs on the machine.
    """
    if device.type == "cpu" and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@contextmanager
def room_for(what: str, do: str) -> Iterator[None]:
    """Turn lack of device memory inside the block into ModelError. what: the thing that needs it; do: the way out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError("the device ran out of memory", given=what, do=do) from error


class PackedLinear(torch.nn.Module):
    """y = x W^T + b with bfloat16 W laid out once for the CPU's matrix units, by oneDNN. For inference.

    With plain weights each call repeats the layout; for the few rows of a decoding step that costs as much as the
    product. The same kernels compute the same results.
    """

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Product for x: bf16[..., in]; returns bf16[..., out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def pack_linear_layers(model: torch.nn.Module) -> int:
    """Replace every bfloat16 torch.nn.Linear of a model on CPU, if torch and processor can. Returns their number."""
    ops = torch.ops.mkldnn
    known = hasattr(ops, "_reorder_linear_weight") and hasattr(ops, "_linear_pointwise")
    if not (known and ops._is_mkldnn_bf16_supported()):
        return 0
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.is_cpu:
                setattr(parent, name, PackedLinear(child))
                count += 1
    return count
