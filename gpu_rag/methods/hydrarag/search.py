"""The steps of path search over the subgraphs of many questions: expand, score, join and chain, as `graph.paths` has
them, with every question's paths in its own local nodes between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from gpu_rag.graph.paths import (
    Ends,
    PathGraph,
    Window,
    chain_paths,
    expand_paths,
    path_parts,
    score_paths,
    start_paths,
)
from gpu_rag.graph.paths.sets import PathSet, padded
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.methods.hydrarag.base import FactGraph
from gpu_rag.methods.hydrarag.subgraphs import Order, QuestionGraph
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


def started(graphs: Sequence[QuestionGraph]) -> list[Walks]:
    """The paths of no hop of each question."""
    joined = Joined.of(graphs)
    return joined.apart(start_paths(joined.graph, joined.topics), HOP)


def expanded(graphs: Sequence[QuestionGraph], walks: Sequence[Walks], threads: int = 1) -> list[Walks]:
    """One hop more: see `expand_paths`. All walks have the same hops."""
    joined = Joined.of(graphs)
    return joined.apart(expand_paths(joined.graph, joined.together(walks), joined.topics, threads=threads), HOP)


def scored(
    facts: FactGraph,
    graphs: Sequence[QuestionGraph],
    walks: Sequence[Walks],
    queries: Sequence[np.ndarray],
    beam: int | None,
    weights: tuple[float, float],
    threads: int = 1,
) -> list[Walks]:
    """The best of each group, see `score_paths`; queries: a unit vector a question, the same for all its orders."""
    joined = Joined.of(graphs)
    local = joined.together(walks)
    edges = facts.edges_of(*_ends_of(local.nodes, joined.nodes))
    paths = PathSet(local.group, local.question, local.nodes, edges)
    rows = [np.broadcast_to(q, (len(g.orders), len(q))) for q, g in zip(queries, graphs)]
    asked = torch.from_numpy(np.concatenate(rows).astype(np.float32)).to(joined.nodes.device)
    kept, scores = score_paths(paths, asked, facts.vectors, joined.topics, beam=beam, weights=weights, threads=threads)
    return joined.apart(kept, walks[0].kind, scores, [w.paths.edges.shape[1] for w in walks])


def _ends_of(local: torch.Tensor, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The fused nodes at both ends of every hop, -1 beyond a path's end."""
    fused = _fused(local, nodes)
    return torch.where(fused[:, 1:] < 0, -1, fused[:, :-1]), fused[:, 1:]


def _fused(local: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """The fused node of each local one, -1 beyond a path's end."""
    return torch.where(local < 0, -1, nodes[local.clamp_min(0).long()])


def joined_parts(graphs: Sequence[QuestionGraph], hops: Sequence[Sequence[Walks]]) -> list[Walks]:
    """The parts between neighbouring topics: see `path_parts`. hops: for each question its walks of 0, 1, .. D hops."""
    joined = Joined.of(graphs)
    levels = [joined.together([of[h] for of in hops]) for h in range(len(hops[0]))]
    return joined.apart(path_parts(joined.graph, joined.topics, levels, joined.ends), PART)


def steps_of(graph: QuestionGraph) -> int:
    """How many steps `chained` takes for one question."""
    return 1 + max(len(order.topics) for order in graph.orders) if graph.orders else 0


def chained(
    graphs: Sequence[QuestionGraph],
    whole: Sequence[Walks | None],
    parts: Sequence[Walks],
    windows: Sequence[Sequence[tuple[int, int]]],
    step: int,
) -> list[Walks]:
    """One more part for every order: see `chain_paths`. windows: (least, longest) of each order of each question."""
    joined = Joined.of(graphs)
    flat = torch.tensor([w for of in windows for w in of], dtype=torch.int64, device=joined.nodes.device).view(-1, 2)
    before = None if step == 0 else joined.together([w for w in whole if w is not None])
    window = Window(flat[:, 0].contiguous(), flat[:, 1].contiguous())
    found = chain_paths(before, joined.together(parts), joined.topics, step, joined.ends, window)
    return joined.apart(found, WHOLE)


@dataclass(frozen=True)
class GraphPath:
    """A path of the knowledge graphs. nodes: fused, each the representative of its cluster; edges: of the FactGraph;
    score: its relevance during the search; topics: those of the order that it was found for."""

    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    score: float
    topics: tuple[int, ...] = ()


def graph_paths(
    facts: FactGraph, graphs: Sequence[QuestionGraph], walks: Sequence[Walks], k: int | None
) -> list[list[GraphPath]]:
    """The k best scored whole paths of each question over all its orders, by (-score, nodes), each once."""
    joined = Joined.of(graphs)
    local = joined.together(walks)
    along, fused = facts.edges_of(*_ends_of(local.nodes, joined.nodes)), _fused(local.nodes, joined.nodes)
    rows = torch.cat([local.question[:, None], fused, along], 1).tolist()
    scores = torch.cat([_scores(walk) for walk in walks]).tolist()
    orders = [order for graph in graphs for order in graph.orders]
    found, first = [], 0
    for walk in walks:
        best: dict[tuple[int, ...], GraphPath] = {}
        for row, score in zip(rows[first : first + walk.size], scores[first : first + walk.size]):
            _keep_best(best, _graph_path(row, score, orders))
        found.append(sorted(best.values(), key=lambda p: (-p.score, p.nodes))[:k])
        first += walk.size
    return found


def _scores(walks: Walks) -> torch.Tensor:
    """f64[P], zeros where the paths were not scored."""
    size, device = walks.size, walks.paths.nodes.device
    return torch.zeros(size, dtype=torch.float64, device=device) if walks.scores is None else walks.scores


def _graph_path(row: Sequence[int], score: float, orders: Sequence[Order]) -> GraphPath:
    """row: the order, W + 1 nodes and W edges, padded with -1."""
    width = len(row) // 2
    nodes = tuple(node for node in row[1 : width + 1] if node >= 0)
    return GraphPath(nodes, tuple(row[width + 1 : width + len(nodes)]), score, orders[row[0]].topics)


def _keep_best(best: dict[tuple[int, ...], GraphPath], path: GraphPath) -> None:
    """Puts a path in, unless it or its reverse is there with a score as high."""
    held = best.get(path.nodes) or best.get(path.nodes[::-1])
    if held is None or path.score > held.score:
        best.pop(path.nodes[::-1], None)
        best[path.nodes] = path
