"""Checks shared by several stages: row numbers in range, ids in order, unit vectors for all rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpu_rag.index import tables
from gpu_rag.index.index import Index

ROWS = 1 << 16  # rows per block


def is_outside(values: np.ndarray, limit: int) -> np.ndarray:
    """bool[n]: the values outside [0, limit)."""
    mask: np.ndarray = (values < 0) | (values >= limit)
    return mask


def outside(values: np.ndarray, limit: int) -> int:
    """Number of values outside [0, limit)."""
    return int(is_outside(values, limit).sum())


def wrong_vectors(index: Index, stage: str, n: int, what: str = "", zeros: bool = False) -> Iterator[str]:
    """Faults of a stage's vectors: there must be n rows, one for each of `what`. zeros: some vectors may be 0.

    Memory: the file and a block.
    """
    vectors = tables.read_arrays(index.folder(stage) / "vectors.safetensors")["vectors"]
    if len(vectors) != n:
        yield f"{stage}: {len(vectors)} rows for {n} {what}".rstrip()
    blocks = (vectors[first : first + ROWS].astype(np.float32) for first in range(0, len(vectors), ROWS))
    lengths = (np.linalg.norm(block, axis=1) for block in blocks)
    if not all((np.isclose(length, 1, atol=5e-3) | (zeros & (length == 0))).all() for length in lengths):
        yield f"{stage}: not all vectors have length 1"
    dim = index.manifest.stages[stage].models["embedder"]["dim"]
    if vectors.shape[1:] != (dim,):
        yield f"{stage}: {list(vectors.shape[1:])} dimensions for {dim} of the embedder"
