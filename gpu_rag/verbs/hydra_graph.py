"""The evidence subgraphs of many questions: neighbourhoods of their topics, clustered, then reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.ego import CheckedGraph, ego_balls, induced_subgraphs
from gpu_rag.graph.path_nodes import nodes_on_paths
from gpu_rag.graph.paths import Ends, PathGraph
from gpu_rag.graph.ragged import ragged_of_keys, row_of_value
from gpu_rag.types import CSR, Blocks, Ragged
from gpu_rag.verbs.hydra_base import FactGraph
from gpu_rag.verbs.hydra_cluster import equal_nodes


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
    i32[m], every fused node of the neighbourhood and the node that stands for its cluster. orders: as wanted, those
    whose topics are all in `nodes`. taken, clustered, reduced: sizes after each step.
    """

    csr: CSR
    nodes: torch.Tensor
    ball: torch.Tensor
    representative: torch.Tensor
    orders: tuple[Order, ...]
    taken: Size
    clustered: Size
    reduced: Size

    def members(self, node: int) -> list[int]:
        """The fused nodes of the cluster that a fused node stands for, ascending."""
        ball, representative = self._on_cpu
        found: list[int] = ball[representative == node].tolist()
        return found

    @cached_property
    def _on_cpu(self) -> tuple[np.ndarray, np.ndarray]:
        """ball and representative, which are looked up for every node of every path that is shown."""
        return self.ball.cpu().numpy(), self.representative.cpu().numpy()

    def holds(self, nodes: Sequence[int]) -> list[bool]:
        """Which fused nodes the neighbourhood holds, members of clusters too."""
        wanted = torch.tensor(list(nodes), dtype=torch.int64, device=self.ball.device)
        found: list[bool] = torch.isin(wanted, self.ball.long()).tolist()
        return found


def question_graphs(
    graph: FactGraph, wanted: Sequence[GraphWanted], depth: int, *, cluster: bool = True, threads: int = 1
) -> list[QuestionGraph]:
    """The evidence subgraph of each question, all at once.

    1. the nodes within `depth` hops of the seeds; 2. `equal_nodes` become one (cluster=False: none do); 3. of an order
    with two topics or more, nodes that no path of at most `depth` hops a side can use are left out (`nodes_on_paths`);
    a question keeps the nodes of all its orders. Exact: a path of the clustered graph is never lost. Raises BadInput.
    """
    device = graph.keys.device
    seeds = _lists([sorted(set(one.seeds)) for one in wanted], device)
    alone = _lists([sorted({*one.seeds, *(t for o in one.orders for t in o.topics)}) for one in wanted], device)
    if depth < 1:
        raise BadInput("depth is out of range", given=depth, expected=">= 1 hop")
    ball = ego_balls(graph.checked, seeds, depth, threads=threads)
    representative, edges, triples = equal_nodes(graph, ball, alone)
    if not cluster:
        representative = ball.values.int()
    blocks = induced_subgraphs(graph.checked, _where(ball, representative == ball.values))
    final = _reduced(blocks, wanted, depth, threads)
    counts = torch.stack([ball.offsets.diff(), edges, triples], 1).tolist()
    sizes = [[_size(one, b) for b in range(len(wanted))] for one in (blocks, final)]
    found = []
    for b, one in enumerate(wanted):
        lo, hi = int(ball.offsets[b]), int(ball.offsets[b + 1])
        csr, nodes = _block(final, b)
        orders = tuple(order for order in one.orders if _has(nodes, order.topics))
        held = ball.values[lo:hi].clone(), representative[lo:hi].clone()
        found.append(QuestionGraph(csr, nodes, *held, orders, Size(*counts[b]), sizes[0][b], sizes[1][b]))
    return found


def _lists(rows: Sequence[Sequence[int]], device: torch.device) -> Ragged:
    offsets = torch.tensor([0, *map(len, rows)], dtype=torch.int64, device=device).cumsum(0)
    return Ragged(torch.tensor([v for row in rows for v in row], dtype=torch.int64, device=device), offsets)


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
    placed = [(row, _local(blocks, row[0], row[1].topics)) for row in rows]
    rows, local = [row for row, at in placed if at is not None], [at for _, at in placed if at is not None]
    ends = Ends(
        torch.tensor([o.opens for _, o in rows], dtype=torch.bool, device=device),
        torch.tensor([o.closes for _, o in rows], dtype=torch.bool, device=device),
    )
    kept = nodes_on_paths(_unnumbered(blocks.csr), _lists(local, device), depth, ends, threads=threads)
    n, batch = max(blocks.csr.n, 1), len(wanted)
    of_row = torch.tensor([b for b, _ in rows], dtype=torch.int64, device=device)
    keys = [of_row[row_of_value(kept)] * n + kept.values]
    several = set(of_row.tolist())
    for b, one in enumerate(wanted):  # an order of one topic may use the whole neighbourhood
        if b not in several or any(len(o.topics) == 1 for o in one.orders):
            keys.append(b * n + torch.arange(int(blocks.offsets[b]), int(blocks.offsets[b + 1]), device=device))
    nodes = ragged_of_keys(torch.unique(torch.cat(keys)), batch, n)
    inner = induced_subgraphs(CheckedGraph(blocks.csr), nodes)
    return Blocks(inner.csr, inner.offsets, blocks.global_ids[inner.global_ids.long()])


def _local(blocks: Blocks, b: int, topics: Sequence[int]) -> list[int] | None:
    """The nodes of the block-diagonal graph that fused nodes are in block b; None where one is missing."""
    lo, hi = int(blocks.offsets[b]), int(blocks.offsets[b + 1])
    part = blocks.global_ids[lo:hi]
    if not _has(part, topics):
        return None
    wanted = torch.tensor(list(topics), dtype=part.dtype, device=part.device)
    found: list[int] = (torch.searchsorted(part, wanted) + lo).tolist()
    return found


def _has(nodes: torch.Tensor, topics: Sequence[int]) -> bool:
    wanted = torch.tensor(list(topics), dtype=nodes.dtype, device=nodes.device)
    return bool(torch.isin(wanted, nodes).all())


def _unnumbered(csr: CSR) -> PathGraph:
    """A symmetric adjacency for path ops whose edge numbers nobody reads."""
    return PathGraph(csr, torch.arange(csr.m, dtype=torch.int32, device=csr.indices.device))


def _size(blocks: Blocks, b: int) -> Size:
    lo, hi = int(blocks.offsets[b]), int(blocks.offsets[b + 1])
    edges = int(blocks.csr.indptr[hi] - blocks.csr.indptr[lo]) // 2
    return Size(hi - lo, edges, edges)


def _block(blocks: Blocks, b: int) -> tuple[CSR, torch.Tensor]:
    """One block as a CSR of its own, with its fused nodes."""
    lo, hi = int(blocks.offsets[b]), int(blocks.offsets[b + 1])
    first, last = int(blocks.csr.indptr[lo]), int(blocks.csr.indptr[hi])
    indptr = blocks.csr.indptr[lo : hi + 1] - first
    return CSR(indptr, blocks.csr.indices[first:last] - lo), blocks.global_ids[lo:hi].clone()
