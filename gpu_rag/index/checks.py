"""Checks shared by several stages: row numbers in range, ids in order, unit vectors for all rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.text.normalise import normalise_name

ROWS = 1 << 16  # rows per block


def is_outside(values: np.ndarray, limit: int) -> np.ndarray:
    """bool[n]: the values outside [0, limit)."""
    mask: np.ndarray = (values < 0) | (values >= limit)
    return mask


def outside(values: np.ndarray, limit: int) -> int:
    """Number of values outside [0, limit)."""
    return int(is_outside(values, limit).sum())


def stating(relations: pa.Table, label: str, subjects: range, objects: range) -> set[int] | None:
    """Passages that state a relation with one of these ends and this label; None if there is no such relation.

    relations: a table of relations, sorted by subject. label: normalised. Reads the relations of the subjects alone.
    """
    subject = relations["subject"].to_numpy()
    first, last = np.searchsorted(subject, [subjects.start, subjects.stop])
    candidates = relations.slice(first, last - first)
    ends = candidates["object"].to_numpy()
    candidates = candidates.take(np.flatnonzero((ends >= objects.start) & (ends < objects.stop)))
    rows = zip(candidates["label"].to_pylist(), candidates["passages"].to_pylist())
    stated_by = [passages for written, passages in rows if normalise_name(written) == label]
    return set().union(*stated_by) if stated_by else None


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
