"""The evidence subgraphs of many questions: neighbourhoods of their topics, clustered, then reduced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.segments import lexsort, offsets_of
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.ego import CheckedGraph, blocks_around, ego_balls, induced_subgraphs, part_of_blocks
from gpu_rag.graph.paths import Ends, PathGraph, are_on_paths
from gpu_rag.graph.ragged import ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.methods.hydrarag.batched import TILE, each_alone
from gpu_rag.methods.hydrarag.batched.facts import FactChoice, FactGraph, facts_of
from gpu_rag.program.kinds import GRAPH
from gpu_rag.runtime.step import batched
from gpu_rag.types import CSR, Blocks, Ragged

WIDTH = 2**31  # above every node


@dataclass(frozen=True)
class Order:
    """The topics of a path in their order, fused nodes, each once; and whether it goes on before the first and after
    the last of them (one topic without an open end is open after it)."""

    topics: tuple[int, ...]
    opens: bool = False
    closes: bool = False


# The subgraph that a question needs: topics whose neighbourhood is taken, in no cluster but their own; and the searches
# that it is for, each of some of these topics.
GraphWanted = tuple[tuple[int, ...], tuple[Order, ...]]


@dataclass(frozen=True)
class Size:
    """The size of a subgraph: nodes, undirected edges, triples (a clustered edge counts once)."""

    nodes: int
    edges: int
    triples: int


@dataclass(frozen=True, eq=False)
class QuestionGraph:
    """The evidence subgraph of one question; the paths of a search are in its local nodes.

    csr: the adjacency to be searched; nodes: i32[n], the fused node of each local one, ascending. orders: as wanted;
    places: the local nodes of the topics of each. ball, representative: i32[m], on the host: every fused node of the
    neighbourhood, ascending, and the node that stands for its cluster. taken, clustered, reduced: sizes after each
    step.
    """

    csr: CSR
    nodes: torch.Tensor
    orders: tuple[Order, ...]
    places: tuple[tuple[int, ...], ...]
    ball: np.ndarray
    representative: np.ndarray
    taken: Size
    clustered: Size
    reduced: Size

    def members(self, node: int) -> tuple[int, ...]:
        """The fused nodes of the cluster that a fused node stands for, ascending."""
        return tuple(self.ball[self.representative == node].tolist())

    def holds(self, nodes: Sequence[int]) -> list[bool]:
        """Which fused nodes the neighbourhood holds, members of clusters too."""
        found: list[bool] = np.isin(np.array(nodes, np.int64), self.ball).tolist()
        return found


@batched(GRAPH, tile=TILE)
@trusted()
def question_graph(
    index: Index, queries: list[GraphWanted], choice: FactChoice, depth: int
) -> list[QuestionGraph | BadInput]:
    """The evidence subgraph around the seeds of each question, see `question_graphs`."""
    facts = facts_of(index, choice)
    return each_alone(lambda some: question_graphs(facts, some, depth, index.threads), queries)


def question_graphs(facts: FactGraph, wanted: Sequence[GraphWanted], depth: int, threads: int) -> list[QuestionGraph]:
    """The evidence subgraph of each question, all at once.

    1. the nodes within `depth` hops of the seeds; 2. `equal_nodes` become one; 3. of an order with two topics or more,
    nodes that no path of at most `depth` hops a side can use are left out (`nodes_on_paths`); a question keeps those
    of all its orders. Exact: a path of the clustered graph is never lost. The host waits for the device as often for
    many questions as for one. Raises BadInput.
    """
    graph = CheckedGraph(facts.graph.csr)
    seeds = ragged_of_lists([sorted(set(topics)) for topics, _ in wanted], facts.keys.device)
    inside = _around(facts, seeds, depth, threads)
    ball = Ragged(inside.global_ids, inside.offsets)
    representative, edges, triples = equal_nodes(facts, inside, seeds)
    leads = representative == ball.values
    if facts.keys.device.type == "cpu":
        blocks = induced_subgraphs(graph, Ragged(ball.values[leads], offsets_of(leads)[ball.offsets]))
    else:
        blocks = part_of_blocks(inside, leads)
    orders = [of for _, of in wanted]
    final = _reduced(blocks, orders, depth, threads)
    taken_sizes = torch.stack([ball.offsets.diff(), edges, triples], 1)
    sides = torch.stack([ball.values.int(), representative])
    smaller = torch.stack([blocks.offsets, blocks.csr.indptr[blocks.offsets] // 2], 1).diff(dim=0)
    cuts = torch.stack([final.offsets, final.csr.indptr[final.offsets]], 1)
    local = _places(final, orders, local=True)
    taken_sizes, sides, smaller, cuts, local = on_host(taken_sizes, sides, smaller, cuts, local)
    taken = [Size(*counts) for counts in taken_sizes.tolist()]
    balls = np.split(sides.numpy(), np.cumsum([size.nodes for size in taken])[:-1], 1)
    clustered, found = smaller.tolist(), []
    for of, (members, leaders), size, (n, m), (csr, nodes), places in zip(
        orders, balls, taken, clustered, _apart(final, cuts.tolist()), _by_order(local, orders)
    ):
        own = csr, nodes, of, tuple(places), members.copy(), leaders.copy()
        found.append(QuestionGraph(*own, size, Size(n, m, m), Size(csr.n, csr.m // 2, csr.m // 2)))
    return found


def _around(facts: FactGraph, seeds: Ragged, depth: int, threads: int) -> Blocks:
    """The subgraphs on the balls of the seeds; weights are the numbers of entries."""
    if facts.keys.device.type == "cpu":
        ball = ego_balls(CheckedGraph(facts.graph.csr), seeds, depth, threads=threads)
        return induced_subgraphs(facts.numbered, ball)
    return blocks_around(facts.numbered, seeds, depth)


def _reduced(blocks: Blocks, orders: Sequence[Sequence[Order]], depth: int, threads: int) -> Blocks:
    """Blocks without the nodes that no order can use; an order of one topic may use the whole neighbourhood."""
    whole = [min((len(o.topics) for o in some), default=1) < 2 for some in orders]
    if all(whole):
        return blocks
    flat, at = [(b, order) for b, some in enumerate(orders) for order in some], 0
    places, sizes, sides = list[int](), [0], list[tuple[bool, bool]]()
    for b, order in flat:
        if not whole[b]:
            places += range(at, at + len(order.topics))
            sizes.append(len(places))
            sides.append((order.opens, order.closes))
        at += len(order.topics)
    device = blocks.offsets.device
    chosen, offsets, unreduced = (torch.tensor(row, device=device) for row in (places, sizes, whole))
    opens, closes = torch.tensor(sides, dtype=torch.bool, device=device).T.contiguous()
    numbers = torch.arange(blocks.csr.m, dtype=torch.int32, device=device)  # of edges, which nobody reads
    graph = PathGraph(CSR(blocks.csr.indptr, blocks.csr.indices), numbers)
    topics = Ragged(_places(blocks, orders)[chosen], offsets)
    kept = are_on_paths(graph, topics, depth, Ends(opens, closes), threads)
    return part_of_blocks(blocks, kept | unreduced[row_of_value(Ragged(blocks.global_ids, blocks.offsets))])


def _places(blocks: Blocks, orders: Sequence[Sequence[Order]], local: bool = False) -> torch.Tensor:
    """The topics of all orders in turn as nodes of the block-diagonal graph, i64; local: of their block."""
    lists = [list(chain.from_iterable(order.topics for order in some)) for some in orders]
    topics, ids = ragged_of_lists(lists, blocks.offsets.device), Ragged(blocks.global_ids, blocks.offsets)
    block = row_of_value(topics)
    found = torch.searchsorted(row_of_value(ids) * WIDTH + ids.values, block * WIDTH + topics.values)
    return found - blocks.offsets[block] if local else found  # seeds: each is there


def _by_order(places: torch.Tensor, orders: Sequence[Sequence[Order]]) -> list[list[tuple[int, ...]]]:
    """The numbers of `_places`, for each order of each question."""
    nodes = iter(places.tolist())
    return [[tuple(next(nodes) for _ in order.topics) for order in some] for some in orders]


def _apart(blocks: Blocks, cuts: Sequence[tuple[int, int]]) -> Iterator[tuple[CSR, torch.Tensor]]:
    """Each block as a CSR of its own, with its fused nodes. cuts: the first row and entry of each, and both ends."""
    for (lo, first), (hi, last) in pairwise(cuts):
        indptr = blocks.csr.indptr[lo : hi + 1] - first
        yield CSR(indptr, blocks.csr.indices[first:last] - lo), blocks.global_ids[lo:hi].clone()


def on_host(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of integers of one device on the CPU, by one copy: a wait."""
    if parts[0].device.type == "cpu":
        return parts
    whole = torch.cat([part.long().flatten() for part in parts]).cpu()
    split = whole.split([part.numel() for part in parts])
    return tuple(found.view(part.shape).to(part.dtype) for found, part in zip(split, parts))


