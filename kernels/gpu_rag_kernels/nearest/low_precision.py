"""The numba kernels of rough rows: rounding them to bf16, and the bounds on what that and sums in f32 take."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpu_rag_kernels.nearest.numba import TINY, number_any


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy", inline="always")
def round_row(row: Any, rounded: Any) -> Any:
    """Rounds a row to bf16, bits in i16; returns |row|^2 and |row - rounded|^2 in f32, nearly."""
    squares, away = np.float32(0), np.float32(0)
    for k in range(row.shape[0]):
        x = np.float32(number_any(row[k]))
        bits = x.view(np.uint32)
        near = np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)  # to even
        rounded[k] = np.int16(near >> 16)
        moved = x - near.view(np.float32)
        squares += x * x
        away += moved * moved
    return squares, away


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def to_bf16(rows: Any, rounded: Any, length: Any, error: Any) -> None:
    """Rounds rows to bf16, bits in i16; length, error f64[N]: bounds on |row| and |row - rounded|."""
    floor = TINY * np.sqrt(np.float64(rows.shape[1]))
    for i in range(rows.shape[0]):
        squares, away = round_row(rows[i], rounded[i])
        length[i] = 1.001 * np.sqrt(np.float64(squares)) + floor
        error[i] = 1.001 * np.sqrt(np.float64(away)) + floor


@numba.njit(cache=True, nogil=True, error_model="numpy")
def largest(bounds: Any) -> Any:
    """The largest of f64[N], inf where one is NaN, 0 where there is none."""
    most = 0.0
    for i in range(bounds.shape[0]):
        most = most if bounds[i] <= most else bounds[i] if bounds[i] >= 0 else np.inf
    return most


@numba.njit(cache=True, nogil=True, error_model="numpy")
def slacks(length: Any, error: Any, longest: Any, farthest: Any, unit: Any, most: Any) -> Any:
    """f64[Nl], the slack of `slack_of`: longest, farthest: the largest bounds of the right; inf from `most` on."""
    out = np.empty(length.shape[0])
    for i in range(length.shape[0]):
        reach = (length[i] + error[i]) * (longest + farthest)
        slack = error[i] * (longest + farthest) + length[i] * farthest + unit * reach + 2.0**-100
        out[i] = slack if reach < most else np.inf
    return out
