"""A CUDA device for tests that run where there is none: tensors that say they are on cuda:0, computed on the CPU.

    with stand_in() as device:
        graph = device.put(csr)                     # tensors, dataclasses, tuples, lists, dicts
        found = personalized_pagerank(graph, ...)   # or torch.zeros(3, device="cuda"), x.to("cuda"), x.cuda()
        rows = device.back(found)
    device.copies, device.syncs, device.atomic_sums, device.launches

What CUDA would refuse raises `Refused` (see `cuda_rules`) or TypeError, as there: tensors of two devices in one op,
`.numpy()` and np.asarray of a tensor on the device, products of integers, a generator of the other device. Writing
different values to one place is refused too, since CUDA does not say which stays. torch.cuda answers as if one device
were there, with `free` bytes.

It shows what a first call on a GPU would show. It shows nothing of speed, of the order of sums inside a kernel, of
races between streams, or of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import cuda_module
import torch
from cuda_rules import Refused, check_devices, check_kernel, check_one_writer, computed, is_atomic_sum, is_sync, name_of
from device_record import Copy, Record, caller, moved
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

__all__ = ["CUDA", "Copy", "Device", "OnDevice", "Refused", "stand_in"]

CUDA = torch.device("cuda:0")
CPU = torch.device("cpu")
NO_NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
VIEWS = {"view", "_unsafe_view", "slice", "select", "t", "transpose", "permute", "expand", "alias", "detach", "unbind",
         "squeeze", "unsqueeze", "as_strided", "split", "split_with_sizes", "_reshape_alias", "unfold", "diagonal",
         "_local_scalar_dense", "equal"}  # fmt: skip


class Device(Record):
    """The device: what happened on it, and data in and out."""

    def put(self, value: Any) -> Any:
        """`value` with every CPU tensor in it on the device."""
        return moved(value, lambda t: t if isinstance(t, OnDevice) else OnDevice(t.detach().clone()))

    def back(self, value: Any) -> Any:
        """`value` with every tensor in it on the CPU."""
        return moved(value, lambda t: t.inner.clone() if isinstance(t, OnDevice) else t)


_current: list[Device] = []


def _device() -> Device:
    return _current[-1] if _current else Device(0)  # a tensor that outlived its device


class OnDevice(torch.Tensor):
    """A tensor on the device; `inner` is the CPU tensor that holds it."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnDevice:
        strides = (inner.stride(), inner.storage_offset()) if inner.layout == torch.strided else (None, None)
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), *strides, dtype=inner.dtype, device=CPU)

    def __init__(self, inner: torch.Tensor):
        if isinstance(inner, OnDevice) or inner.requires_grad:
            raise NotImplementedError("the stand-in holds plain tensors without gradients")
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"{self.inner!r} on {CUDA}"

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(NO_NUMPY)
        return self.cpu().numpy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(NO_NUMPY)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("Unsupported device in DLTensor: only a library for CUDA can take it")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def cpu(self, **_: Any) -> torch.Tensor:
        return _to(self, CPU)

    def cuda(self, *_: Any, **__: Any) -> torch.Tensor:
        return self

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return _to(self, *args, **kwargs)

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None, device: Any = CUDA, **_: Any) -> torch.Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device)

    def pin_memory(self, *_: Any) -> torch.Tensor:
        raise Refused("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")

    def is_pinned(self, *_: Any) -> bool:
        return False

    def __deepcopy__(self, memo: Any) -> OnDevice:
        return OnDevice(self.inner.clone())


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An op with at least one tensor of the device: refused, or computed and recorded."""
    held = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    device, name = _device(), name_of(func)
    if name == "copy_":
        _record(lambda: _inner(args[0]).copy_(_inner(args[1])))
        return _copied(*args, **kwargs)
    check_devices(func, args, kwargs, [t for t in held if not isinstance(t, OnDevice)])
    check_kernel(func, held)
    args, kwargs = pytree.tree_map(_inner, (args, kwargs))
    check_one_writer(func, args, kwargs)
    if is_atomic_sum(func, args, kwargs):
        device.atomic_sums.append((name, caller()))
    if is_sync(func, args, kwargs):
        _refuse_in_recording(name)
        device.syncs.append((name, caller()))
    if name not in VIEWS:
        device.launches[name] += 1
    known = {id(t.inner): t for t in held if isinstance(t, OnDevice)}
    made = computed(func, args, kwargs)
    _record(lambda: _overwrite(made, computed(func, args, kwargs)))
    found = pytree.tree_map(lambda t: known.get(id(t), t), made)
    if any(t.shape != t.inner.shape for t in known.values()):
        raise NotImplementedError(f"{func} changes the shape of its argument: the stand-in cannot")
    return pytree.tree_map(
        lambda t: OnDevice(t) if isinstance(t, torch.Tensor) and not isinstance(t, OnDevice) else t, found
    )


def _record(step: Any) -> None:
    """A step for the CUDA graph that is being recorded, if one is."""
    recording = _device().recording
    if recording is not None:
        recording.steps.append(step)


def _refuse_in_recording(what: str) -> None:
    if _device().recording is not None:
        raise Refused(f"CUDA error: operation not permitted when stream is capturing: {what}")


def _overwrite(made: Any, again: Any) -> None:
    """Write the result of a replayed op into the memory of its result when it was recorded."""
    for old, new in zip(pytree.tree_leaves(made), pytree.tree_leaves(again)):
        strided = isinstance(old, torch.Tensor) and old.layout == torch.strided  # a sparse one shares its parts
        if strided and old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`target.copy_(source)`, on one device or across."""
    _inner(target).copy_(_inner(source))
    if isinstance(target, OnDevice) == isinstance(source, OnDevice):
        _device().launches["copy_"] += 1
    elif source.dim() or isinstance(source, OnDevice):  # a number goes with the launch
        _refuse_in_recording("a copy between the devices")
        _device().copied("cuda" if isinstance(target, OnDevice) else "cpu", target, waits=not non_blocking)
    return target


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.to` between the devices."""
    other = args[0] if args else kwargs.pop("other", None)
    force = kwargs.pop("copy", False)
    if isinstance(other, torch.Tensor):
        target, dtype, non_blocking = other.device, other.dtype, False
    else:
        target, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    here = isinstance(tensor, OnDevice)
    target = (CUDA if here else CPU) if target is None else target
    if target.type == "cuda" and target.index not in (None, 0):
        raise Refused(f"CUDA error: invalid device ordinal {target.index}")
    inner = _inner(tensor)
    same = (target.type == "cuda") == here
    if same and dtype in (None, inner.dtype) and not force:
        return tensor
    moved = inner.detach().to(dtype or inner.dtype, copy=True)
    if same:
        _device().launches["_to_copy"] += 1
        _record(lambda: moved.copy_(inner))
    else:
        _refuse_in_recording("a copy between the devices")
        _device().copied(target.type, moved, waits=not non_blocking)
    return OnDevice(moved) if target.type == "cuda" else moved


class _Placed(TorchFunctionMode):
    """Calls that name a device, and moves of CPU tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.to:
            return _to(*args, **kwargs)
        if func is torch.Tensor.cuda:
            return _to(args[0], CUDA)
        if func is torch.Tensor.pin_memory:
            return func.__get__(args[0])() if isinstance(args[0], OnDevice) else args[0].clone()
        kwargs.pop("pin_memory", None)
        if kwargs.get("device") is not None:
            return self._factory(func, args, kwargs)
        _check_generator(kwargs, any(isinstance(a, OnDevice) for a in args))
        return func(*args, **kwargs)

    def _factory(self, func: Any, args: Any, kwargs: Any) -> Any:
        on_device = torch.device(kwargs.pop("device")).type == "cuda"
        _check_generator(kwargs, on_device)
        data = args[0] if args and func in FROM_DATA else None
        if isinstance(data, OnDevice) and on_device and func is not torch.tensor:
            return _to(data, kwargs.get("dtype") or data.dtype)
        made = func(*pytree.tree_map(_inner, args), **pytree.tree_map(_inner, kwargs), device="cpu")
        if func in FROM_DATA and isinstance(data, OnDevice) != on_device:
            _device().copied("cuda" if on_device else "cpu", made, waits=True)
        return OnDevice(made) if on_device else made


def _check_generator(kwargs: dict[str, Any], on_device: bool) -> None:
    generator = kwargs.get("generator")
    if generator is not None and cuda_module.is_on_device(generator) != on_device:
        raise Refused(f"Expected a '{CUDA if on_device else CPU}' device type for generator but found the other")


def _from_dlpack(given: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return OnDevice(given.inner) if isinstance(given, OnDevice) else _REAL_DLPACK(given, *args, **kwargs)


_REAL_DLPACK = torch.from_dlpack


@contextmanager
def stand_in(*, free: int = 64 << 30, total: int = 80 << 30) -> Iterator[Device]:
    """Inside, this process has one CUDA device with `free` of `total` bytes; threads that it starts see it too."""
    if _current:
        raise RuntimeError("a stand-in is already there")
    device = Device(free)
    with ExitStack() as stack:
        stack.enter_context(cuda_module.patched(device, total, _Placed, _from_dlpack))
        stack.enter_context(_Placed())
        _current.append(device)
        stack.callback(_current.pop)
        yield device
