"""Nearest rows of an index's vectors, by the library that is preferred."""

from __future__ import annotations

import torch

from gpu_rag.graph.nearest import nearest
from gpu_rag.graph.nearest_index import nearest_index, pick_index
from gpu_rag.index.index import Index
from gpu_rag.types import TopK


def nearest_rows(index: Index, layer: str, queries: torch.Tensor, k: int) -> TopK:
    """The k rows of a layer's vectors with the largest dot product with each unit query f32[B, D], exactly.

    By `gpu_rag.graph.nearest`, or by a faiss index, made at the first call, where faiss is preferred for neighbours
    (`graph.neighbours`); scores of the two may differ in the last bit of f32. Raises BadInput, MissingBackend.
    """
    base = index.vectors(layer)
    if pick_index(base.shape[0])[0] == "faiss":
        return index.loaded(f"faiss {layer}", lambda _: nearest_index(base)).search(queries, k)
    return nearest(queries, base, k)
