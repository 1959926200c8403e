"""Where a model runs and in which number format: the few decisions that both kinds of model share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpu_rag.errors import BadInput, MissingBackend, ModelError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def check_device(name: str) -> torch.device:
    """The torch device called `name`: "cpu", "cuda" or "cuda:N". Raises when it is unknown or absent."""
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
    """The number format of weights: `name`, or for "auto" bfloat16 wherever the processor computes in it.

    A processor without bfloat16 instructions emulates them many times slower than float32, so there "auto" is
    float32; on a GPU without them it is float16. The caller keeps the choice in its `dtype` attribute, which is shown
    to the user.
    """
    if name != "auto":
        if name not in DTYPES:
            raise BadInput("unknown number format", given=name, expected=f"auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cuda":
        with torch.cuda.device(device):  # the question is of the current one
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def use_threads(device: torch.device, threads: int) -> None:
    """Let torch compute with `threads` CPU threads. The setting is torch's own and holds for the whole process.

    One is the default throughout: the spin-waiting of OpenMP makes two threads many times slower than one as soon
    as something else runs on the machine. On a GPU the setting is left as it is.
    """
    if threads < 1:
        raise BadInput("a model needs a thread", given=f"threads={threads}", expected=">= 1")
    if device.type == "cpu" and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@contextmanager
def room_for(what: str, do: str) -> Iterator[None]:
    """Inside, a device that runs out of memory over `what` raises ModelError; `do`: the way out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError("the device ran out of memory", given=what, do=do) from error
