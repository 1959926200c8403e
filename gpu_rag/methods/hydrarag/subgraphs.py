"""The evidence subgraphs of many questions: neighbourhoods of their topics, clustered, then reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.ego import CheckedGraph, ego_balls, induced_subgraphs
from gpu_rag.graph.paths import Ends, PathGraph
from gpu_rag.graph.paths.nodes import nodes_on_paths
from gpu_rag.graph.ragged import ragged_of_keys, ragged_of_lists, row_of_value
from gpu_rag.methods.hydrarag.base import FactGraph
from gpu_rag.methods.hydrarag.cluster import equal_nodes
from gpu_rag.types import CSR, Blocks, Ragged


@dataclass(frozen=True)
class Order:
    """The topics of a path in their order, fused nodes, each once; and whether it goes on before the first and after
    the last of them (one topic without an open end is open after it)."""

    topics: tuple[int, ...]
    opens: bool = False
    closes: bool = False


@dataclass(frozen=True)
class GraphWanted:
    """What a question asks of the knowledge graphs. seeds: topics whose neighbourhood is taken; orders: the searches
    that the subgraph is for (their topics are in no cluster)."""

    seeds: tuple[int, ...]
    orders: tuple[Order, ...]


@dataclass(frozen=True)
class Size:
    """Of a subgraph: nodes, undirected edges, triples (a clustered edge has one list of relations, and counts once)."""

    nodes: int
    edges: int
    triples: int


@dataclass(frozen=True, eq=False)
class QuestionGraph:
    """The evidence subgraph of one question; what path verbs take and return beside it is in its local nodes.

    csr: the adjacency to be searched; nodes: i32[n], the fused node of each local one, ascending. ball, representative:
    i32[m], on the host: every fused node of the neighbourhood, ascending, and the node that stands for its cluster.
    orders: as wanted, those whose topics are all in `nodes`; places: the local nodes of the topics of each. taken,
    clustered, reduced: sizes after each step.
    """

    csr: CSR
    nodes: torch.Tensor
    ball: np.ndarray
    representative: np.ndarray
    orders: tuple[Order, ...]
    places: tuple[tuple[int, ...], ...]
    taken: Size
    clustered: Size
    reduced: Size

    def members(self, node: int) -> list[int]:
        """The fused nodes of the cluster that a fused node stands for, ascending."""
        found: list[int] = self.ball[self.representative == node].tolist()
        return found

    def holds(self, nodes: Sequence[int]) -> list[bool]:
        """Which fused nodes the neighbourhood holds, members of clusters too."""
        found: list[bool] = np.isin(np.array(nodes, np.int64), self.ball).tolist()
        return found


def question_graphs(
    graph: FactGraph, wanted: Sequence[GraphWanted], depth: int, *, cluster: bool = True, threads: int = 1
) -> list[QuestionGraph]:
    """The evidence subgraph of each question, all at once.

    1. the nodes within `depth` hops of the seeds; 2. `equal_nodes` become one (cluster=False: none do); 3. of an order
    with two topics or more, nodes that no path of at most `depth` hops a side can use are left out (`nodes_on_paths`);
    a question keeps the nodes of all its orders. Exact: a path of the clustered graph is never lost. The host waits for
    the device as often for many questions as for one. Raises BadInput.
    """
    device = graph.keys.device
    seeds = ragged_of_lists([sorted(set(one.seeds)) for one in wanted], device)
    topics = [{*one.seeds, *(topic for order in one.orders for topic in order.topics)} for one in wanted]
    alone = ragged_of_lists([sorted(one) for one in topics], device)
    if depth < 1:
        raise BadInput("depth is out of range", given=depth, expected=">= 1 hop")
    ball = ego_balls(graph.checked, seeds, depth, threads=threads)
    representative, edges, triples = equal_nodes(graph, ball, alone)
    if not cluster:
        representative = ball.values.int()
    blocks = induced_subgraphs(graph.checked, _where(ball, representative == ball.values))
    final = _reduced(blocks, wanted, depth, threads)
    counts = torch.stack([ball.offsets.diff(), edges, triples], 1).tolist()
    sides = torch.stack([ball.values.int(), representative]).cpu().numpy()
    starts = np.cumsum([0, *(size for size, _, _ in counts)])
    cuts = _cuts(final)
    sizes = zip(_sizes(_cuts(blocks)), _sizes(cuts))
    found = []
    for b, (clustered, reduced) in enumerate(sizes):
        csr, nodes = _block(final, cuts, b)
        members, leaders = (side[starts[b] : starts[b + 1]].copy() for side in sides)
        taken = Size(*counts[b])
        found.append(QuestionGraph(csr, nodes, members, leaders, (), (), taken, clustered, reduced))
    return _with_orders(found, wanted, final, cuts)


def _with_orders(
    graphs: Sequence[QuestionGraph], wanted: Sequence[GraphWanted], blocks: Blocks, cuts: _Cuts
) -> list[QuestionGraph]:
    """The graphs, each a block, with those of the wanted orders whose topics they have."""
    rows = [(b, order) for b, one in enumerate(wanted) for order in one.orders]
    kept: list[list[tuple[Order, tuple[int, ...]]]] = [[] for _ in wanted]
    for (b, order), places in zip(rows, _places(blocks, rows)):
        if places is not None:
            kept[b].append((order, tuple(place - cuts.nodes[b] for place in places)))
    return [
        replace(graph, orders=tuple(order for order, _ in own), places=tuple(places for _, places in own))
        for graph, own in zip(graphs, kept)
    ]


def _where(lists: Ragged, keep: torch.Tensor) -> Ragged:
    before = torch.zeros(keep.shape[0] + 1, dtype=torch.int64, device=keep.device)
    before[1:] = keep.cumsum(0)
    return Ragged(lists.values[keep], before[lists.offsets])


def _reduced(blocks: Blocks, wanted: Sequence[GraphWanted], depth: int, threads: int) -> Blocks:
    """Blocks without the nodes that no order can use; those of questions with one topic an order stay."""
    rows = [(b, o) for b, one in enumerate(wanted) for o in one.orders]
    rows = [(b, o) for b, o in rows if len(o.topics) > 1]
    if not rows:
        return blocks
    device = blocks.offsets.device
    placed = list(zip(rows, _places(blocks, rows)))
    rows, local = [row for row, at in placed if at is not None], [at for _, at in placed if at is not None]
    ends = Ends(
        torch.tensor([o.opens for _, o in rows], dtype=torch.bool, device=device),
        torch.tensor([o.closes for _, o in rows], dtype=torch.bool, device=device),
    )
    kept = nodes_on_paths(_unnumbered(blocks.csr), ragged_of_lists(local, device), depth, ends, threads=threads)
    n, batch = max(blocks.csr.n, 1), len(wanted)
    of_row = torch.tensor([b for b, _ in rows], dtype=torch.int64, device=device)
    keys = [of_row[row_of_value(kept)] * n + kept.values]
    several, cuts = {b for b, _ in rows}, _cuts(blocks)
    for b, one in enumerate(wanted):  # an order of one topic may use the whole neighbourhood
        if b not in several or any(len(o.topics) == 1 for o in one.orders):
            keys.append(b * n + torch.arange(cuts.nodes[b], cuts.nodes[b + 1], device=device))
    nodes = ragged_of_keys(torch.unique(torch.cat(keys)), batch, n)
    inner = induced_subgraphs(CheckedGraph(blocks.csr), nodes)
    return Blocks(inner.csr, inner.offsets, blocks.global_ids[inner.global_ids.long()])


def _places(blocks: Blocks, rows: Sequence[tuple[int, Order]]) -> list[list[int] | None]:
    """For each (block, order) the nodes of the block-diagonal graph that the topics are in that block; None where one
    is missing."""
    if not blocks.global_ids.shape[0]:
        return [None if order.topics else [] for _, order in rows]
    device, ids = blocks.offsets.device, blocks.global_ids.long()
    asked = [(b, topic) for b, order in rows for topic in order.topics]
    block, topic = torch.tensor(asked, dtype=torch.int64, device=device).view(-1, 2).unbind(1)
    width = torch.maximum(ids.amax(), topic.amax()) + 1 if asked else 1
    keys = row_of_value(Ragged(ids, blocks.offsets)) * width + ids  # ascending: blocks list their nodes so
    wanted = block * width + topic
    at = torch.searchsorted(keys, wanted).clamp_(max=keys.shape[0] - 1)
    found = iter(torch.where(keys[at] == wanted, at, -1).tolist())
    places = [[next(found) for _ in order.topics] for _, order in rows]
    return [None if -1 in one else one for one in places]


def _unnumbered(csr: CSR) -> PathGraph:
    """A symmetric adjacency for path ops whose edge numbers nobody reads."""
    return PathGraph(csr, torch.arange(csr.m, dtype=torch.int32, device=csr.indices.device))


@dataclass(frozen=True)
class _Cuts:
    """Where the nodes and the stored entries of each block begin: B + 1 numbers each, on the host."""

    nodes: list[int]
    entries: list[int]


def _cuts(blocks: Blocks) -> _Cuts:
    nodes, entries = torch.stack([blocks.offsets, blocks.csr.indptr[blocks.offsets]]).tolist()
    return _Cuts(nodes, entries)


def _sizes(cuts: _Cuts) -> list[Size]:
    """The size of each block."""
    edges = [(last - first) // 2 for first, last in pairwise(cuts.entries)]
    return [Size(hi - lo, m, m) for (lo, hi), m in zip(pairwise(cuts.nodes), edges)]


def _block(blocks: Blocks, cuts: _Cuts, b: int) -> tuple[CSR, torch.Tensor]:
    """One block as a CSR of its own, with its fused nodes."""
    (lo, hi), (first, last) = cuts.nodes[b : b + 2], cuts.entries[b : b + 2]
    indptr = blocks.csr.indptr[lo : hi + 1] - first
    return CSR(indptr, blocks.csr.indices[first:last] - lo), blocks.global_ids[lo:hi].clone()
