"""One way through a knowledge base for each of many chains of relations: the edges behind a reasoning path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.ragged import ragged_of_lists, some_lists
from gpu_rag.graph.reach import EITHER, IN, OUT, intersect, reachable
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched
from gpu_rag.types import Path, Ragged

_TURNED = {OUT: IN, IN: OUT, EITHER: EITHER}


@dataclass(frozen=True)
class Walk:
    """A way to be found: from one of `starts` along `chain` to `end`. ways: OUT, IN or EITHER for each step; () for
    EITHER."""

    starts: tuple[int, ...]
    chain: tuple[int, ...]
    end: int
    ways: tuple[int, ...] = ()

    @property
    def directions(self) -> tuple[int, ...]:
        """The direction of each step."""
        return self.ways or (EITHER,) * len(self.chain)


@batched(GRAPH, name="kb_walks")
@trusted()
def walk_nodes(index: Index, walks: list[Walk]) -> list[tuple[int, ...]]:
    """The nodes of one way for each walk, of the lowest row at every step from the start; () where there is none.

    Backward sets B_L = {end}, B_(i-1) = nodes one step of relation i from B_i; then forward, the lowest node that is
    both a neighbour and in B_i. Batched over the walks, step by step.
    """
    kb, threads = kb_of(index), index.threads
    longest = max((len(walk.chain) for walk in walks), default=0)
    back = [ragged_of_lists([[walk.end] for walk in walks], kb.device)]
    for step in range(longest):  # aligned at the end: a shorter chain has no relation left and stays
        part = [slice(-1 - step, len(walk.chain) - step) for walk in walks]
        relations = [walk.chain[at] for walk, at in zip(walks, part)]
        turned = [[_TURNED[way] for way in walk.directions[at]] for walk, at in zip(walks, part)]
        back.append(_stepped(kb, back[-1], relations, turned, threads))
    ways: list[list[int]] = [[] for _ in walks]
    at = ragged_of_lists([sorted(set(walk.starts)) for walk in walks], kb.device)
    for step in range(longest + 1):
        left = [len(walk.chain) - step for walk in walks]  # steps to go; below 0: the walk is at its end
        allowed = _picked(back, left, kb.device)
        both = intersect(at, allowed)
        lowest = _lowest(both)
        for way, node, more in zip(ways, lowest, left):
            if node >= 0 and more >= 0:
                way.append(node)
        here = [[node] if node >= 0 else [] for node in lowest]
        relations = [walk.chain[step : step + 1] for walk in walks]
        directions = [walk.directions[step : step + 1] for walk in walks]
        at = _stepped(kb, ragged_of_lists(here, kb.device), relations, directions, threads)
    return [tuple(way) if len(way) == len(walk.chain) + 1 else () for way, walk in zip(ways, walks)]


def _stepped(
    kb: KnowledgeBase, nodes: Ragged, relations: Sequence[Sequence[int]], ways: Sequence[Sequence[int]], threads: int
) -> Ragged:
    """One step of each list's relation; a list without one stays where it is."""
    chain, directions = ragged_of_lists(relations, kb.device), ragged_of_lists(ways, kb.device)
    found = reachable(kb.typed, nodes, chain, directions, threads=threads)
    return Ragged(found.values.long(), found.offsets)


def _picked(lists: Sequence[Ragged], which: Sequence[int], device: str | torch.device) -> Ragged:
    """List b of lists[which[b]]; none where that is negative."""
    sizes = torch.cat([*(one.offsets.diff() for one in lists), lists[0].offsets[:1]])  # at the end an empty one
    every, n = Ragged(torch.cat([one.values for one in lists]), offsets_of(sizes)), len(which)
    rows = [at * n + row if at >= 0 else len(lists) * n for row, at in enumerate(which)]
    return some_lists(every, torch.tensor(rows, dtype=torch.int64, device=device))


def _lowest(lists: Ragged) -> list[int]:
    """The first value of each ascending list, -1 of an empty one."""
    values = torch.cat([lists.values.long(), lists.offsets[:1]])  # one more, where there are none
    lowest = torch.where(lists.offsets.diff() > 0, values[lists.offsets[:-1]], -1)
    return [int(node) for node in lowest.tolist()]


async def path_along(kb: KnowledgeBase, walk: Walk) -> Path | None:
    """The way of a walk as a path of edges; None where there is none."""
    nodes = await walk_nodes(walk)
    if not nodes:
        return None
    edges = [_edge_row(kb, a, r, b) for a, r, b in zip(nodes, walk.chain, nodes[1:])]
    labels = (kb.relation_names[r] for r in walk.chain)
    text = " -> ".join((kb.node_names[nodes[0]], *labels, kb.node_names[walk.end]))
    source = "+".join(dict.fromkeys(kb.sources[kb.source[e]].name for e in edges))
    return Path(text, tuple(kb.triple(e) for e in edges), source)


def _edge_row(kb: KnowledgeBase, a: int, relation: int, b: int) -> int:
    """The first edge of a relation between two nodes, from `a` to `b` if there is one; edges are sorted."""
    for head, tail in ((a, b), (b, a)):
        low, high = np.searchsorted(kb.head, [head, head + 1])
        first, last = low + np.searchsorted(kb.relation[low:high], [relation, relation + 1])
        at = first + np.searchsorted(kb.tail[first:last], tail)
        if at < last and kb.tail[at] == tail:
            return int(at)
    raise AssertionError("a walk follows edges of the knowledge base")
