"""Sets of paths, the data type that the ops of path search exchange, and their shared checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import check_form
from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.csr import check_range
from gpu_rag.graph.ragged import check_ragged, keys_of
from gpu_rag.lazy import torch
from gpu_rag.types import CSR, Ragged

Array = np.ndarray[Any, Any]
Columns = tuple[Array, Array, Array, Array]

NO_END = 2**31 - 1  # bound of node numbers for an op that does not know the graph
MAX_HOPS = 22  # maximum hops of a path: the sum of 22 unit vectors has an exact squared length, see `scores`


@dataclass(frozen=True)
class PathGraph:
    """A checked symmetric adjacency with a number for every undirected edge. Made by `path_graph`.

    csr: without weights; edge: i32[E], the edge of every stored entry, -1 for a loop.
    """

    csr: CSR
    edge: torch.Tensor

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.csr.n

    @property
    def device(self) -> torch.device:
        """The device of the graph and of results."""
        return self.csr.indptr.device


@dataclass(frozen=True)
class PathSet:
    """P paths of at most W hops, ascending by (group, nodes), each once.

    group: i64[P], paths that compete for one beam; question: i64[P]; nodes: i32[P, W + 1], padded with -1 at the end;
    edges: i32[P, W], the edge between a node and the next, padded likewise.
    """

    group: torch.Tensor
    question: torch.Tensor
    nodes: torch.Tensor
    edges: torch.Tensor

    @property
    def size(self) -> int:
        """Number of paths P."""
        return int(self.nodes.shape[0])

    @cached_property
    def columns(self) -> Columns:
        """(group, question, nodes, edges) as arrays for kernels on the CPU."""
        group, question, nodes, edges = (
            part.contiguous().numpy() for part in (self.group, self.question, self.nodes, self.edges)
        )
        return group, question, nodes, edges

    @property
    def lengths(self) -> torch.Tensor:
        """The number of hops of each path: i64[P]."""
        return (self.edges >= 0).sum(1)

    def rows(self, which: torch.Tensor | slice) -> PathSet:
        """Some of the paths, by mask, slice or ascending rows."""
        if isinstance(which, torch.Tensor) and which.dtype == torch.bool:
            which = which.nonzero()[:, 0]  # once, not for each column, because the host waits for their number
        return PathSet(self.group[which], self.question[which], self.nodes[which], self.edges[which])


def check_paths(paths: PathSet, batch: int, device: torch.device) -> None:
    """Raise BadInput unless the arrays of `paths` fit together, lie on the graph's device and name questions below
    `batch`. The rest is the work of the ops that make sets of paths."""
    what = "paths have other dtypes, or no common shape"
    check_form(paths.nodes, what, ["i32"], ["P", "W + 1"], device)
    size, width = paths.nodes.shape
    check_form(paths.edges, what, ["i32"], [size, width - 1], device)
    for column in (paths.group, paths.question):
        check_form(column, what, ["i64"], [size], device)
    if size and not is_trusted(device):
        check_range(paths.question, batch, "the question of a path", "question")


def check_topics(graph: PathGraph, topics: Ragged) -> None:
    """Raise BadInput unless `topics` are lists of nodes of the graph, each list without repeats."""
    check_ragged(topics, "topics", n=graph.n, device=graph.device)
    if is_trusted(graph.device):
        return
    keys = keys_of(topics, max(graph.n, 1)).sort().values
    twice = (keys.diff() == 0).nonzero()
    if twice.numel():
        key = int(keys[twice[0, 0]])
        given = f"node {key % graph.n} in question {key // graph.n}"
        raise BadInput("a topic stands twice in its order", given=given, expected="each once")


def check_depth(depth: int) -> None:
    """Raise BadInput unless a topic may be expanded by `depth` hops."""
    if not 1 <= depth <= MAX_HOPS:
        raise BadInput("depth is out of range", given=depth, expected=f"1..{MAX_HOPS} hops")


def check_count(count: int, limit: int, what: str) -> None:
    """Raise BadInput if a call would process more than `limit` paths."""
    if count > limit:
        given = f"{count:,} at the {what} of the paths so far"
        raise BadInput("too many paths", given=given, expected=f"at most {limit:,}", do="prune with a smaller beam")


def in_order(paths: PathSet) -> PathSet:
    """The same paths, ascending by (group, nodes)."""
    return paths.rows(lexsort(*paths.nodes.T.flip(0), paths.group))


def padded(paths: PathSet, hops: int) -> PathSet:
    """The same paths with space for `hops` hops."""
    space = (0, hops - paths.edges.shape[1])
    if not space[1]:
        return paths
    nodes, edges = (torch.nn.functional.pad(part, space, value=-1) for part in (paths.nodes, paths.edges))
    return PathSet(paths.group, paths.question, nodes, edges)
