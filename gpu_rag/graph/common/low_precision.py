"""Fast dot products on the CPU with a proved error: in bf16 if the processor supports it, else in f32.

An op that computes pairs exactly if a fast score leaves them undecided needs no products of a fixed shape: its bits do
not depend on the fast score. The bounds hold for vectors of any length, measured row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dots.numba import TINY, to_bf16

from gpu_rag.graph.common.arrays import component_bits, score_bits
from gpu_rag.graph.common.dots import MAX_PRODUCT, f32_slack

Array = np.ndarray[Any, Any]


def fastest_dtype() -> torch.dtype:
    """bf16 if this processor has instructions for it (products are 2 to 7 times faster), else f32."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    features: dict[str, bool] = ask() if ask else {}
    return torch.bfloat16 if features.get("amx_bf16") or features.get("avx512_bf16") else torch.float32


def rounding_of(dtype: torch.dtype) -> float:
    """Twice the relative error of rounding a product to its dtype."""
    return 2.0**-8 if dtype == torch.bfloat16 else 2.0**-22


@dataclass(frozen=True)
class LowPrecision:
    """Rows ready for a product. length, error: f64[N], bounds on |row| and on |row - rounded row|."""

    rows: torch.Tensor
    length: Array
    error: Array

    def part(self, first: int, last: int) -> LowPrecision:
        """The rows first..last."""
        return LowPrecision(self.rows[first:last], self.length[first:last], self.error[first:last])

    @property
    def is_finite(self) -> bool:
        """Whether all bounds are finite; if not, a row is not finite, or so long that its square overflows."""
        return bool(largest(self.length) < np.inf)


def low_precision_rows(vectors: torch.Tensor, dtype: torch.dtype) -> LowPrecision:
    """Convert f16 or f32[N, D] on the CPU to rows of a product in `dtype`."""
    n = vectors.shape[0]
    if dtype == torch.float32:
        rows, floor = vectors.float(), TINY * vectors.shape[1] ** 0.5
        return LowPrecision(rows, 1.001 * torch.linalg.vector_norm(rows, dim=1).double().numpy() + floor, np.zeros(n))
    rows = torch.empty(vectors.shape, dtype=torch.bfloat16)
    length, error = np.empty(n), np.empty(n)
    to_bf16(component_bits(vectors), score_bits(rows), length, error)
    return LowPrecision(rows, length, error)


def slack_of(left: LowPrecision, right: LowPrecision) -> Array:
    """The largest distance of a product with any right row from the exact one, before its result is rounded: f64[Nl].

    |x~.y~ - x.y| <= |x~ - x| |y~| + |x| |y~ - y| by Cauchy and Schwarz. The bound of `dots` for f32 sums, times |x~|
    |y~|, is added; it covers the rounding of an exact product to f32 and to the grid of `dots`.
    """
    unit = f32_slack(left.rows.shape[1])
    longest, farthest = largest(right.length), largest(right.error)
    with np.errstate(invalid="ignore", over="ignore"):  # bounds may be infinite
        reach = (left.length + left.error) * (longest + farthest)
        slack = left.error * (longest + farthest) + left.length * farthest + unit * reach + 2.0**-100
        return np.where(reach < MAX_PRODUCT, slack, np.inf)


def products_of(left: LowPrecision, right: LowPrecision, out: torch.Tensor | None = None) -> tuple[torch.Tensor, float]:
    """The products of all left and right rows [Nl, Nr] in their dtype, and their largest distance from the exact ones.
    out: memory for them."""
    shape = len(left.rows), len(right.rows)
    scores = torch.mm(left.rows, right.rows.T, out=None if out is None else out[: shape[0] * shape[1]].view(shape))
    longest = largest(left.length) * largest(right.length)
    return scores, largest(slack_of(left, right)) + rounding_of(left.rows.dtype) * longest


def largest(bounds: Array) -> float:
    """The maximum of f64[N]; inf if one is NaN, 0 if it is empty."""
    maximum = float(bounds.max(initial=0.0))
    return maximum if maximum == maximum else np.inf
