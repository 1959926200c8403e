"""A graph prepared for PageRank: checked once, turned so that a row pulls from its in-neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from gpu_rag.graph.csr import check_csr, degrees, transpose
from gpu_rag.types import CSR

WIDEST = 1e30  # degrees beyond it, or below its inverse, leave the range of an f32 state


@dataclass(frozen=True)
class PageRankGraph:
    """A CSR made ready by `prepare`. Make one per graph and pass it to the ops instead of the CSR.

    pull: the transpose of the adjacency (the adjacency itself when symmetric); scale: f64[N], out-degree, 1 where it
    is 0; dangling: bool[N], nodes without outgoing weight; symmetric: whether undirected methods apply.
    """

    pull: CSR
    scale: torch.Tensor
    dangling: torch.Tensor
    has_dangling: bool
    symmetric: bool

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.pull.n

    @property
    def device(self) -> torch.device:
        """The device of the graph, and so of results."""
        return self.pull.indptr.device

    @cached_property
    def in_range(self) -> bool:
        """Whether an f32 state can hold 1 / degree of every node; looked up once."""
        return bool(((self.scale > 1 / WIDEST) & (self.scale < WIDEST)).all())

    @cached_property
    def views(self) -> dict[Any, Any]:
        """The graph in the form of each implementation, made by the first call; numba: 16 bytes a node."""
        return {}


def prepare(csr: CSR | PageRankGraph) -> PageRankGraph:
    """Checks `csr` (BadInput, as `check_csr`) and computes what every PageRank on it needs. O(E log E), once."""
    if isinstance(csr, PageRankGraph):
        return csr
    check_csr(csr)
    degree = degrees(csr)
    other = transpose(csr)
    symmetric = torch.equal(csr.indptr, other.indptr) and torch.equal(csr.indices, other.indices)
    if symmetric and csr.weight is not None and other.weight is not None:
        symmetric = torch.equal(csr.weight, other.weight)
    dangling = degree <= 0
    return PageRankGraph(
        pull=csr if symmetric else other,
        scale=torch.where(dangling, 1.0, degree),
        dangling=dangling,
        has_dangling=bool(dangling.any()),
        symmetric=symmetric,
    )
