"""The steps of path search over the subgraphs of many questions: expand, score, join and chain, as `graph.paths` has
them, with every question's paths in its own local nodes between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph import paths as ops
from gpu_rag.graph.paths import Ends, PathGraph, Window
from gpu_rag.graph.paths.sets import PathSet, padded
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.index.index import Index
from gpu_rag.methods.hydrarag.batched import TILE, each_alone
from gpu_rag.methods.hydrarag.batched.facts import FactChoice, facts_of
from gpu_rag.methods.hydrarag.batched.subgraphs import QuestionGraph
from gpu_rag.methods.hydrarag.batched.words import in_words
from gpu_rag.methods.hydrarag.state import OVERLAP, SEMANTIC, FoundPath
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched
from gpu_rag.types import CSR, Ragged

HOP, PART, WHOLE = "hop", "part", "whole"  # a beam is for each topic, each part of an order, each order


@dataclass(frozen=True, eq=False)
class Walks:
    """The paths of one question at one step: nodes are local to its subgraph, `question` is the place of the order.

    kind: what `paths.group` counts: topics of all orders (hop), parts (part) or orders (whole). scores: f64[P] | None.
    """

    kind: str
    paths: PathSet
    scores: torch.Tensor | None = None

    @property
    def size(self) -> int:
        """Number of paths."""
        return self.paths.size


@dataclass(frozen=True, eq=False)
class Joined:
    """The subgraphs of B questions as one block-diagonal graph, and all their orders as rows.

    first_node, first_topic, first_row: where those of each question begin: i64[B + 1].
    """

    graph: PathGraph
    nodes: torch.Tensor
    topics: Ragged
    ends: Ends
    first_node: list[int]
    first_topic: list[int]
    first_row: list[int]

    @classmethod
    def of(cls, graphs: Sequence[QuestionGraph]) -> Joined:
        """Of at least one question."""
        device = graphs[0].nodes.device
        first_node = np.cumsum([0, *(g.csr.n for g in graphs)]).tolist()
        entries = np.cumsum([0, *(g.csr.m for g in graphs)]).tolist()
        indptr = [g.csr.indptr[:-1] + at for g, at in zip(graphs, entries)]
        indptr.append(torch.tensor([entries[-1]], dtype=torch.int64, device=device))
        indices = torch.cat([g.csr.indices + at for g, at in zip(graphs, first_node)])
        csr = CSR(torch.cat(indptr), indices.int())
        numbers = torch.arange(csr.m, dtype=torch.int32, device=device)  # the true edge is looked up from its ends
        orders = [order for g in graphs for order in g.orders]
        lists = [[place + at for place in one] for g, at in zip(graphs, first_node) for one in g.places]
        sides = torch.tensor([(o.opens, o.closes) for o in orders], dtype=torch.bool, device=device).view(-1, 2)
        return cls(
            PathGraph(csr, numbers),
            torch.cat([g.nodes for g in graphs]),
            ragged_of_lists(lists, device),
            Ends(sides[:, 0].contiguous(), sides[:, 1].contiguous()),
            first_node,
            np.cumsum([0, *(sum(len(o.topics) for o in g.orders) for g in graphs)]).tolist(),
            np.cumsum([0, *(len(g.orders) for g in graphs)]).tolist(),
        )

    def first_group(self, kind: str) -> list[int]:
        """Where the groups of each question begin."""
        if kind == PART:
            return [topic + row for topic, row in zip(self.first_topic, self.first_row)]
        return self.first_topic if kind == HOP else self.first_row

    def together(self, walks: Sequence[Walks]) -> PathSet:
        """The paths of all questions in one set; a walk of each question, of one kind."""
        hops = max(w.paths.edges.shape[1] for w in walks)
        wide = [padded(w.paths, hops) for w in walks]
        groups = self.first_group(walks[0].kind)
        nodes = [torch.where(p.nodes < 0, -1, p.nodes + at) for p, at in zip(wide, self.first_node)]
        return PathSet(
            torch.cat([p.group + at for p, at in zip(wide, groups)]),
            torch.cat([p.question + at for p, at in zip(wide, self.first_row)]),
            torch.cat(nodes).int(),
            torch.cat([p.edges for p in wide]),
        )

    def apart(
        self, paths: PathSet, kind: str, scores: torch.Tensor | None = None, hops: Sequence[int] | None = None
    ) -> list[Walks]:
        """The paths of each question, in its own nodes and without columns that it does not use.

        hops: of kind HOP the length of each question's paths; where it is None all have the same.
        """
        cuts, longest = self._cuts(paths)
        groups = self.first_group(kind)
        found = []
        for b, (lo, hi) in enumerate(pairwise(cuts)):
            part = paths.rows(slice(lo, hi))
            width = part.edges.shape[1] if hops is None else hops[b]
            if kind != HOP:  # what a question is given must not depend on the others in its batch
                width = longest[b]
            nodes = part.nodes[:, : width + 1]
            nodes = torch.where(nodes < 0, -1, nodes - self.first_node[b]).int()
            own = PathSet(part.group - groups[b], part.question - self.first_row[b], nodes, part.edges[:, :width])
            found.append(Walks(kind, own, None if scores is None else scores[lo:hi]))
        return found

    def _cuts(self, paths: PathSet) -> tuple[list[int], list[int]]:
        """Where the paths of each question begin, B + 1 numbers, and the most hops of a path of each question."""
        rows = torch.tensor(self.first_row, device=paths.question.device)
        cuts = torch.searchsorted(paths.question, rows)
        owner = torch.searchsorted(cuts, torch.arange(paths.size, device=cuts.device), right=True) - 1
        longest = torch.zeros_like(cuts).scatter_reduce_(0, owner, paths.lengths, "amax")
        both: list[list[int]] = torch.stack([cuts, longest]).tolist()
        return both[0], both[1]


@batched(GRAPH, tile=TILE)
def start_paths(index: Index, graphs: list[QuestionGraph]) -> list[Walks]:
    """A path of no hop at each topic of each order."""
    joined = Joined.of(graphs)
    return joined.apart(ops.start_paths(joined.graph, joined.topics), HOP)


@batched(GRAPH, tile=TILE)
def expand_paths(index: Index, queries: list[tuple[QuestionGraph, Walks]], hops: int) -> list[Walks | BadInput]:
    """Every path of `hops` hops one hop longer."""

    def run(some: list[tuple[QuestionGraph, Walks]]) -> list[Walks]:
        joined = Joined.of([graph for graph, _ in some])
        walks = joined.together([walks for _, walks in some])
        return joined.apart(ops.expand_paths(joined.graph, walks, joined.topics, threads=index.threads), HOP)

    return each_alone(run, queries)


@batched(GRAPH, tile=TILE)
def score_paths(
    index: Index,
    queries: list[tuple[QuestionGraph, Walks, np.ndarray]],
    choice: FactChoice,
    kind: str,
    beam: int | None,
) -> list[Walks | BadInput]:
    """The `beam` best paths of each topic, part or order, all where it is None, by relevance to a unit vector f32[D]
    that is the same for all orders of a question. kind: of the walks."""
    facts = facts_of(index, choice)

    def run(some: list[tuple[QuestionGraph, Walks, np.ndarray]]) -> list[Walks]:
        joined = Joined.of([graph for graph, _, _ in some])
        local = joined.together([walks for _, walks, _ in some])
        edges = facts.edges_of(*_ends_of(local.nodes, joined.nodes))
        paths = PathSet(local.group, local.question, local.nodes, edges)
        rows = [np.broadcast_to(query, (len(graph.orders), len(query))) for graph, _, query in some]
        vectors = torch.from_numpy(np.concatenate(rows).astype(np.float32)).to(joined.nodes.device)
        kept, scores = ops.score_paths(
            paths,
            vectors,
            facts.vectors,
            joined.topics,
            beam=beam,
            weights=(SEMANTIC, OVERLAP),
            threads=index.threads,
        )
        return joined.apart(kept, kind, scores, [walks.paths.edges.shape[1] for _, walks, _ in some])

    return each_alone(run, queries)


def _ends_of(local: torch.Tensor, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The fused nodes at both ends of every hop, -1 beyond a path's end."""
    fused = _fused(local, nodes)
    return torch.where(fused[:, 1:] < 0, -1, fused[:, :-1]), fused[:, 1:]


