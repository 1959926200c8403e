"""Sets of paths, the data type that the ops of path search exchange, and their shared checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_rag_kernels.dispatch import compiled_checks

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import check_form
from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.ragged import arrays_of, check_ragged, keys_of
from gpu_rag.types import CSR, Ragged

Array = np.ndarray[Any, Any]
Columns = tuple[Array, Array, Array, Array]

NO_END = 2**31 - 1  # bound of node numbers for an op that does not know the graph
MOST_HOPS = 22  # maximum hops of a path: the sum of so many unit vectors has an exact squared length, see `scores`


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


class Kind(NamedTuple):
    """The paths that an op accepts. The groups of question b are start(b) to start(b + 1) - 1, where start(b) is
    per_topic * offsets[b] + per_question * b.

    offsets: i64[B+1], of the checked topics; n: nodes are below n; padded: whether a path may be shorter than the
    longest. Edges may have any number: they are only copied, and checked where they are used (`score_paths`).
    """

    offsets: torch.Tensor
    per_topic: int
    per_question: int
    n: int = NO_END
    padded: bool = True


def check_paths(paths: PathSet, batch: int, device: torch.device, kind: Kind | None = None) -> None:
    """Raise BadInput if `paths` belong to other questions, do not fit `kind`, or are not on the graph's device."""
    what = "paths have other dtypes, or no common shape"
    check_form(paths.nodes, what, [torch.int32], ["P", "W + 1"], device)
    size, width = paths.nodes.shape
    check_form(paths.edges, what, [torch.int32], [size, width - 1], device)
    for column in (paths.group, paths.question):
        check_form(column, what, [torch.int64], [size], device)
    if not paths.size or is_trusted(device) or _are_paths(paths, batch, kind):
        return  # the slow check below says what is wrong
    falls = (paths.group.diff() < 0).any()
    found = torch.stack([falls.long(), *paths.question.aminmax()])
    found = found if kind is None else torch.cat([found, _misfits(paths, batch, kind).any(1).long()])
    falling, least, most, *misfits = found.tolist()  # one wait for the device
    if falling:
        raise BadInput("paths are not in order", given="a group that falls", expected="ascending groups")
    if not 0 <= least <= most < batch:
        given = f"question {most if most >= batch else least}"
        raise BadInput("a path is of no question", given=given, expected=f"0..{batch - 1}")
    if kind is not None and any(misfits):
        _refuse_misfit(paths, batch, kind)


def _are_paths(paths: PathSet, batch: int, kind: Kind | None) -> bool:
    """Whether a compiled pass finds no problem; also False if there is no such pass."""
    if compiled_checks(paths.group.device) is None:
        return False
    from gpu_rag_kernels.checks import are_of_kind, are_paths

    columns = paths.columns
    if kind is None:
        return bool(are_paths(columns[0], columns[1], batch))
    offsets, *others = kind
    return bool(are_of_kind(*columns, offsets.contiguous().numpy(), *others))


def _misfits(paths: PathSet, batch: int, kind: Kind) -> torch.Tensor:
    """Misfits as bool[3, P] on their device, without a wait: paths with a group out of range, with a node out of range,
    and paths that break off."""
    starts = kind.per_topic * kind.offsets + kind.per_question * torch.arange(batch + 1, device=kind.offsets.device)
    question = paths.question.clamp(0, max(batch - 1, 0))
    outside = (paths.group < starts[question]) | (paths.group >= starts[question + 1])
    no_node = ((paths.nodes < -1) | (paths.nodes >= kind.n)).any(1)
    there = paths.nodes >= 0
    broken = (there[:, 1:] & ~there[:, :-1] | (there[:, 1:] != (paths.edges >= 0)) | (paths.edges < -1)).any(1)
    broken |= ~there[:, 0]
    return torch.stack([outside, no_node, broken if kind.padded else broken | ~there.all(1)])


def _refuse_misfit(paths: PathSet, batch: int, kind: Kind) -> None:
    """Raise BadInput for the first path that does not fit its kind, with the reason."""
    what, row = (int(place) for place in _misfits(paths, batch, kind).nonzero()[0])
    given, end = f"nodes {paths.nodes[row].tolist()}, edges {paths.edges[row].tolist()}", kind.n - 1
    if what == 0:
        given = f"group {int(paths.group[row])} in question {int(paths.question[row])}"
        raise BadInput("a path is of no group of its question", given=given, expected="groups as `PathSet`s are made")
    if what == 1:
        raise BadInput("a path leaves the graph", given=given, expected=f"nodes 0..{end}, or -1 behind its end")
    expected = "an edge between every two nodes" + (", then -1" if kind.padded else ", no path shorter than another")
    raise BadInput("a path breaks off", given=given, expected=expected)


def check_topics(graph: PathGraph, topics: Ragged) -> None:
    """Raise BadInput unless `topics` are lists of nodes of the graph, each list without repeats."""
    check_ragged(topics, "topics", n=graph.n, device=graph.device)
    if is_trusted(graph.device):
        return
    if compiled_checks(graph.device) is not None:
        from gpu_rag_kernels.checks import are_distinct

        if are_distinct(*arrays_of(topics)):
            return  # the slow check below says what is wrong
    keys = keys_of(topics, max(graph.n, 1)).sort().values
    twice = (keys.diff() == 0).nonzero()
    if twice.numel():
        key = int(keys[twice[0, 0]])
        given = f"node {key % graph.n} in question {key // graph.n}"
        raise BadInput("a topic stands twice in its order", given=given, expected="each once")


def check_depth(depth: int) -> None:
    """Raise BadInput unless a topic may be expanded by `depth` hops."""
    if not 1 <= depth <= MOST_HOPS:
        raise BadInput("depth is out of range", given=depth, expected=f"1..{MOST_HOPS} hops")


def check_count(count: int, most: int, what: str) -> None:
    """Raise BadInput if a call would process more than `most` paths."""
    if count > most:
        given = f"{count:,} at the {what} of the paths so far"
        raise BadInput("too many paths", given=given, expected=f"at most {most:,}", do="prune with a smaller beam")


def in_order(paths: PathSet) -> PathSet:
    """The same paths, ascending by (group, nodes)."""
    return paths.rows(lexsort(*paths.nodes.T.flip(0), paths.group))


def padded(paths: PathSet, hops: int) -> PathSet:
    """The same paths with space for `hops` hops."""
    space = (0, hops - paths.edges.shape[1])
    nodes, edges = (torch.nn.functional.pad(part, space, value=-1) for part in (paths.nodes, paths.edges))
    return PathSet(paths.group, paths.question, nodes, edges)
