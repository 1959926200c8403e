"""The evidence subgraphs of many questions: neighbourhoods of their topics, clustered, then reduced.

A neighbourhood has at most MAX_NODES nodes. If a hop reaches more (through a hub), the most relevant nodes are kept:
those of highest q . r + q . v, where q is the vector of the search text, v that of the node's name and r that of the
relation to it. A hop gets half of the remaining space, the last hop all of it; dropped nodes are counted.
Neighbourhoods are clustered and reduced in tiles of about TILE_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.segments import lexsort, offsets_of
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.ego import CheckedGraph, ego_balls, induced_subgraphs, part_of_blocks
from gpu_rag.graph.paths import Ends, PathGraph, are_on_paths
from gpu_rag.graph.ragged import expand, part_of, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.batched import TILE, each_alone
from gpu_rag.methods.hydrarag.batched.facts import FactChoice, FactGraph, facts_of
from gpu_rag.methods.hydrarag.batched.prune import on_grid
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched
from gpu_rag.types import CSR, Blocks, Ragged

WIDTH = 2**31  # larger than every node id
MAX_NODES = 20_000  # in the neighbourhood of a question
TILE_BYTES = 256 << 20  # memory for the questions of one tile
NODE_BYTES, ENTRY_BYTES = 100, 60  # per node, and per entry of its row
_FACTS = 4  # facts of an edge that its relevance uses


@dataclass(frozen=True)
class Order:
    """The topics of a path in order: fused nodes, each once.

    opens, closes: whether the path continues before the first and after the last of them. A single topic without an
    open end is open after it.
    """

    topics: tuple[int, ...]
    opens: bool = False
    closes: bool = False


# The request for a question's subgraph: topics whose neighbourhood is taken, each in a cluster of its own; and the
# orders to search, each over some of these topics.
GraphWanted = tuple[tuple[int, ...], tuple[Order, ...]]


@dataclass(frozen=True)
class Size:
    """The size of a subgraph: nodes, undirected edges, triples (a clustered edge counts once)."""

    nodes: int
    edges: int
    triples: int


@dataclass(frozen=True, eq=False)
class QuestionGraph:
    """The evidence subgraph of one question. Paths of a search use its local nodes.

    csr: the adjacency for the search; nodes: i32[n], the fused node of each local node, ascending. orders: as
    requested; places: the local nodes of the topics of each order. ball, representative: i32[m], on the host: every
    fused node of the neighbourhood, ascending, and the representative of its cluster. taken, clustered, reduced: sizes
    after each step; n_cut: nodes that a hop reached and that were dropped for lack of space.
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
    n_cut: int = 0

    def members(self, node: int) -> tuple[int, ...]:
        """The fused nodes of the cluster that a fused node represents, ascending."""
        return tuple(self.ball[self.representative == node].tolist())

    def holds(self, nodes: Sequence[int]) -> list[bool]:
        """Whether the neighbourhood holds each fused node, including members of clusters."""
        are_inside: list[bool] = np.isin(np.array(nodes, np.int64), self.ball).tolist()
        return are_inside


@batched(GRAPH, tile=TILE)
@trusted()
def question_graph(
    index: Index, queries: list[tuple[GraphWanted, np.ndarray]], choice: FactChoice, depth: int
) -> list[QuestionGraph | BadInput]:
    """The evidence subgraph around the topics of each question, see `question_graphs`. A query: the request, and the
    unit vector f32[D] of the search text."""
    facts, kb = facts_of(index, choice), kb_of(index)

    def together(part: list[tuple[GraphWanted, np.ndarray]]) -> list[QuestionGraph]:
        return question_graphs(
            facts, [topics for topics, _ in part], depth, index.threads, Relevance(kb, [q for _, q in part])
        )

    return each_alone(together, queries)


