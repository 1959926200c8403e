"""Graphs of PyG, which is imported when needed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from gpu_rag.errors import MissingBackend
from gpu_rag.graph.csr import is_symmetric, row_of_entry
from gpu_rag.types import CSR


def library(name: str) -> Any:
    """Import torch_geometric or one of its modules. Raises MissingBackend."""
    if find_spec("torch_geometric") is None:
        raise MissingBackend("PyG is not installed", do="pip install torch-geometric, or 'gpu-rag[gpu]'")
    return import_module(name)


def csr_to_edge_index(csr: CSR) -> tuple[Any, torch.Tensor | None]:
    """(torch_geometric.EdgeIndex [2, E] i64 sorted by row, weight f32[E] or None): edges from row to column."""
    pyg = library("torch_geometric")
    ends = torch.stack([row_of_entry(csr), csr.indices.long()])
    edges = pyg.EdgeIndex(ends, sparse_size=(csr.n, csr.n), sort_order="row", is_undirected=is_symmetric(csr))
    return edges, csr.weight
