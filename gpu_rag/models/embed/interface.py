"""Protocol of an embedder."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

import numpy as np

T = TypeVar("T", bound=Hashable)
OnBatch = Callable[[int], None]
Parts = Generator[tuple[list[int], np.ndarray], None, None]  # (rows, their vectors)


class Embedder(Protocol):
    """Texts to unit vectors.

    name: the spec of `load_embedder`; content_hash: sha256 of what determines the vectors (weights, tokenizer, pooling,
    code version); dim: D; device: torch's name of it; n_truncated: number of texts cut so far at the model's length;
    row_identical: whether a row has the same bits alone or in any batch, on one machine and device.
    """

    name: str
    content_hash: str
    dim: int
    device: str
    n_truncated: int
    row_identical: bool

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. `on_batch(n_done)` is called as rows are finished."""
        ...


def distinct(items: Sequence[T]) -> tuple[list[T], list[int]]:
    """Distinct texts, or others, in order of first appearance, and for each its position among them."""
    place: dict[T, int] = {}
    index = [place.setdefault(item, len(place)) for item in items]
    return list(place), index


def gathered(
    texts: Sequence[str], dim: int, parts: Callable[[Sequence[str], OnBatch | None], Parts], on_batch: OnBatch | None
) -> np.ndarray:
    """f32[n, dim], row i the vector of texts[i], from the parts of the distinct texts."""
    unique, index = distinct(texts)
    vectors = np.zeros((len(unique), dim), dtype=np.float32)
    with closing(parts(unique, on_batch)) as pieces:
        for rows, part in pieces:
            vectors[rows] = part
    return vectors[index]
