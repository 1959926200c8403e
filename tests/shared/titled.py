"""A graph with the edges of titles, made in memory."""

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.graph.csr import csr_from_edges, row_of_entry, weights_of
from gpu_rag.index.titles import TITLE_WEIGHT, title_edges
from gpu_rag.types import CSR


def titled(
    csr: CSR, titles: pa.ChunkedArray, names: pa.Array | pa.ChunkedArray, first: int, rows: np.ndarray | None = None
) -> CSR:
    """`csr`, symmetric, with TITLE_WEIGHT added between each passage and the node that its title names.

    titles, names, rows: as in `title_edges`; first: the node of passage 0. The same `csr` is returned if no title names
    a node.
    """
    nodes, passages = title_edges(titles, names, rows)
    if not len(nodes):
        return csr
    source, target = row_of_entry(csr), csr.indices.long()
    once = source < target
    node, passage = (torch.from_numpy(part).to(source.device) for part in (nodes, passages))
    added = torch.full(node.shape, TITLE_WEIGHT, device=source.device)
    pairs = ((source[once], node), (target[once], passage + first), (weights_of(csr)[once], added))
    src, dst, summed = (torch.cat(pair) for pair in pairs)
    return csr_from_edges(src, dst, csr.n, summed)