# --- nodes that say the same ------------------------------------------------------------------------


def equal_nodes(facts: FactGraph, blocks: Blocks, alone: Ragged) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The clusters of B subgraphs: (representative i32[T], edges i64[B], triples i64[B]).

    blocks: the subgraphs, whose weights are numbers of entries; alone: nodes that are in no cluster but their own
    (the topics), a list a subgraph, ascending. Two nodes of a subgraph are in one cluster where they have the same
    triples inside it, up to their own name. representative: beside nodes.values, the smallest node of the cluster.
    Members of a cluster are never neighbours, and each has the neighbours of every other; so the subgraph of the
    representatives alone is the clustered one. edges, triples: how many lie inside each subgraph. Sets are compared
    by sums of 2 * 64 random bits of their elements, and by their size.
    """
    nodes, inside = Ragged(blocks.global_ids, blocks.offsets), blocks.csr
    owner, entry = row_of_entry(inside), inside.weight
    subgraph, size = row_of_value(nodes), nodes.values.shape[0]
    degree = inside.indptr.diff()
    sums = torch.zeros(size, 2, dtype=torch.int64, device=owner.device).index_add_(0, owner, facts.signatures[entry])
    topics = torch.isin(subgraph * WIDTH + nodes.values, row_of_value(alone) * WIDTH + alone.values)
    label = torch.where(topics, nodes.values.long() + 1, 0)  # a topic differs from all others
    cluster = _equal_rows(subgraph, label, degree, sums[:, 0], sums[:, 1])
    first = torch.full((size,), size, dtype=torch.int64, device=owner.device)
    place = torch.arange(size, device=owner.device)
    first = first.scatter_reduce(0, cluster, place, "amin")  # nodes ascend: the first place is the smallest node
    links = torch.zeros(nodes.batch, dtype=torch.int64, device=owner.device)
    edges = links.index_add(0, subgraph[owner], torch.ones_like(owner)) // 2
    triples = links.index_add(0, subgraph[owner], facts.n_triples[facts.graph.edge[entry].long()]) // 2
    return nodes.values[first[cluster]].int(), edges, triples


def _equal_rows(*columns: torch.Tensor) -> torch.Tensor:
    """i64[T]: a number for each row, the same for equal ones; without a wait."""
    order = lexsort(*reversed(columns))
    table = torch.stack([column[order] for column in columns])
    new = torch.zeros_like(order)
    new[1:] = (table[:, 1:] != table[:, :-1]).any(0)
    found = torch.empty_like(order)
    found[order] = new.cumsum(0)
    return found
