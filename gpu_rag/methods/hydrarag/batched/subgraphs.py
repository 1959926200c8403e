"""The evidence subgraphs of many questions: neighbourhoods of their topics, clustered, then reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.ego import CheckedGraph, ego_balls, induced_subgraphs
from gpu_rag.graph.paths import Ends, PathGraph, nodes_on_paths
from gpu_rag.graph.ragged import expand, ragged_of_keys, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.methods.hydrarag.batched import TILE, each_alone
from gpu_rag.methods.hydrarag.batched.facts import FactChoice, FactGraph, facts_of
from gpu_rag.program.kinds import GRAPH
from gpu_rag.runtime.step import batched
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
    """The subgraph that a question needs. seeds: topics whose neighbourhood is taken; orders: the searches
    that the subgraph is for (their topics are in no cluster)."""

    seeds: tuple[int, ...]
    orders: tuple[Order, ...]


@dataclass(frozen=True)
class Size:
    """The size of a subgraph: nodes, undirected edges, triples (a clustered edge counts once)."""

    nodes: int
    edges: int
    triples: int


@dataclass(frozen=True, eq=False)
class QuestionGraph:
    """The evidence subgraph of one question; the paths of a search are in its local nodes.

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


@batched(GRAPH, tile=TILE)
def question_graph(
    index: Index, queries: list[GraphWanted], choice: FactChoice, depth: int, cluster: bool = True
) -> list[QuestionGraph | BadInput]:
    """The evidence subgraph around the seeds of each question, see `question_graphs`. Orders whose topics it lacks are
    left out."""
    facts = facts_of(index, choice)
    return each_alone(lambda some: question_graphs(facts, some, depth, cluster, index.threads), queries)


