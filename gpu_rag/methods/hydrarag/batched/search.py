"""The steps of path search over the subgraphs of many questions: expand, score, join and chain, see `graph.paths`.
Between two steps the paths of every question use its own local nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph import paths as ops
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.paths import Ends, PathGraph, Window
from gpu_rag.graph.paths.sets import PathSet, padded
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.index.index import Index
from gpu_rag.methods.hydrarag.batched import TILE, each_alone
from gpu_rag.methods.hydrarag.batched.facts import FactChoice, Words, facts_of
from gpu_rag.methods.hydrarag.batched.subgraphs import QuestionGraph
from gpu_rag.methods.hydrarag.state import OVERLAP, SEMANTIC, FoundPath
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched
from gpu_rag.types import CSR

HOP, PART, WHOLE = "hop", "part", "whole"  # one beam per topic, per part of an order, or per order
GROUPS = {HOP: (1, 0), PART: (1, 1), WHOLE: (0, 1)}  # {kind: (groups per topic, groups per order)}


@dataclass(frozen=True, eq=False)
class Walks:
    """The paths of one question at one step: some rows of the paths of all questions that were joined.

    kind: the meaning of `paths.group`: topics of all orders (hop), parts (part) or orders (whole). number: of the
    question among the joined ones; width: hops of its longest path; scores: f64[P] | None.
    """

    kind: str
    joined: Joined
    number: int
    whole: PathSet
    rows: slice
    width: int
    scores: torch.Tensor | None = None

    @property
    def size(self) -> int:
        """Number of paths P."""
        return int(self.rows.stop - self.rows.start)

    @cached_property
    def paths(self) -> PathSet:
        """The paths in the nodes of the question's own subgraph, no wider than the longest one. `question` is the index
        of the order. So a question's result does not depend on the others in its batch."""
        part, (node, topic, order, _) = self.whole.rows(self.rows), self.joined.first[self.number]
        per_topic, per_order = GROUPS[self.kind]
        nodes = part.nodes[:, : self.width + 1]
        group = part.group - per_topic * topic - per_order * order
        nodes = torch.where(nodes < 0, -1, nodes - node).int()
        return PathSet(group, part.question - order, nodes, part.edges[:, : self.width])


def joined_of(graphs: Sequence[QuestionGraph], walks: Sequence[Walks]) -> Joined:
    """The joined graphs of questions: those of their walks, if these were made together."""
    last = walks[0].joined
    return last if last.graphs == tuple(graphs) else Joined(graphs)


