"""The evidence subgraphs of many questions: neighbourhoods of their topics, clustered, then reduced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.ego import CheckedGraph, ego_balls, induced_subgraphs
from gpu_rag.graph.paths import Ends, PathGraph, nodes_on_paths
from gpu_rag.graph.ragged import ragged_of_keys, ragged_of_lists, row_of_value
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
    ball = ego_balls(graph, seeds, depth, threads=threads)
    representative, edges, triples = equal_nodes(facts, ball, seeds)
    leads = representative == ball.values
    blocks = induced_subgraphs(graph, Ragged(ball.values[leads], offsets_of(leads)[ball.offsets]))
    orders = [of for _, of in wanted]
    final = _reduced(blocks, orders, depth, threads)
    taken = [Size(*counts) for counts in torch.stack([ball.offsets.diff(), edges, triples], 1).tolist()]
    sides = torch.stack([ball.values.int(), representative]).cpu().numpy()
    balls = np.split(sides, np.cumsum([size.nodes for size in taken])[:-1], 1)
    clustered = torch.stack([blocks.offsets, blocks.csr.indptr[blocks.offsets] // 2], 1).diff(dim=0).tolist()
    found = []
    for of, (members, leaders), size, (n, m), (csr, nodes), places in zip(
        orders, balls, taken, clustered, _apart(final), _places(final, orders, local=True)
    ):
        own = csr, nodes, of, tuple(places), members.copy(), leaders.copy()
        found.append(QuestionGraph(*own, size, Size(n, m, m), Size(csr.n, csr.m // 2, csr.m // 2)))
    return found


def _reduced(blocks: Blocks, orders: Sequence[Sequence[Order]], depth: int, threads: int) -> Blocks:
    """Blocks without the nodes that no order can use; an order of one topic may use the whole neighbourhood."""
    whole = [b for b, some in enumerate(orders) if min((len(o.topics) for o in some), default=1) < 2]
    placed = enumerate(zip(orders, _places(blocks, orders)))
    rows = [(b, *row) for b, both in placed if b not in whole for row in zip(*both)]
    if not rows:
        return blocks
    device, n = blocks.offsets.device, max(blocks.csr.n, 1)
    sides = torch.tensor([(order.opens, order.closes) for _, order, _ in rows], dtype=torch.bool, device=device)
    numbers = torch.arange(blocks.csr.m, dtype=torch.int32, device=device)  # of edges, which nobody reads
    topics = ragged_of_lists([places for _, _, places in rows], device)
    ends = Ends(sides[:, 0].contiguous(), sides[:, 1].contiguous())
    kept = nodes_on_paths(PathGraph(blocks.csr, numbers), topics, depth, ends, threads=threads)
    of_row = torch.tensor([b for b, _, _ in rows], dtype=torch.int64, device=device)
    block = row_of_value(Ragged(blocks.global_ids, blocks.offsets))
    every = torch.isin(block, torch.tensor(whole, dtype=torch.int64, device=device)).nonzero()[:, 0]
    keys = torch.cat([of_row[row_of_value(kept)] * n + kept.values, block[every] * n + every])
    inner = induced_subgraphs(CheckedGraph(blocks.csr), ragged_of_keys(torch.unique(keys), len(orders), n))
    return Blocks(inner.csr, inner.offsets, blocks.global_ids[inner.global_ids.long()])


def _places(blocks: Blocks, orders: Sequence[Sequence[Order]], local: bool = False) -> list[list[tuple[int, ...]]]:
    """For each order of each question its topics as nodes of the block-diagonal graph; local: of their block."""
    lists = [list(chain.from_iterable(order.topics for order in some)) for some in orders]
    topics, ids = ragged_of_lists(lists, blocks.offsets.device), Ragged(blocks.global_ids, blocks.offsets)
    block = row_of_value(topics)
    found = torch.searchsorted(row_of_value(ids) * WIDTH + ids.values, block * WIDTH + topics.values)
    nodes = iter((found - blocks.offsets[block] if local else found).tolist())  # seeds: each is there
    return [[tuple(next(nodes) for _ in order.topics) for order in some] for some in orders]


def _apart(blocks: Blocks) -> Iterator[tuple[CSR, torch.Tensor]]:
    """Each block as a CSR of its own, with its fused nodes."""
    cuts = torch.stack([blocks.offsets, blocks.csr.indptr[blocks.offsets]], 1).tolist()
    for (lo, first), (hi, last) in pairwise(cuts):
        indptr = blocks.csr.indptr[lo : hi + 1] - first
        yield CSR(indptr, blocks.csr.indices[first:last] - lo), blocks.global_ids[lo:hi].clone()


# --- nodes that say the same ------------------------------------------------------------------------


def equal_nodes(facts: FactGraph, nodes: Ragged, alone: Ragged) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The clusters of B subgraphs: (representative i32[T], edges i64[B], triples i64[B]).

    nodes: the nodes of each subgraph, ascending; alone: nodes that are in no cluster but their own (the topics), a list
    a subgraph, ascending. Two nodes of a subgraph are in one cluster where they have the same triples inside it, up to
    their own name. representative: beside nodes.values, the smallest node of the cluster. Members of a cluster are
    never neighbours, and each has the neighbours of every other; so the subgraph of the representatives alone is the
    clustered one. edges, triples: how many lie inside each subgraph. Sets are compared by sums of 2 * 64 random bits
    of their elements, and by their size.
    """
    inside = induced_subgraphs(facts.numbered, nodes).csr
    owner, entry = row_of_entry(inside), inside.weight
    subgraph, size = row_of_value(nodes), nodes.values.shape[0]
    degree = torch.bincount(owner, minlength=size)
    sums = torch.zeros(size, 2, dtype=torch.int64, device=owner.device).index_add_(0, owner, facts.signatures[entry])
    topics = torch.isin(subgraph * WIDTH + nodes.values, row_of_value(alone) * WIDTH + alone.values)
    label = torch.where(topics, nodes.values.long() + 1, 0)  # a topic differs from all others
    columns = torch.stack([subgraph, label, degree, sums[:, 0], sums[:, 1]], 1)
    _, cluster = torch.unique(columns, dim=0, return_inverse=True)
    first = torch.full((size,), size, dtype=torch.int64, device=owner.device)
    place = torch.arange(size, device=owner.device)
    first = first.scatter_reduce(0, cluster, place, "amin")  # nodes ascend: the first place is the smallest node
    links = torch.zeros(nodes.batch, dtype=torch.int64, device=owner.device)
    edges = links.index_add(0, subgraph[owner], torch.ones_like(owner)) // 2
    triples = links.index_add(0, subgraph[owner], facts.n_triples[facts.graph.edge[entry].long()]) // 2
    return nodes.values[first[cluster]].int(), edges, triples