def question_graphs(
    graph: FactGraph, wanted: Sequence[GraphWanted], depth: int, cluster: bool, threads: int
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
    rows = [(b, order) for b, one in enumerate(wanted) for order in one.orders]
    there: list[list[tuple[Order, tuple[int, ...]]]] = [[] for _ in wanted]
    for (b, order), places in zip(rows, _places(final, rows)):
        if places is not None:
            there[b].append((order, tuple(place - cuts[0][b] for place in places)))
    found = []
    for b, (clustered, reduced) in enumerate(zip(_sizes(_cuts(blocks)), _sizes(cuts))):
        csr, nodes = _block(final, cuts, b)
        members, leaders = (side[starts[b] : starts[b + 1]].copy() for side in sides)
        orders, local = tuple(order for order, _ in there[b]), tuple(places for _, places in there[b])
        sizes = (Size(*counts[b]), clustered, reduced)
        found.append(QuestionGraph(csr, nodes, members, leaders, orders, local, *sizes))
    return found


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
    numbers = torch.arange(blocks.csr.m, dtype=torch.int32, device=device)  # of edges, which nobody reads
    kept = nodes_on_paths(PathGraph(blocks.csr, numbers), ragged_of_lists(local, device), depth, ends, threads=threads)
    n, batch = max(blocks.csr.n, 1), len(wanted)
    of_row = torch.tensor([b for b, _ in rows], dtype=torch.int64, device=device)
    keys = [of_row[row_of_value(kept)] * n + kept.values]
    several, cuts = {b for b, _ in rows}, _cuts(blocks)
    for b, one in enumerate(wanted):  # an order of one topic may use the whole neighbourhood
        if b not in several or any(len(o.topics) == 1 for o in one.orders):
            keys.append(b * n + torch.arange(cuts[0][b], cuts[0][b + 1], device=device))
    nodes = ragged_of_keys(torch.unique(torch.cat(keys)), batch, n)
    inner = induced_subgraphs(CheckedGraph(blocks.csr), nodes)
    return Blocks(inner.csr, inner.offsets, blocks.global_ids[inner.global_ids.long()])


def _places(blocks: Blocks, rows: Sequence[tuple[int, Order]]) -> list[list[int] | None]:
    """For each (block, order) the nodes of the block-diagonal graph that the topics are in that block; None where one
    is missing."""
    if not blocks.global_ids.shape[0]:
        return [None if order.topics else [] for _, order in rows]
    device, ids = blocks.offsets.device, blocks.global_ids.long()
    pairs = [(b, topic) for b, order in rows for topic in order.topics]
    block, topic = torch.tensor(pairs, dtype=torch.int64, device=device).view(-1, 2).unbind(1)
    width = torch.maximum(ids.amax(), topic.amax()) + 1 if pairs else 1
    keys = row_of_value(Ragged(ids, blocks.offsets)) * width + ids  # ascending: blocks list their nodes so
    wanted = block * width + topic
    at = torch.searchsorted(keys, wanted).clamp_(max=keys.shape[0] - 1)
    found = iter(torch.where(keys[at] == wanted, at, -1).tolist())
    places = [[next(found) for _ in order.topics] for _, order in rows]
    return [None if -1 in one else one for one in places]


Cuts = list[list[int]]  # where the nodes, and where the stored entries, of each block begin: B + 1 numbers each


def _cuts(blocks: Blocks) -> Cuts:
    cuts: Cuts = torch.stack([blocks.offsets, blocks.csr.indptr[blocks.offsets]]).tolist()
    return cuts


def _sizes(cuts: Cuts) -> list[Size]:
    """The size of each block."""
    counts = zip(*([high - low for low, high in pairwise(of)] for of in cuts))
    return [Size(n, m // 2, m // 2) for n, m in counts]


def _block(blocks: Blocks, cuts: Cuts, b: int) -> tuple[CSR, torch.Tensor]:
    """One block as a CSR of its own, with its fused nodes."""
    (lo, hi), (first, last) = (of[b : b + 2] for of in cuts)
    indptr = blocks.csr.indptr[lo : hi + 1] - first
    return CSR(indptr, blocks.csr.indices[first:last] - lo), blocks.global_ids[lo:hi].clone()


# --- nodes that say the same ------------------------------------------------------------------------


def equal_nodes(graph: FactGraph, nodes: Ragged, alone: Ragged) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The clusters of B subgraphs: (representative i32[T], edges i64[B], triples i64[B]).

    nodes: the nodes of each subgraph, ascending; alone: nodes that are in no cluster but their own (the topics), a list
    a subgraph, ascending. Two nodes of a subgraph are in one cluster where they have the same triples inside it, up to
    their own name. representative: beside nodes.values, the smallest node of the cluster. Members of a cluster are
    never neighbours, and each has the neighbours of every other; so the subgraph of the representatives alone is the
    clustered one. edges, triples: how many lie inside each subgraph. Sets are compared by sums of 2 * 64 random bits
    of their elements, and by their size.
    """
    batch, width = nodes.batch, max(graph.n, 1)
    owner, entry = _entries_inside(graph, nodes)
    subgraph = row_of_value(nodes)
    size = nodes.values.shape[0]
    degree = torch.bincount(owner, minlength=size)
    sums = torch.zeros(size, 2, dtype=torch.int64, device=owner.device).index_add_(0, owner, graph.signatures[entry])
    key = subgraph * width + nodes.values
    topics = torch.isin(key, row_of_value(alone) * width + alone.values)
    label = torch.where(topics, nodes.values.long() + 1, 0)  # a topic differs from all others
    columns = torch.stack([subgraph, label, degree, sums[:, 0], sums[:, 1]], 1)
    _, cluster = torch.unique(columns, dim=0, return_inverse=True)
    first = torch.full((size,), size, dtype=torch.int64, device=owner.device)
    place = torch.arange(size, device=owner.device)
    first = first.scatter_reduce(0, cluster, place, "amin")  # nodes ascend: the first place is the smallest node
    facts = graph.n_triples[graph.graph.edge[entry].long()]
    links = torch.zeros(batch, dtype=torch.int64, device=owner.device)
    edges = links.index_add(0, subgraph[owner], torch.ones_like(owner)) // 2
    triples = links.index_add(0, subgraph[owner], facts) // 2
    return nodes.values[first[cluster]].int(), edges, triples


def _entries_inside(graph: FactGraph, nodes: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    """(owner, entry) i64 of every stored entry between two nodes of one list; owner: the place in nodes.values.

    nodes: ascending lists, each node once. In pieces: memory of the entries at the nodes.
    """
    n = max(graph.n, 1)
    node = nodes.values.long()
    lists = row_of_value(nodes)
    known = lists * n + node
    csr = graph.graph.csr
    owners, entries = [node[:0]], [node[:0]]
    for owner, entry in expand(csr.indptr[node], csr.indptr[node + 1]):
        wanted = lists[owner] * n + csr.indices[entry]
        at = torch.searchsorted(known, wanted).clamp_(max=known.shape[0] - 1)
        hit = known[at] == wanted
        owners.append(owner[hit])
        entries.append(entry[hit])
    return torch.cat(owners), torch.cat(entries)