class Joined:
    """The subgraphs of B questions as one block-diagonal graph, and all their orders as rows.

    nodes: i32[n], the fused nodes; first: the first node, topic, order and entry of each question, B + 1 rows.
    """

    def __init__(self, graphs: Sequence[QuestionGraph]):
        self.graphs, device = tuple(graphs), graphs[0].nodes.device
        sizes = [(g.csr.n, sum(map(len, g.places)), len(g.orders), g.csr.m) for g in graphs]
        *self.first, (_, _, _, n_entries) = (tuple(row) for row in np.cumsum([(0, 0, 0, 0), *sizes], 0).tolist())
        indptr = [g.csr.indptr[:-1] + entry for g, (_, _, _, entry) in zip(graphs, self.first)]
        indptr.append(torch.tensor([n_entries], dtype=torch.int64, device=device))
        indices = torch.cat([g.csr.indices + node for g, (node, _, _, _) in zip(graphs, self.first)]).int()
        numbers = torch.arange(n_entries, dtype=torch.int32, device=device)  # the real edge is looked up from its ends
        self.graph = PathGraph(CSR(torch.cat(indptr), indices), numbers)
        self.nodes = torch.cat([g.nodes for g in graphs])
        self.orders = [order for g in graphs for order in g.orders]
        places = [[node + place for place in ends] for g, (node, *_) in zip(graphs, self.first) for ends in g.places]
        self.topics = ragged_of_lists(places, device)
        sides = torch.tensor([(o.opens, o.closes) for o in self.orders], dtype=torch.bool, device=device).view(-1, 2)
        self.ends = Ends(sides[:, 0].contiguous(), sides[:, 1].contiguous())

    def together(self, walks: Sequence[Walks], hops: int = 0) -> PathSet:
        """The paths of all questions as one set. walks: one per question, all of one kind. hops: minimum width."""
        hops, whole = max(hops, *(w.width for w in walks)), walks[0].whole
        if all(w.joined is self and w.whole is whole and w.number == i for i, w in enumerate(walks)):
            return padded(whole, hops)
        per_topic, per_order = GROUPS[walks[0].kind]
        parts = []
        for paths, (node, topic, order, _) in zip((padded(w.paths, hops) for w in walks), self.first):
            nodes = torch.where(paths.nodes < 0, -1, paths.nodes + node).int()
            group = paths.group + per_topic * topic + per_order * order
            parts.append((group, paths.question + order, nodes, paths.edges))
        return PathSet(*map(torch.cat, zip(*parts)))

    def apart(self, paths: PathSet, kind: str, scores: torch.Tensor | None = None) -> list[Walks]:
        """The paths of each question."""
        rows = torch.tensor([order for _, _, order, _ in self.first], device=paths.question.device)
        cuts = torch.searchsorted(paths.question, torch.cat([rows, rows.new_tensor([len(self.orders)])]))
        owner = torch.searchsorted(cuts, torch.arange(paths.size, device=cuts.device), right=True) - 1
        longest = torch.zeros_like(cuts).scatter_reduce_(0, owner, paths.lengths, "amax")
        ends, widths = torch.stack([cuts, longest]).tolist()
        width = max(widths)
        nodes, edges = paths.nodes[:, : width + 1].contiguous(), paths.edges[:, :width].contiguous()
        whole = PathSet(paths.group, paths.question, nodes, edges)
        return [
            Walks(kind, self, number, whole, slice(lo, hi), width, None if scores is None else scores[lo:hi])
            for number, ((lo, hi), width) in enumerate(zip(pairwise(ends), widths))
        ]

    def fused(self, local: torch.Tensor) -> torch.Tensor:
        """The fused node of each local node, -1 beyond a path's end."""
        return torch.where(local < 0, -1, self.nodes[local.clamp_min(0).long()])


def _for_each_question(run: Callable[..., list[Walks]], queries: list[Any]) -> list[Walks | BadInput]:
    """The result of run(*columns of the queries) for each query, see `each_alone`."""
    return each_alone(lambda part: run(*zip(*part)), queries)


@batched(GRAPH, tile=TILE)
@trusted()
def start_paths(index: Index, graphs: list[QuestionGraph]) -> list[Walks]:
    """A path of no hops at each topic of each order."""
    joined = Joined(graphs)
    return joined.apart(ops.start_paths(joined.graph, joined.topics), HOP)


@batched(GRAPH, tile=TILE)
@trusted()
def expand_paths(index: Index, queries: list[tuple[QuestionGraph, Walks]], hops: int) -> list[Walks | BadInput]:
    """Extend every path to `hops` hops by one hop."""

    def run(graphs: Sequence[QuestionGraph], walks: Sequence[Walks]) -> list[Walks]:
        joined = joined_of(graphs, walks)
        shorter = joined.together(walks, hops)
        return joined.apart(ops.expand_paths(joined.graph, shorter, joined.topics, threads=index.threads), HOP)

    return _for_each_question(run, queries)


@batched(GRAPH, tile=TILE)
@trusted()
def score_paths(
    index: Index,
    queries: list[tuple[QuestionGraph, Walks, np.ndarray]],
    choice: FactChoice,
    kind: str,
    beam: int | None,
) -> list[Walks | BadInput]:
    """The `beam` best paths of each topic, part or order (all if None), by relevance to a unit vector f32[D], the same
    for all orders of a question. kind: kind of the walks."""
    facts, weights = facts_of(index, choice), (SEMANTIC, OVERLAP)

    def run(graphs: Sequence[QuestionGraph], walks: Sequence[Walks], queries: Sequence[np.ndarray]) -> list[Walks]:
        joined = joined_of(graphs, walks)
        local = joined.together(walks)
        edges, edge_vectors = facts.vectors.along(facts.edges_along(joined.fused(local.nodes)))
        paths = PathSet(local.group, local.question, local.nodes, edges)
        counts = np.diff([order for _, _, order, _ in joined.first], append=len(joined.orders))
        rows = np.repeat(np.stack(queries).astype(np.float32), counts, 0)
        vectors, threads = torch.from_numpy(rows).to(joined.nodes.device), index.threads
        scored = ops.score_paths(
            paths, vectors, edge_vectors, joined.topics, beam=beam, weights=weights, threads=threads
        )
        return joined.apart(scored[0], kind, scored[1])

    return _for_each_question(run, queries)


