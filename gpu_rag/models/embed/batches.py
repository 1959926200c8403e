"""Fixed batches: a row is bit-equal alone or in any company.

A matrix product rounds differently for another shape. So the shape a text is computed in must depend on that text
alone: texts are grouped by their own padded length, and each group is cut into batches of one fixed size, the last
one filled up with dummy rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpu_rag.models.device import room_for
from gpu_rag.models.embed.interface import OnBatch

NO_ROOM = "leave the GPU more room (vllm.gpu_memory_utilization), or --set models.device=cpu"


def fixed_batches(lengths: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (length, rows) in order of length; at most `size` row numbers, all of that same length.

    lengths: the padded length of each row. Rows of equal length stay in their order.
    """
    groups: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        groups.setdefault(length, []).append(row)
    for length in sorted(groups):
        rows = groups[length]
        for start in range(0, len(rows), size):
            yield length, rows[start : start + size]


def embed_batches(
    lengths: Sequence[int],
    size: int,
    dim: int,
    compute: Callable[[list[int], int], np.ndarray],
    on_batch: OnBatch | None,
) -> np.ndarray:
    """f32[n, dim] of n texts, by batches of at most `size` texts of one length. compute(rows, length): those of one.

    on_batch(n_done) is called after each batch. Raises ModelError when the device has no memory left for one.
    """
    out = np.zeros((len(lengths), dim), dtype=np.float32)
    n_done = 0
    for length, rows in fixed_batches(lengths, size):
        with room_for(f"{size} texts of {length} tokens", NO_ROOM):
            out[rows] = compute(rows, length)
        n_done += len(rows)
        if on_batch is not None:
            on_batch(n_done)
    return out
