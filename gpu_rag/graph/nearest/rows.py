"""Rows of vectors that are searched again and again, by the library that is preferred."""

from __future__ import annotations

import torch

from gpu_rag.graph.common.backend import chosen
from gpu_rag.graph.nearest import nearest
from gpu_rag.graph.nearest.index import NearestIndex, nearest_index, pick_index
from gpu_rag.types import TopK


class NearestRows:
    """Rows ready to be searched: every exact search of a whole table of vectors goes through one of these.

    By `nearest`, or by an index of faiss, made at the first search, where faiss is preferred for `neighbours`
    (`backend.preferring`). base: f16/f32[N, D], for faiss of length 1 (to 1 %) or 0. Memory: faiss keeps an f32 copy.
    """

    def __init__(self, base: torch.Tensor):
        self.base = base
        self._faiss: NearestIndex | None = None

    def search(self, queries: torch.Tensor, k: int) -> TopK:
        """The k rows with the largest dot product with each unit query f32[B, D], exactly, by (-score, row).

        Scores of the two libraries may differ in the last bit of f32. Raises BadInput, UsageError, MissingBackend.
        """
        if pick_index(self.base.shape[0])[0] != "faiss":
            return nearest(queries, self.base, k)
        chosen("nearest_index", "faiss")  # at every search: a later run finds the index made
        if self._faiss is None:
            self._faiss = nearest_index(self.base, implementation="faiss")
        return self._faiss.search(queries, k)
