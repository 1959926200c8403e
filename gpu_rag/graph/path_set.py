"""Sets of paths: what the ops of path search hand to one another, and the checks that they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.compiled import compiled_checks
from gpu_rag.types import CSR

MOST_HOPS = 22  # of a path: the sum of so many unit vectors has an exact squared length, see `path_scores`


@dataclass(frozen=True)
class PathGraph:
    """A symmetric adjacency, checked, with a number for every undirected edge. Made by `path_graph`.

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
        """Where the graph is, and so where results will be."""
        return self.csr.indptr.device


@dataclass(frozen=True)
class PathSet:
    """P paths of at most W hops, ascending by (group, nodes), each once.

    group: i64[P], the paths that one beam is for; question: i64[P]; nodes: i32[P, W + 1], padded with -1 behind;
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

    @property
    def lengths(self) -> torch.Tensor:
        """Hops of each path: i64[P]."""
        return (self.edges >= 0).sum(1)

    def rows(self, which: torch.Tensor | slice) -> PathSet:
        """Some of the paths, by mask, slice or ascending rows."""
        if isinstance(which, torch.Tensor) and which.dtype == torch.bool:
            which = which.nonzero()[:, 0]  # once, not for each column: the host waits to learn how many there are
        return PathSet(self.group[which], self.question[which], self.nodes[which], self.edges[which])


def check_paths(paths: PathSet, batch: int, device: torch.device) -> None:
    """Raises BadInput where `paths` are not of these questions, or not where the graph is."""
    shapes = [tuple(part.shape) for part in (paths.group, paths.question, paths.nodes, paths.edges)]
    size, width = paths.nodes.shape
    if shapes != [(size,), (size,), (size, width), (size, width - 1)]:
        raise BadInput("paths have no common shape", given=shapes, expected="[P], [P], [P, W + 1], [P, W]")
    if any(part.device != device for part in (paths.group, paths.question, paths.nodes, paths.edges)):
        raise BadInput("paths are on another device", given=paths.nodes.device, expected=device)
    if not size or _are_paths(paths, batch):
        return  # the slow check below says what is wrong
    falls = (paths.group.diff() < 0).any()
    falling, least, most = torch.stack([falls.long(), *paths.question.aminmax()]).tolist()  # one wait for the device
    if falling:
        raise BadInput("paths are not in order", given="a group that falls", expected="ascending groups")
    if not 0 <= least <= most < batch:
        given = f"question {most if most >= batch else least}"
        raise BadInput("a path is of no question", given=given, expected=f"0..{batch - 1}")


def _are_paths(paths: PathSet, batch: int) -> bool:
    """Whether a compiled pass finds nothing wrong; False also where there is none."""
    if compiled_checks(paths.group.device) is None:
        return False
    from gpu_rag.graph.path_check_kernels import are_paths

    group, question = (part.contiguous().numpy() for part in (paths.group, paths.question))
    return bool(are_paths(group, question, batch))


def check_count(count: int, most: int, what: str) -> None:
    """Raises BadInput where a call would look at more than `most` paths."""
    if count > most:
        given = f"{count:,} at the {what} of the paths so far"
        raise BadInput("too many paths", given=given, expected=f"at most {most:,}", do="prune with a smaller beam")


def in_order(paths: PathSet) -> PathSet:
    """The same paths, ascending by (group, nodes)."""
    order = torch.arange(paths.size, device=paths.nodes.device)
    for column in (*paths.nodes.T.flip(0), paths.group):
        order = order[torch.argsort(column[order], stable=True)]
    return paths.rows(order)


def padded(paths: PathSet, hops: int) -> PathSet:
    """The same paths in room for `hops` hops."""
    room = (0, hops - paths.edges.shape[1])
    nodes, edges = (torch.nn.functional.pad(part, room, value=-1) for part in (paths.nodes, paths.edges))
    return PathSet(paths.group, paths.question, nodes, edges)
