"""Fixed batches: the vector of a text has the same bits in any batch, or if it is computed alone.

Matrix products of different shapes round differently. So the shape in which a text is computed must depend on that text
alone: texts are grouped by their padded length, and each group is cut into batches of one fixed size. Dummy rows fill
the last batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from gpu_rag.models.device import room_for
from gpu_rag.models.embed.interface import OnBatch

NO_ROOM = "leave the GPU more room (vllm.gpu_memory_utilization), or --set models.device=cpu"


def pieces_by_length(texts: Sequence[str], chars: int) -> list[list[int]]:
    """Rows of `texts`, sorted by number of characters (ties by row) and cut into pieces.

    A piece has at most `chars` characters, or a single text. Each text counts 16 characters more than it has, so that
    the number of texts in a piece is bounded even if they are empty.
    """
    pieces, size = list[list[int]](), chars + 1
    for row in sorted(range(len(texts)), key=lambda row: len(texts[row])):
        weight = len(texts[row]) + 16
        if size + weight > chars:
            pieces.append([])
            size = 0
        pieces[-1].append(row)
        size += weight
    return pieces


def fixed_batches(lengths: Sequence[int], size: Callable[[int], int]) -> Iterator[tuple[int, list[int]]]:
    """Yield batches (length, rows) by ascending length: at most `size(length)` rows, all of one length.

    lengths: the padded length of each row. Rows of equal length stay in their order.
    """
    groups: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        groups.setdefault(length, []).append(row)
    for length in sorted(groups):
        rows = groups[length]
        for start in range(0, len(rows), size(length)):
            yield length, rows[start : start + size(length)]


def embed_batches(
    lengths: Sequence[int],
    size: Callable[[int], int],
    dim: int,
    compute: Callable[[list[int], int], torch.Tensor],
    on_batch: OnBatch | None = None,
) -> np.ndarray:
    """The vectors of n texts, f32[n, dim], computed in batches of at most size(length) texts of one length.

    lengths: the padded length of each text. compute(rows, length) returns the vectors of a batch, on any device; all
    are copied to the host together at the end. on_batch(n_done) is called after each batch. Raises ModelError if the
    device runs out of memory.
    """
    parts, order, n_done = [torch.zeros((0, dim))], list[int](), 0
    for length, rows in fixed_batches(lengths, size):
        with room_for(f"{size(length)} texts of {length} tokens", NO_ROOM):
            parts.append(compute(rows, length))
        order += rows
        n_done += len(rows)
        if on_batch is not None:
            on_batch(n_done)
    vectors = np.zeros((len(lengths), dim), dtype=np.float32)
    with room_for(f"{len(lengths)} vectors", NO_ROOM):
        vectors[order] = torch.cat(parts if n_done == 0 else parts[1:]).cpu().numpy()
    return vectors