@batched(GRAPH, tile=TILE)
@trusted()
def join_paths(
    index: Index, queries: list[tuple[QuestionGraph, tuple[Walks, ...]]], levels: int
) -> list[Walks | BadInput]:
    """The parts between neighbouring topics, made from walks of 0, 1, .. levels - 1 hops, see `path_parts`."""

    def run(graphs: Sequence[QuestionGraph], walks: Sequence[tuple[Walks, ...]]) -> list[Walks]:
        joined = joined_of(graphs, [own[-1] for own in walks])
        hops = [joined.together(level, hop) for hop, level in enumerate(zip(*walks))]
        return joined.apart(ops.path_parts(joined.graph, joined.topics, hops, joined.ends), PART)

    return _for_each_question(run, queries)


def n_chain_steps(graph: QuestionGraph) -> int:
    """The number of `chain_paths` steps for one question."""
    return 1 + max(len(order.topics) for order in graph.orders) if graph.orders else 0


@batched(GRAPH, tile=TILE)
@trusted()
def chain_paths(
    index: Index, queries: list[tuple[QuestionGraph, Walks | None, Walks, tuple[tuple[int, int], ...]]], step: int
) -> list[Walks | BadInput]:
    """Join part `step` to every whole path of each question, see `graph.paths.chain_paths`. A query: the graph, whole
    paths (None at step 0), parts, and the (least, longest) number of hops of each order."""

    def run(graphs: Any, whole: Sequence[Any], parts: Sequence[Walks], windows: Sequence[Any]) -> list[Walks]:
        joined = joined_of(graphs, parts)
        flat = torch.tensor([*chain(*windows)], dtype=torch.int64, device=joined.nodes.device).view(-1, 2)
        before = None if step == 0 else joined.together(whole)
        window = Window(flat[:, 0].contiguous(), flat[:, 1].contiguous())
        part = joined.together(parts)
        return joined.apart(ops.chain_paths(before, part, joined.topics, step, joined.ends, window), WHOLE)

    return _for_each_question(run, queries)


@batched(GRAPH, tile=TILE)
@trusted()
def best_paths(
    index: Index, queries: list[tuple[QuestionGraph, Walks]], choice: FactChoice, k: int | None
) -> list[list[FoundPath]]:
    """The k best scored whole paths of each question over all orders, by (-score, nodes), in words. A path and its
    reverse count as one."""
    facts = facts_of(index, choice)
    graphs, found = zip(*queries)
    words, joined = Words(kb_of(index), facts), joined_of(graphs, found)
    local = joined.together(found)
    fused = joined.fused(local.nodes)
    width = fused.shape[1]
    rows = torch.cat([fused, facts.edges_along(fused), local.question[:, None]], 1).tolist()
    scores = torch.cat([walks.scores for walks in found if walks.scores is not None]).tolist()
    results, first = [], 0
    for graph, walks in queries:
        best: dict[tuple[int, ...], int] = {}  # nodes -> row
        for i in sorted(range(first, first + walks.size), key=lambda i: (-scores[i], i)):
            nodes = tuple(node for node in rows[i][:width] if node >= 0)
            if nodes[::-1] not in best:
                best.setdefault(nodes, i)
        ranked = sorted(best, key=lambda nodes: (-scores[best[nodes]], nodes))[:k]
        members_of = cache(graph.members)
        kept = [(nodes, tuple(map(members_of, nodes)), rows[best[nodes]]) for nodes in ranked]
        results.append(
            [words.path(nodes, members, row[width:], joined.orders[row[-1]].topics) for nodes, members, row in kept]
        )
        first += walks.size
    return results
