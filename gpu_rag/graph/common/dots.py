"""Dot products of unit vectors with the same bits everywhere, computed fast.

Exact: components are on the grid of 2^-24 (f16 values already are; an f32 value moves by at most 2^-25, no more than
f32 rounding itself). Products are then multiples of 2^-48 and, for unit vectors, every partial sum is below 2. So an
f64 sum has no rounding at all: the bits agree for any order, tile, batch, thread or device.

Fast: scores come from a matrix product in f32, or in bf16 if the processor is faster with it (`low_precision`), with a
proved bound on their distance from the exact ones. Only pairs that this leaves undecided are computed exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_rag_kernels.dispatch import is_cpu
from gpu_rag_kernels.frontier import gather_dots

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import form_of
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.lazy import torch

GRID = float(2**24)
MAX_LENGTH = 1.01  # maximum row length: f16 rounding moves a unit row by at most 5e-4
_PART, _FEW = 1 << 22, 1 << 16  # components converted at a time; few components


def check_unit_rows(vectors: torch.Tensor, name: str) -> None:
    """Raise BadInput unless `vectors` is f16/f32[N, D], D >= 1, with every row of length 1 (to 1 %) or all zero."""
    if vectors.dim() != 2 or vectors.dtype not in (torch.float16, torch.float32) or vectors.shape[1] < 1:
        raise BadInput(f"{name} are not a matrix", given=form_of(vectors), expected="f16 or f32 [N, D], D >= 1")
    if is_trusted(vectors.device) or _are_surely_units(vectors):
        return
    bad = torch.cat([_are_no_units(rows) for rows in vectors.split(max(1, _PART // vectors.shape[1]))])
    if bool(bad.any()):  # one wait for the device, for any number of parts
        row = int(bad.nonzero()[0, 0])
        given = f"length {float(torch.linalg.vector_norm(vectors[row].float())):.6g} of row {row}"
        raise BadInput(f"{name} are not unit rows", given=given, expected="length 1, or a row of zeros")


def _are_no_units(rows: torch.Tensor) -> torch.Tensor:
    """True for rows whose length is neither 1 nor 0: bool[N]."""
    length = torch.linalg.vector_norm(rows.float(), dim=1)
    return ~((length - 1).abs() <= MAX_LENGTH - 1) & (length != 0)


def _are_surely_units(vectors: torch.Tensor) -> bool:
    """Whether a few f32 rows on the CPU are well inside the bounds: numpy takes a tenth of torch's time to see it."""
    if vectors.device.type != "cpu" or vectors.dtype != torch.float32 or vectors.numel() > _FEW:
        return False
    rows = vectors.detach().numpy()
    return bool((np.abs(np.einsum("ij,ij->i", rows, rows) - 1) <= 1 - (2 - MAX_LENGTH) ** 2 - 1e-3).all())


LOW = 2.0**11  # scale of the low part of a row, which keeps its bits in the range of f16
MAX_LENGTH_F16 = 2.0**15  # f16 ends slightly above; the fast score of a longer row is useless
MAX_PRODUCT = 2.0**120  # product of two lengths: above, sums in f32 may overflow


def products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of left and right rows, f32[B, N], each f16 or f32, within `products_slack`.

    On a GPU, if right is f16: by tensor cores, which multiply f16 and add in f32. Left rows in f32 are split into two
    f16 parts, high + low / 2^11.
    """
    if not takes_f16(right):
        return torch.mm(left.float(), right.float().T)
    if left.dtype == torch.float16:
        return torch.mm(left, right.T, out_dtype=torch.float32)
    high = left.half()
    low = ((left - high) * LOW).half()
    both = torch.mm(torch.cat([high, low]), right.T, out_dtype=torch.float32)
    return both[: len(left)].add_(both[len(left) :], alpha=1 / LOW)


def takes_f16(right: torch.Tensor) -> bool:
    """Whether `products` with these rows uses f16: not if torch may accumulate in f16."""
    if right.dtype != torch.float16 or is_cpu(right.device):
        return False
    return not getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False)


def products_slack(right: torch.Tensor) -> float:
    """The `f32_slack` of `products` with the right rows. For f16: sums may be truncated instead of rounded, which
    doubles the error; the two parts of a component of at most 1 miss it by 2^-22 of it and 2^-36; products are exact.
    """
    return 2 * unit_of(right.shape[1]) + 2.0**-21 if takes_f16(right) else f32_slack(right.shape[1])


exact_dots = gather_dots  # the exact dot products of pairs of unit rows, on the grid


def on_grid(vectors: torch.Tensor) -> torch.Tensor:
    """`vectors` in f64, with each component rounded to a multiple of 2^-24 (ties to even)."""
    return vectors.double().mul_(GRID).round_().div_(GRID)


def f32_slack(n_dims: int) -> float:
    """The largest error of an f32 score of unit rows: D u |x||y| for the accumulation, the step of the grid, and the
    rounding of inputs if torch may round them.

    It also covers later f32 arithmetic. With u = 2^-24 and rows of length up to 1.01, accumulation takes 1.03 D u and
    the grid 1.01 sqrt(D) u, so 2.2 (D + 64) u leaves 140 u. A share of at most 1, rounded (u / 2), added (2 u for sums
    below 4) and compared with a rounded sum (2 u), needs no extra slack.
    """
    return unit_of(n_dims) + (2.1 * 2.0**-8 if _rounds_f32() else 0.0)


def unit_of(n_dims: int) -> float:
    """The largest error of an f32 product, summed in any order, for rows of length 1."""
    return 2.2 * (n_dims + 64) * 2.0**-24


def _rounds_f32() -> bool:
    """Whether torch may round the inputs of f32 products (TF32, bf16)."""
    backends: Any = torch.backends
    places = (backends, backends.mkldnn, backends.mkldnn.matmul, backends.cuda.matmul)
    return any(place.fp32_precision not in ("none", "ieee") for place in places)
