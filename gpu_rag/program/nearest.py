"""Nearest rows of an index's vectors."""

from __future__ import annotations

import torch

from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.index.index import Index
from gpu_rag.types import TopK


def nearest_rows(index: Index, layer: str, queries: torch.Tensor, k: int) -> TopK:
    """The k rows of a layer's vectors with the largest dot product with each query f32[B, D]: see `NearestRows`.

    Not wider than the layer has rows, so a k without bound takes no more room than all of them.
    """
    rows = index.loaded(f"rows of {layer}", lambda _: NearestRows(index.vectors(layer)))
    return rows.search(queries, min(k, rows.base.shape[0]))
