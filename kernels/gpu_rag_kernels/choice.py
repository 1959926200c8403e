"""Which implementation of a kernel runs: its plain torch reference, or Triton."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.graph.common.backend import chosen

IMPLEMENTATIONS = ("triton", "reference")


def known(device: str = "cpu") -> tuple[str, ...]:
    """The implementations that can take tensors on `device` here."""
    able = has_triton() and (device.startswith("cuda") or interpreted())
    return IMPLEMENTATIONS if able else IMPLEMENTATIONS[1:]


def has_triton() -> bool:
    """Whether triton is installed; looked up once, since kernels are picked at every call."""
    return _finds(find_spec, "triton")


@cache
def _finds(look_up: Callable[[str], object], module: str) -> bool:
    """Kept by look-up: one that is put in its place is asked anew."""
    return look_up(module) is not None


def interpreted() -> bool:
    """Whether Triton's own switch says that kernels are interpreted on the CPU, as tests do."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def kernel(package: str, function: str, device: torch.device, implementation: str = "auto") -> Callable[..., Any]:
    """`function` of the module that `pick_kernel` names, triton or reference, in gpu_rag_kernels.`package`. The choice
    is told to the record of the backends. Triton starts kernels on the current device, so there it is made
    that of the tensors for the call."""
    name = chosen(package, pick_kernel(package, device, implementation))
    found: Callable[..., Any] = getattr(import_module(f"gpu_rag_kernels.{package}.{name}"), function)
    return partial(_on, device, found) if name == "triton" and device.type == "cuda" else found


def _on(device: torch.device, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with torch.cuda.device(device):
        return function(*arguments, **options)


def pick_kernel(op: str, device: torch.device, implementation: str = "auto") -> str:
    """triton | reference for tensors on `device`. auto: triton on CUDA where it is installed, else the reference.

    Raises UsageError for a name that does not exist or cannot take this device, MissingBackend.
    """
    if implementation not in (*IMPLEMENTATIONS, "auto"):
        expected = ", ".join((*IMPLEMENTATIONS, "auto"))
        raise UsageError(f"no such implementation of {op}", given=implementation, expected=expected)
    if implementation == "auto":
        return "triton" if device.type == "cuda" and has_triton() else "reference"
    if implementation == "triton":
        if not has_triton():
            raise MissingBackend("triton is not installed", do="pip install 'gpu-rag[gpu]'")
        if device.type != "cuda" and not interpreted():
            expected = "a GPU, or TRITON_INTERPRET=1"
            raise UsageError(f"{op} in triton works on a GPU", given=f"tensors on {device}", expected=expected)
    return implementation
