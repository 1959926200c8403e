"""The two numba kernels of PageRank: a sweep over all rows, and the pass that checks and writes the result.

Each row of the state holds LANES questions. Kernels run without the interpreter's lock, on one thread each: threads
take different tiles, so the bits do not depend on how many there are.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpu_rag.graph import pagerank_lanes
from gpu_rag.graph.pagerank_lanes import LANES

# numba supplies the first parameter of an intrinsic, which a type checker cannot know
_sweep_row: Any = pagerank_lanes.sweep_row
_finish_row: Any = pagerank_lanes.finish_row

PANEL = 16  # rows of f32 that fill a cache line when the result is written transposed


@numba.njit(cache=True, nogil=True, error_model="numpy")
def sweep(
    indptr: Any, indices: Any, weight: Any, scale: Any, inverse: Any, at: Any, damping: Any, source: Any,
    omega: Any, x: Any, y: Any, change: Any,
) -> None:  # fmt: skip
    """y = y + omega (z - y), z = (damping A x + source[at]) / scale, rows in ascending order; in place when y is x.

    change f64[LANES] = sum over rows of scale |z - x|, the L1 size of the step before relaxation. Rows are summed in
    the float type of damping, inverse and scale: f64 over an f32 state keeps the rounding of hubs out of it.
    """
    change[:] = 0.0
    for i in range(indptr.shape[0] - 1):
        _sweep_row(
            x, y, source, omega, change, indices, weight, i, at[i], indptr[i], indptr[i + 1], damping,
            inverse[i], scale[i],
        )  # fmt: skip


@numba.njit(cache=True, nogil=True, error_model="numpy")
def finish(
    indptr: Any, indices: Any, weight: Any, scale: Any, at: Any, damping: Any, source: Any, x: Any,
    lo: Any, wanted: Any, out: Any, gap: Any, mass: Any,
) -> None:  # fmt: skip
    """q = damping A x + source[at] in f64; gap = |q - scale x|_1 and mass = |q|_1 for each lane.

    out f32[B, hi - lo]: q of the nodes from lo on, for the lanes c with wanted[c] >= 0, in row wanted[c].
    """
    n, width = indptr.shape[0] - 1, out.shape[1]
    gap[:] = 0.0
    mass[:] = 0.0
    panel = np.empty((PANEL, LANES), np.float32)
    for start in range(0, n, PANEL):
        end = min(n, start + PANEL)
        for i in range(start, end):
            _finish_row(
                x, source, panel, gap, mass, indices, weight, i, at[i], i - start, indptr[i], indptr[i + 1], damping,
                scale[i],
            )  # fmt: skip
        for c in range(LANES):
            b = wanted[c]
            if b < 0:
                continue
            if start >= lo and start - lo + PANEL <= width and end - start == PANEL:
                for k in range(PANEL):  # a constant count: compiled to vector moves
                    out[b, start - lo + k] = panel[k, c]
            else:
                for i in range(max(start, lo), min(end, lo + width)):
                    out[b, i - lo] = panel[i - start, c]
