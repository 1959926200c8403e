"""Peers of `gpu-rag bench` for the cases of `paths`: other libraries at the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from gpu_rag.bench.case import Peer, alone, peer, too_large
from gpu_rag.graph.paths import PathGraph
from gpu_rag.graph.paths.bench import Loops, Scored, World, ranked

NETWORKX_NODES = 5_000  # on larger graphs with hubs, four hops by Python generators take seconds per question


IGRAPH_NODES = 200_000


NOTE = "looks at every path, without a beam"


def every_path(world: World, paths: Callable[[int, int], Iterable[list[int]]]) -> Peer:
    """A peer that ranks all `paths` between two nodes."""
    loops = Loops(world)

    def one(question: int) -> Scored:
        return ranked(loops, question, [tuple(path) for path in paths(*world.topics[question].tolist())])

    return alone(lambda start, count: range(start, start + count), one, NOTE)


@peer("igraph", needs="igraph")
def by_igraph(world: World) -> Peer:
    if world.graph.n > IGRAPH_NODES:
        return too_large(IGRAPH_NODES)
    import igraph

    graph = igraph.Graph(world.graph.n, edges=pairs(world.graph))
    return every_path(world, lambda one, other: graph.get_all_simple_paths(one, to=other, maxlen=2 * world.depth))


@peer("networkx", needs="networkx")
def by_networkx(world: World) -> Peer:
    if world.graph.n > NETWORKX_NODES:
        return too_large(NETWORKX_NODES)
    import networkx as nx

    graph = nx.Graph(pairs(world.graph).tolist())
    return every_path(world, lambda one, other: nx.all_simple_paths(graph, one, other, cutoff=2 * world.depth))


def pairs(graph: PathGraph) -> np.ndarray:
    """The edges as rows (smaller, larger)."""
    rows = torch.repeat_interleave(torch.arange(graph.n), graph.csr.indptr.diff())
    kept = rows < graph.csr.indices
    return torch.stack([rows[kept], graph.csr.indices[kept].long()], 1).numpy()