class Relevance:
    """Relevance of nodes and relations to the search text of each question, in integer steps of 2^-44."""

    def __init__(self, kb: KnowledgeBase, queries: Sequence[np.ndarray]):
        self._kb, self._queries = kb, queries

    @cached_property
    def relation(self) -> torch.Tensor:
        """The relation of each fact. It is copied to the device only if a neighbourhood is too large."""
        return torch.from_numpy(self._kb.relation).to(self._kb.device)

    def _near(self, stage: str, question: int, rows: torch.Tensor) -> torch.Tensor:
        vectors = self._kb.vectors(stage)
        query = on_grid(torch.from_numpy(self._queries[question]).to(vectors.device))
        step = max(1, (1 << 24) // max(vectors.shape[1], 1))
        parts = [on_grid(vectors[rows[start : start + step]]) @ query for start in range(0, rows.shape[0], step)]
        return torch.cat(parts) if parts else query[:0]

    def nodes(self, question: int, nodes: torch.Tensor) -> torch.Tensor:
        """f64: the relevance of the given nodes."""
        return self._near("kb_name_vectors", question, nodes)

    def relations(self, question: int) -> torch.Tensor:
        """f64: the relevance of all relations."""
        all_relations = torch.arange(self._kb.n_relations, device=self.relation.device)
        return self._near("kb_relation_vectors", question, all_relations)


def relevant_ball(
    facts: FactGraph, seeds: torch.Tensor, depth: int, question: int, relevance: Relevance
) -> tuple[torch.Tensor, int]:
    """(nodes of a neighbourhood of at most MAX_NODES, ascending; number of dropped nodes), see the module."""
    csr, front, n_cut = facts.graph.csr, seeds.long(), 0
    inside = torch.zeros(facts.n, dtype=torch.bool, device=front.device)
    inside[front] = True
    size, of_relations = int(front.shape[0]), relevance.relations(question)
    for hop in range(depth):
        space = MAX_NODES - size if hop == depth - 1 else (MAX_NODES - size) // 2
        reached, scores = [front[:0]], [of_relations[:0]]
        for _, entry in expand(csr.indptr[front], csr.indptr[front + 1]):
            entry = entry[~inside[csr.indices[entry].long()]]
            reached.append(csr.indices[entry].long())
            scores.append(_by_relation(facts, facts.graph.edge[entry].long(), of_relations, relevance.relation))
        new, place = torch.unique(torch.cat(reached), return_inverse=True)
        if new.shape[0] > space:
            best = torch.full(new.shape, -torch.inf, dtype=torch.float64, device=new.device)
            best.scatter_reduce_(0, place, torch.cat(scores), "amax")
            order = torch.argsort(-(best + relevance.nodes(question, new)), stable=True)
            n_cut += new.shape[0] - max(space, 0)
            new = new[order[: max(space, 0)]].sort().values
        inside[new] = True
        front, size = new, size + int(new.shape[0])
    return inside.nonzero()[:, 0].int(), n_cut


def _by_relation(
    facts: FactGraph, edges: torch.Tensor, of_relations: torch.Tensor, relation: torch.Tensor
) -> torch.Tensor:
    """f64: the highest relation relevance among the first facts of each edge."""
    first, last = facts.triples.offsets[edges], facts.triples.offsets[edges + 1] - 1
    places = (torch.minimum(first + k, last) for k in range(_FACTS))
    values = [of_relations[relation[facts.triples.values[place]].long()] for place in places]
    return torch.stack(values).amax(0)


def question_graphs(
    facts: FactGraph, wanted: Sequence[GraphWanted], depth: int, threads: int, relevance: Relevance | None = None
) -> list[QuestionGraph]:
    """The evidence subgraph of each question, all at once.

    1. Take the nodes within `depth` hops of the topics; with `relevance` at most MAX_NODES of them. 2. Merge
    `equal_nodes`. 3. For orders with two or more topics, drop nodes that no path of at most `depth` hops a side can use
    (`nodes_on_paths`); a question keeps the nodes of all its orders. The reduction is exact: no path of the clustered
    graph is lost. The number of host waits per tile does not depend on the number of questions. Raises BadInput.
    """
    lists, device = [sorted(set(topics)) for topics, _ in wanted], facts.keys.device
    limit = None if relevance is None else MAX_NODES + 1
    whole = ego_balls(
        CheckedGraph(facts.graph.csr), ragged_of_lists(lists, device), depth, limit=limit, threads=threads
    )
    sizes = _sizes(facts.graph.csr, whole)
    large = [b for b, (n, _) in enumerate(sizes) if relevance is not None and n > MAX_NODES]
    cut = [0] * len(wanted)
    if large and relevance is not None:
        balls = list(whole.values.split([n for n, _ in sizes]))
        for b in large:
            balls[b], cut[b] = relevant_ball(facts, torch.tensor(lists[b], device=device), depth, b, relevance)
        offsets = np.cumsum([0, *(ball.shape[0] for ball in balls)])
        whole = Ragged(torch.cat(balls), torch.from_numpy(offsets).to(device))
        sizes = _sizes(facts.graph.csr, whole)
    graphs: list[QuestionGraph] = []
    for first, last in _tiles(sizes):
        n_entries, ball = sum(m for _, m in sizes[first:last]), part_of(whole, first, last)
        graphs += _subgraphs(facts, wanted[first:last], ball, n_entries, depth, threads, cut[first:last])
    return graphs


def _sizes(csr: CSR, balls: Ragged) -> list[tuple[int, int]]:
    """(nodes, entries of their rows) of each neighbourhood."""
    degree = csr.indptr[balls.values.long() + 1] - csr.indptr[balls.values.long()]
    entries = offsets_of(degree)[balls.offsets].diff()
    sizes: list[tuple[int, int]] = torch.stack([balls.offsets.diff(), entries], 1).tolist()
    return sizes


def _tiles(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (first, last) of questions that together need at most TILE_BYTES, or hold one question."""
    tiles, first, used = list[tuple[int, int]](), 0, 0
    for b, (n, m) in enumerate(sizes):
        need = NODE_BYTES * n + ENTRY_BYTES * m
        if b > first and used + need > TILE_BYTES:
            tiles.append((first, b))
            first, used = b, 0
        used += need
    return [*tiles, (first, len(sizes))] if sizes else tiles


def _subgraphs(
    facts: FactGraph, wanted: Sequence[GraphWanted], ball: Ragged, n_entries: int, depth: int, threads: int,
    cut: Sequence[int],
) -> list[QuestionGraph]:  # fmt: skip
    """The evidence subgraphs in these neighbourhoods. n_entries: total entries of their rows."""
    seeds = ragged_of_lists([sorted(set(topics)) for topics, _ in wanted], facts.keys.device)
    inside = induced_subgraphs(facts.numbered, ball, n_entries=n_entries)
    representative, edges, triples = equal_nodes(facts, inside, seeds)
    leads, orders = representative == ball.values, [topic_orders for _, topic_orders in wanted]
    final, smaller = _reduced(facts, inside, leads, orders, depth, threads)
    taken_sizes = torch.stack([ball.offsets.diff(), edges, triples], 1)
    sides = torch.stack([ball.values.int(), representative])
    cuts = torch.stack([final.offsets, final.csr.indptr[final.offsets]], 1)
    local = _places(final, orders, local=True)
    taken_sizes, sides, smaller, cuts, local = on_host(taken_sizes, sides, smaller, cuts, local)
    ball_sizes = [Size(*counts) for counts in taken_sizes.tolist()]
    balls = np.split(sides.numpy(), np.cumsum([size.nodes for size in ball_sizes])[:-1], 1)
    clustered, graphs = smaller.tolist(), []
    for topic_orders, (members, leaders), size, (n, m), (csr, nodes), places, n_cut in zip(
        orders, balls, ball_sizes, clustered, _apart(final, cuts.tolist()), _by_order(local, orders), cut
    ):
        own = csr, nodes, topic_orders, tuple(places), members.copy(), leaders.copy()
        graphs.append(QuestionGraph(*own, size, Size(n, m, m), Size(csr.n, csr.m // 2, csr.m // 2), n_cut))
    return graphs


def _reduced(
    facts: FactGraph, inside: Blocks, leads: torch.Tensor, orders: Sequence[Sequence[Order]], depth: int, threads: int
) -> tuple[Blocks, torch.Tensor]:
    """(the blocks of the representatives without nodes that no order can use, (nodes, edges) of each block before
    that).

    leads: bool[T], the rows of `inside` that are representatives. An order of one topic may use the whole
    neighbourhood. On a GPU the blocks of all representatives are not built: the search passes only through
    representatives.
    """
    if leads.device.type == "cpu":
        ball = Ragged(inside.global_ids[leads], offsets_of(leads)[inside.offsets])
        blocks = induced_subgraphs(CheckedGraph(facts.graph.csr), ball)
        ends = blocks.offsets, blocks.csr.indptr[blocks.offsets] // 2
        kept = _useful(blocks, orders, depth, threads)
        final = blocks if kept is None else part_of_blocks(blocks, kept)
    else:
        between = leads[row_of_entry(inside.csr)] & leads[inside.csr.indices.long()]
        ends = offsets_of(leads)[inside.offsets], offsets_of(between)[inside.csr.indptr[inside.offsets]] // 2
        kept = _useful(inside, orders, depth, threads, leads)
        final = part_of_blocks(inside, leads if kept is None else leads & kept)
    return final, torch.stack(ends, 1).diff(dim=0)


def _useful(
    blocks: Blocks, orders: Sequence[Sequence[Order]], depth: int, threads: int, allowed: torch.Tensor | None = None
) -> torch.Tensor | None:
    """bool[T]: the rows that some order can use; None for all. allowed: see `are_on_paths`."""
    whole = [min((len(o.topics) for o in own), default=1) < 2 for own in orders]
    if all(whole):
        return None
    flat, start = [(b, order) for b, own in enumerate(orders) for order in own], 0
    places, sizes, sides = list[int](), [0], list[tuple[bool, bool]]()
    for b, order in flat:
        if not whole[b]:
            places += range(start, start + len(order.topics))
            sizes.append(len(places))
            sides.append((order.opens, order.closes))
        start += len(order.topics)
    device = blocks.offsets.device
    chosen, offsets, unreduced = (torch.tensor(row, device=device) for row in (places, sizes, whole))
    opens, closes = torch.tensor(sides, dtype=torch.bool, device=device).T.contiguous()
    numbers = torch.arange(blocks.csr.m, dtype=torch.int32, device=device)  # edge numbers, which are never read
    graph = PathGraph(CSR(blocks.csr.indptr, blocks.csr.indices), numbers)
    topics = Ragged(_places(blocks, orders)[chosen], offsets)
    kept = are_on_paths(graph, topics, depth, Ends(opens, closes), threads, allowed)
    return kept | unreduced[row_of_value(Ragged(blocks.global_ids, blocks.offsets))]


def _places(blocks: Blocks, orders: Sequence[Sequence[Order]], local: bool = False) -> torch.Tensor:
    """The topics of all orders, concatenated, as i64 nodes of the block-diagonal graph; with `local` as nodes of their
    block."""
    lists = [list(chain.from_iterable(order.topics for order in own)) for own in orders]
    topics, ids = ragged_of_lists(lists, blocks.offsets.device), Ragged(blocks.global_ids, blocks.offsets)
    block = row_of_value(topics)
    rows = torch.searchsorted(row_of_value(ids) * WIDTH + ids.values, block * WIDTH + topics.values)
    return rows - blocks.offsets[block] if local else rows  # topics are seeds, so each is found


def _by_order(places: torch.Tensor, orders: Sequence[Sequence[Order]]) -> list[list[tuple[int, ...]]]:
    """The numbers of `_places`, grouped by order and question."""
    nodes = iter(places.tolist())
    return [[tuple(next(nodes) for _ in order.topics) for order in own] for own in orders]


def _apart(blocks: Blocks, cuts: Sequence[tuple[int, int]]) -> Iterator[tuple[CSR, torch.Tensor]]:
    """Each block as a CSR of its own, with its fused nodes. cuts: the first row and entry of each block, then the
    totals."""
    for (lo, first), (hi, last) in pairwise(cuts):
        indptr = blocks.csr.indptr[lo : hi + 1] - first
        yield CSR(indptr, blocks.csr.indices[first:last] - lo), blocks.global_ids[lo:hi].clone()


def on_host(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Integer tensors of one device on the CPU, by one copy, which waits for the device."""
    if parts[0].device.type == "cpu":
        return parts
    whole = torch.cat([part.long().flatten() for part in parts]).cpu()
    split = whole.split([part.numel() for part in parts])
    return tuple(array.view(part.shape).to(part.dtype) for array, part in zip(split, parts))


# --- nodes that say the same ------------------------------------------------------------------------


def equal_nodes(facts: FactGraph, blocks: Blocks, alone: Ragged) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The clusters of B subgraphs: (representative i32[T], edges i64[B], triples i64[B]).

    blocks: the subgraphs, with entry numbers as weights; alone: nodes that form a cluster of their own (the topics),
    one ascending list per subgraph. Two nodes of a subgraph are in one cluster if they have the same triples inside it,
    apart from their own name. representative: aligned with nodes.values, the smallest node of the cluster. Members of a
    cluster are never neighbours, and all have the same neighbours; so the subgraph of the representatives is the
    clustered graph.
    edges, triples: their numbers inside each subgraph. Sets are compared by their size and by sums of 2 * 64 random
    bits of their elements.
    """
    nodes, inside = Ragged(blocks.global_ids, blocks.offsets), blocks.csr
    owner, entry = row_of_entry(inside), inside.weight
    subgraph, size = row_of_value(nodes), nodes.values.shape[0]
    degree = inside.indptr.diff()
    sums = torch.zeros(size, 2, dtype=torch.int64, device=owner.device).index_add_(0, owner, facts.signatures[entry])
    topics = torch.isin(subgraph * WIDTH + nodes.values, row_of_value(alone) * WIDTH + alone.values)
    label = torch.where(topics, nodes.values.long() + WIDTH, degree)  # a topic differs from all other nodes
    cluster = _equal_rows(subgraph * 2 * WIDTH + label, sums[:, 0], sums[:, 1])
    first = torch.full((size,), size, dtype=torch.int64, device=owner.device)
    place = torch.arange(size, device=owner.device)
    first = first.scatter_reduce(0, cluster, place, "amin")  # nodes ascend, so the first place is the smallest node
    cuts = inside.indptr[nodes.offsets]
    triples = offsets_of(facts.n_triples[facts.graph.edge[entry].long()])[cuts]
    return nodes.values[first[cluster]].int(), cuts.diff() // 2, triples.diff() // 2


def _equal_rows(*columns: torch.Tensor) -> torch.Tensor:
    """i64[T]: a number for each row, equal for equal rows. Does not wait for the device."""
    order = lexsort(*reversed(columns))
    table = torch.stack([column[order] for column in columns])
    new = torch.zeros_like(order)
    new[1:] = (table[:, 1:] != table[:, :-1]).any(0)
    numbers = torch.empty_like(order)
    numbers[order] = new.cumsum(0)
    return numbers
