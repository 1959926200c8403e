"""One walk through a knowledge base for each of many chains of relations: the edges behind a reasoning path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_rag.graph.common.arrays import to_device
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.reach import EITHER, lowest_ways
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched
from gpu_rag.types import Path, Ragged

_NOTE = re.compile(r" \((.+)\)$")  # behind "file:line" in the provenance of an edge


@dataclass(frozen=True)
class Walk:
    """A walk to find, from one of `starts` along `chain` to `end`. ways: OUT, IN or EITHER a step; () for EITHER."""

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
    """The nodes along one path for each walk, with the lowest row at every step from the start; () if none."""
    kb = kb_of(index)
    lists = ([sorted(set(walk.starts)) for walk in walks], [walk.chain for walk in walks],
             [walk.directions for walk in walks], [[walk.end] for walk in walks])  # fmt: skip
    sizes = [np.cumsum([0, *map(len, side)], dtype=np.int64) for side in lists]
    flat = [np.array([v for group in side for v in group], np.int64) for side in lists]
    moved = to_device(kb.device, *flat, *sizes)
    starts, chains, directions, ends = map(Ragged, moved[:4], moved[4:])
    longest = max(len(walk.chain) for walk in walks)
    lowest = lowest_ways(kb.typed, starts, ends.values, chains, directions, longest).tolist()
    paths = [tuple(path[: len(walk.chain) + 1]) for path, walk in zip(lowest, walks)]
    return [path if min(path) >= 0 else () for path in paths]


def statements(edges: Sequence[tuple[str, str, str, str]]) -> str:
    """The origins and dates of the edges of a path, by the notes of their rows: " [A r B: register 2019-05-02]"; ""
    without notes. edges: as in `types.Path`."""
    notes = ((f"{head} {relation} {tail}", _NOTE.search(where)) for head, relation, tail, where in edges)
    lines = [f"{fact}: {note[1]}" for fact, note in notes if note]
    return f" [{'; '.join(lines)}]" if lines else ""


async def path_along(kb: KnowledgeBase, walk: Walk) -> Path | None:
    """One path of a walk, as edges; None if there is no path. Its text is "A -> r -> B <- s <- C"."""
    nodes = await walk_nodes(walk)
    if not nodes:
        return None
    edges = [_edge_row(kb, a, r, b) for a, r, b in zip(nodes, walk.chain, nodes[1:])]
    text = kb.node_names[nodes[0]]
    for edge, node, other in zip(edges, nodes, nodes[1:]):
        arrow = "->" if (kb.head[edge], kb.tail[edge]) == (node, other) else "<-"
        text += f" {arrow} {kb.relation_names[kb.relation[edge]]} {arrow} {kb.node_names[other]}"
    source = "+".join(dict.fromkeys(kb.sources[kb.source[e]].name for e in edges))
    return Path(text, tuple(kb.triple(e) for e in edges), source)


def _edge_row(kb: KnowledgeBase, a: int, relation: int, b: int) -> int:
    """The first edge of a relation between two nodes, from `a` to `b` if there is one. Edges are sorted."""
    for head, tail in ((a, b), (b, a)):
        low, high = np.searchsorted(kb.head, [head, head + 1])
        first, last = low + np.searchsorted(kb.relation[low:high], [relation, relation + 1])
        row = first + np.searchsorted(kb.tail[first:last], tail)
        if row < last and kb.tail[row] == tail:
            return int(row)
    raise AssertionError("a walk follows edges of the knowledge base")
