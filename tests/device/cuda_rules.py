"""Rules of the stand-in device: what CUDA refuses of an op, and what it does differently from the CPU."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

aten = torch.ops.aten

# a 0-dim CPU tensor may stand for a number in these, beside all pointwise ops
TAKE_NUMBERS = {"fill_", "fill", "masked_fill_", "masked_fill", "index_fill_", "index_fill", "index_put_", "index_put",
                "_index_put_impl_", "where", "clamp", "clamp_", "lerp", "pow", "pow_"}  # fmt: skip
# their index tensors may be on the CPU
TAKE_INDICES = {"index", "index_put_", "index_put", "_index_put_impl_"}
# no CUDA kernel for integers or bool
FLOAT_PRODUCTS = {"mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "mv", "addmv", "addmv_",
                  "dot", "vdot", "addr", "_addmm_activation"}  # fmt: skip
CPU_ONLY = {"histogram", "_histogramdd_from_bin_cts"}
# sums by atomic adds: the order, and so the last bits of floats, differ from run to run
ATOMIC_SUMS = {"index_add_", "index_add", "scatter_add_", "scatter_add", "cumsum", "cumsum_", "put_", "put",
               "kthvalue", "histc", "median"}  # fmt: skip
# the host waits until the device has come so far, to learn a value or a size
SYNCS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "bincount",
         "equal", "is_nonzero"}  # fmt: skip


class Refused(RuntimeError):
    """CUDA would refuse this call."""


def name_of(func: Any) -> str:
    """`index_add_` of aten.index_add_.default."""
    return str(func._schema.name).split("::")[1]


@cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Places and names of the arguments that an op writes."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)


def _targets(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an op writes: the one it is called on, or those of out=."""
    found = [args[i] if i < len(args) else kwargs.get(name) for i, name in _written(func)]
    return [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]


def check_devices(func: Any, args: Sequence[Any], kwargs: dict[str, Any], on_cpu: list[torch.Tensor]) -> None:
    """Raises Refused where an op with a tensor of the device may not take those of the CPU beside it."""
    if not on_cpu:
        return
    name, free = name_of(func), set()
    if name in TAKE_INDICES and not isinstance_of(args[0], on_cpu):
        free = {id(t) for t in args[1] if t is not None}
    numbers = torch.Tag.pointwise in func.tags or name in TAKE_NUMBERS
    targets = {id(t) for t in _targets(func, args, kwargs)}
    for tensor in on_cpu:
        if id(tensor) in free or (numbers and tensor.dim() == 0 and id(tensor) not in targets):
            continue
        raise Refused(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! {func} "
            f"with a CPU tensor {tuple(tensor.shape)}"
        )


def isinstance_of(tensor: torch.Tensor, held: list[torch.Tensor]) -> bool:
    """Whether `tensor` itself is one of `held`."""
    return any(tensor is one for one in held)


def check_kernel(func: Any, tensors: list[torch.Tensor]) -> None:
    """Raises Refused where CUDA has no kernel for the op, or none for these types."""
    name = name_of(func)
    if name in CPU_ONLY:
        raise Refused(f"{func} has no CUDA kernel")
    if name in FLOAT_PRODUCTS and not all(t.is_floating_point() for t in tensors):
        raise Refused(f'"{name}_cuda" not implemented for {tensors[0].dtype}')


def is_atomic_sum(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the last bits of the result would differ from run to run: sums of whole numbers are exact."""
    held = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    return _adds_atomically(func, args, kwargs) and not _adds_once(func, args) and not all(map(_is_whole, held))


def _adds_once(func: Any, args: Sequence[Any]) -> bool:
    """Whether no place is added to twice, as far as one list of places tells."""
    places = {"index_add_": args[2:3], "index_add": args[2:3], "index_put_": args[1:2], "index_put": args[1:2]}
    flat = pytree.tree_leaves(places.get(name_of(func), ()))
    return len(flat) == 1 and flat[0].dtype in (torch.int32, torch.int64) and len(flat[0].unique()) == flat[0].numel()


def _adds_atomically(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    name = name_of(func)
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if name == "bincount":
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        return weights is not None and weights.is_floating_point()
    if first is None or not first.is_floating_point():
        return False
    if name in ("index_put_", "index_put"):
        return bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))
    if name in ("scatter_reduce_", "scatter_reduce"):
        return (args[4] if len(args) > 4 else kwargs["reduce"]) in ("sum", "mean", "prod")
    if name in ("index_reduce_", "index_reduce"):
        return (args[4] if len(args) > 4 else kwargs["reduce"]) in ("mean", "prod")
    return name in ATOMIC_SUMS


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor has whole numbers only, so small that their sums are whole too."""
    if not tensor.is_floating_point():
        return True
    room = 2.0 / torch.finfo(tensor.dtype).eps
    return bool((tensor == tensor.trunc()).all()) and float(tensor.abs().sum(dtype=torch.float64)) < room


def is_sync(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for the device."""
    name = name_of(func)
    if name in TAKE_INDICES:
        return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "segment_reduce":
        return not kwargs.get("unsafe")  # else it checks the lengths
    return name in SYNCS


def computed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The op on tensors of the CPU. CUDA's square root is the nearest number, torch's on the CPU is not always;
    products of f16 that are added in f32 are CUDA's alone."""
    if name_of(func) in ("mm", "addmm") and func._overloadname == "dtype":
        tensors = [a.float() if isinstance(a, torch.Tensor) else a for a in args if not isinstance(a, torch.dtype)]
        return getattr(aten, name_of(func)).default(*tensors, **kwargs)
    if func is aten.sqrt.default and args[0].is_floating_point() and args[0].dtype != torch.float16:
        return torch.from_numpy(np.asarray(np.sqrt(args[0].numpy())))
    return func(*args, **kwargs)


def check_one_writer(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises Refused where several different values are written to one place: on CUDA any of them may stay.

    Called with tensors of the CPU. The CPU writes in order, so it is enough to write in the reverse order too.
    """
    name = name_of(func)
    if name in ("index_put_", "index_put"):
        there, turned = _both_orders_of_put(args, kwargs)
    elif name in ("scatter_", "scatter") and func._overloadname.startswith("src"):
        target, dim, index, source = args[:4]
        there = target.clone().scatter_(dim, index, source)
        turned = target.clone().scatter_(dim, index.flip(dim), source.narrow(dim, 0, index.shape[dim]).flip(dim))
    elif name in ("index_copy_", "index_copy"):
        target, dim, index, source = args[:4]
        there = target.clone().index_copy_(dim, index, source)
        turned = target.clone().index_copy_(dim, index.flip(0), source.flip(dim))
    else:
        return
    if not torch.equal(there.nan_to_num(0.0), turned.nan_to_num(0.0)):
        raise Refused(f"{func} writes different values to one place: which of them stays is not defined on CUDA")


def _both_orders_of_put(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of index_put from first to last, and from last to first; leading index tensors of integers only."""
    target, indices, values = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if accumulate or any(t is None or t.dtype == torch.bool for t in indices):
        return target, target
    places = [t.flatten() for t in torch.broadcast_tensors(*indices)]
    shape = torch.broadcast_shapes(*(t.shape for t in indices))
    rest = target.shape[len(indices) :]
    held = values.expand(*shape, *rest).reshape(-1, *rest) if values.numel() else values
    if not held.numel():
        return target, target
    there = target.clone().index_put_(tuple(places), held)
    return there, target.clone().index_put_(tuple(p.flip(0) for p in places), held.flip(0))
