"""Dot products of unit vectors that come out the same everywhere, found fast.

Exact: components are taken on the grid of 2^-24 (f16 values lie on it; an f32 value moves by at most 2^-25, which is
no more than the rounding of f32 itself). Products are then multiples of 2^-48 and, for unit vectors, every partial sum
is below 2, so an f64 sum has no rounding at all: whatever the order, tile, batch, thread or device, the bits agree.

Fast: a `Filter` gives scores by a matrix product in f32, or in bf16 where the processor has matrix units for it, with
a proved bound `slack` on their distance from the exact ones. Only pairs which that leaves undecided are taken exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from gpu_rag_kernels.dispatch import compiled_checks
from gpu_rag_kernels.frontier import gather_dots

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import form_of

GRID = float(2**24)
LONGEST = 1.01  # a row may be so long: f16 rounding moves a unit row by at most 5e-4
SURELY = 1e-3  # of a squared length: more than the rounding of two ways to sum it differs by
_PART = 1 << 22  # components that are converted at a time


def check_unit_rows(vectors: torch.Tensor, name: str) -> None:
    """Raises BadInput unless `vectors` is f16/f32[N, D], D >= 1, every row of length 1 (to 1 %), or all zero."""
    if vectors.dim() != 2 or vectors.dtype not in (torch.float16, torch.float32) or vectors.shape[1] < 1:
        raise BadInput(f"{name} are no matrix", given=form_of(vectors), expected="f16 or f32 [N, D], D >= 1")
    if _are_units(vectors):
        return  # one compiled pass; the slow checks below say what is wrong
    wrong = [_are_no_units(rows).any() for _, rows in _parts(vectors)]
    if not wrong or not bool(torch.stack(wrong).any()):  # one wait for the device, however many parts
        return
    for first, rows in _parts(vectors):
        bad = _are_no_units(rows)
        if bool(bad.any()):
            at = int(bad.nonzero()[0, 0])
            given = f"length {float(torch.linalg.vector_norm(rows[at].float())):.6g} of row {first + at}"
            raise BadInput(f"{name} are not unit rows", given=given, expected="length 1, or a row of zeros")


def _are_no_units(rows: torch.Tensor) -> torch.Tensor:
    """bool[N]: the rows whose length is neither 1 nor 0."""
    length = torch.linalg.vector_norm(rows.float(), dim=1)
    return ~((length - 1).abs() <= LONGEST - 1) & (length != 0)


def _are_units(vectors: torch.Tensor) -> bool:
    """Whether a compiled pass finds all lengths well inside the bounds; False also where it is not meant to look."""
    checks = compiled_checks(vectors.device)
    if checks is None or vectors.dtype != torch.float32 or vectors.numel() > _PART:
        return False
    rows = vectors.detach().contiguous().numpy()
    return bool(checks.are_units(rows, (2 - LONGEST) ** 2 + SURELY, LONGEST**2 - SURELY))


def _parts(vectors: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Blocks of rows of bounded size, with their first row."""
    step = max(1, _PART // vectors.shape[1])
    for first in range(0, vectors.shape[0], step):
        yield first, vectors[first : first + step]


exact_dots = gather_dots  # the exact dot products of pairs of unit rows, on the grid


def on_grid(vectors: torch.Tensor) -> torch.Tensor:
    """`vectors` in f64, each component on the nearest multiple of 2^-24 (ties to even)."""
    return vectors.double().mul_(GRID).round_().div_(GRID)


@dataclass(frozen=True)
class Filter:
    """A way to make scores: by products in `dtype`, within `slack` of the exact ones."""

    dtype: torch.dtype
    slack: float

    def product(self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Scores [Nl, Nr] of rows that are in `dtype`, into `out` if given."""
        return torch.mm(left, right.T, out=out)


def filter_for(*vectors: torch.Tensor, dtype: torch.dtype | None = None) -> Filter:
    """The fastest filter for these (checked) vectors: bf16 on a CPU with AMX, else f32. `dtype` asks for one of them.

    slack: |x~.y~ - x.y| <= |x~ - x| |y~| + |x| |y~ - y| by Cauchy and Schwarz, the errors of bf16 rows being measured;
    to which come D u |x||y| for f32 accumulation, the step of the grid, and half a unit of a bf16 result (2^-8).

    It covers what follows in f32. With u = 2^-24 and rows up to 1.01 long, accumulation takes 1.03 D u and the
    grid 1.01 sqrt(D) u, so 2.2 (D + 64) u leaves 140 u: a share of at most 1, rounded (u / 2), added (2 u for sums
    below 4) and compared with a sum that was rounded (2 u), needs no slack of its own.
    """
    if dtype is None:
        on_cpu = all(v.device.type == "cpu" for v in vectors)
        dtype = torch.bfloat16 if on_cpu and has_instructions("amx_bf16") else torch.float32
    slack = unit_of(vectors[0].shape[1])
    if dtype == torch.bfloat16:
        slack += 2.1 * max(_rounding(v) for v in vectors) + 2.0**-8
    elif _rounds_f32():
        slack += 2.1 * 2.0**-8
    return Filter(dtype, slack)


def unit_of(n_dims: int) -> float:
    """The largest error of a product in f32, summed in any order, for rows of length 1."""
    return 2.2 * (n_dims + 64) * 2.0**-24


def _rounding(vectors: torch.Tensor) -> float:
    """The largest length of a row minus the same row in bf16."""
    worst = 0.0
    for _, rows in _parts(vectors):
        rows = rows.float()
        worst = max(worst, float(torch.linalg.vector_norm(rows - rows.bfloat16().float(), dim=1).max()))
    return worst


def has_instructions(*names: str) -> bool:
    """Whether the processor has any of the instructions; products by amx_bf16 are about 7 times as fast as f32."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    return ask is not None and any(ask().get(name, False) for name in names)


def _rounds_f32() -> bool:
    """Whether torch has been allowed to round the inputs of f32 products (TF32, bf16)."""
    backends: Any = torch.backends
    places = (backends, backends.mkldnn, backends.mkldnn.matmul, backends.cuda.matmul)
    return any(place.fp32_precision not in ("none", "ieee") for place in places)