def _fused(local: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """The fused node of each local one, -1 beyond a path's end."""
    return torch.where(local < 0, -1, nodes[local.clamp_min(0).long()])


@batched(GRAPH, tile=TILE)
def join_paths(
    index: Index, queries: list[tuple[QuestionGraph, tuple[Walks, ...]]], levels: int
) -> list[Walks | BadInput]:
    """The parts between neighbouring topics out of walks of 0, 1, .. levels - 1 hops, see `path_parts`."""

    def run(some: list[tuple[QuestionGraph, tuple[Walks, ...]]]) -> list[Walks]:
        joined = Joined.of([graph for graph, _ in some])
        hops = [joined.together([walks[hop] for _, walks in some]) for hop in range(levels)]
        return joined.apart(ops.path_parts(joined.graph, joined.topics, hops, joined.ends), PART)

    return each_alone(run, queries)


def n_chain_steps(graph: QuestionGraph) -> int:
    """How many steps `chain_paths` take for one question."""
    return 1 + max(len(order.topics) for order in graph.orders) if graph.orders else 0


Chained = tuple[QuestionGraph, Walks | None, Walks, tuple[tuple[int, int], ...]]


@batched(GRAPH, tile=TILE)
def chain_paths(index: Index, queries: list[Chained], step: int) -> list[Walks | BadInput]:
    """Part `step` joined to every whole path of each question, see `graph.paths.chain_paths`. A query: the graph, whole
    paths (None before step 0), parts, and (least, longest) hops of each order."""

    def run(some: list[Chained]) -> list[Walks]:
        joined = Joined.of([graph for graph, _, _, _ in some])
        windows = [window for _, _, _, of in some for window in of]
        flat = torch.tensor(windows, dtype=torch.int64, device=joined.nodes.device).view(-1, 2)
        before = None if step == 0 else joined.together([whole for _, whole, _, _ in some if whole is not None])
        parts = joined.together([parts for _, _, parts, _ in some])
        window = Window(flat[:, 0].contiguous(), flat[:, 1].contiguous())
        return joined.apart(ops.chain_paths(before, parts, joined.topics, step, joined.ends, window), WHOLE)

    return each_alone(run, queries)


@batched(GRAPH, tile=TILE)
def best_paths(
    index: Index, queries: list[tuple[QuestionGraph, Walks]], choice: FactChoice, k: int | None
) -> list[list[FoundPath]]:
    """The k best scored whole paths of each question over all orders, by (-score, nodes), each once, in words."""
    kb, facts = kb_of(index), facts_of(index, choice)
    joined = Joined.of([graph for graph, _ in queries])
    local = joined.together([walks for _, walks in queries])
    along, fused = facts.edges_of(*_ends_of(local.nodes, joined.nodes)), _fused(local.nodes, joined.nodes)
    rows = torch.cat([local.question[:, None], fused, along], 1).tolist()
    scores = torch.cat([walks.scores for _, walks in queries if walks.scores is not None]).tolist()
    orders = [order for graph, _ in queries for order in graph.orders]
    found, first, width = [], 0, fused.shape[1]
    for graph, walks in queries:
        best: dict[tuple[int, ...], tuple[float, list[int]]] = {}  # nodes -> score, row
        for row, score in zip(rows[first : first + walks.size], scores[first : first + walks.size]):
            _keep_best(best, tuple(node for node in row[1 : width + 1] if node >= 0), (score, row))
        ranked = sorted(best, key=lambda nodes: (-best[nodes][0], nodes))[:k]
        found.append(
            [
                in_words(kb, facts, graph, nodes, row[width + 1 : width + len(nodes)], orders[row[0]].topics)
                for nodes in ranked
                for _, row in [best[nodes]]
            ]
        )
        first += walks.size
    return found


def _keep_best(
    best: dict[tuple[int, ...], tuple[float, list[int]]], nodes: tuple[int, ...], path: tuple[float, list[int]]
) -> None:
    """Puts a path in, unless it or its reverse is there with a score as high."""
    known = best.get(nodes) or best.get(nodes[::-1])
    if known is None or path[0] > known[0]:
        best.pop(nodes[::-1], None)
        best[nodes] = path
