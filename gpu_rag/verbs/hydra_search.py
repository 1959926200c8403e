"""The steps of path search over the subgraphs of many questions: expand, score, join and chain, as `graph.paths` has
them, with every question's paths in its own local nodes between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.path_set import PathSet, padded
from gpu_rag.graph.paths import (
    Ends,
    PathGraph,
    Window,
    chain_paths,
    expand_paths,
    n_steps,
    path_parts,
    score_paths,
    start_paths,
)
from gpu_rag.types import CSR, Ragged
from gpu_rag.verbs.hydra_base import FactGraph
from gpu_rag.verbs.hydra_graph import QuestionGraph

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
        orders = [(g, order, at) for g, at in zip(graphs, first_node) for order in g.orders]
        lists = [torch.searchsorted(g.nodes, g.nodes.new_tensor(o.topics)) + at for g, o, at in orders]
        offsets = torch.tensor([0, *(len(o.topics) for _, o, _ in orders)], dtype=torch.int64, device=device).cumsum(0)
        none = torch.zeros(0, dtype=torch.int64, device=device)
        ends = Ends(
            torch.tensor([o.opens for _, o, _ in orders], dtype=torch.bool, device=device),
            torch.tensor([o.closes for _, o, _ in orders], dtype=torch.bool, device=device),
        )
        return cls(
            PathGraph(csr, numbers),
            torch.cat([g.nodes for g in graphs]),
            Ragged(torch.cat([none, *lists]), offsets),
            ends,
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
        rows = torch.tensor(self.first_row, device=paths.question.device)
        cuts = torch.searchsorted(paths.question, rows).tolist()
        groups = self.first_group(kind)
        found = []
        for b, (lo, hi) in enumerate(zip(cuts, cuts[1:])):
            part = paths.rows(slice(lo, hi))
            width = part.edges.shape[1] if hops is None else hops[b]
            if kind != HOP:  # what a question is given must not depend on the others in its batch
                width = int((part.edges >= 0).sum(1).max()) if hi > lo else 0
            nodes = part.nodes[:, : width + 1]
            nodes = torch.where(nodes < 0, -1, nodes - self.first_node[b]).int()
            own = PathSet(part.group - groups[b], part.question - self.first_row[b], nodes, part.edges[:, :width])
            found.append(Walks(kind, own, None if scores is None else scores[lo:hi]))
        return found


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
    fused = torch.where(local < 0, -1, nodes[local.clamp_min(0).long()])
    return torch.where(fused[:, 1:] < 0, -1, fused[:, :-1]), fused[:, 1:]


def joined_parts(graphs: Sequence[QuestionGraph], hops: Sequence[Sequence[Walks]]) -> list[Walks]:
    """The parts between neighbouring topics: see `path_parts`. hops: for each question its walks of 0, 1, .. D hops."""
    joined = Joined.of(graphs)
    levels = [joined.together([of[h] for of in hops]) for h in range(len(hops[0]))]
    return joined.apart(path_parts(joined.graph, joined.topics, levels, joined.ends), PART)


def steps_of(graph: QuestionGraph) -> int:
    """How many steps `chained` takes for one question."""
    return n_steps(Joined.of([graph]).topics) if graph.orders else 0


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


def graph_paths(facts: FactGraph, graph: QuestionGraph, walks: Walks, k: int | None) -> list[GraphPath]:
    """The k best scored whole paths of a question over all its orders, by (-score, nodes), each once."""
    paths, scores = walks.paths, walks.scores
    if not paths.size:
        return []
    fused = torch.where(paths.nodes < 0, -1, graph.nodes[paths.nodes.clamp_min(0).long()])
    edges = facts.edges_of(*_ends_of(paths.nodes, graph.nodes))
    values = torch.zeros(paths.size).tolist() if scores is None else scores.tolist()
    best: dict[tuple[int, ...], GraphPath] = {}
    for nodes, along, score, order in zip(fused.tolist(), edges.tolist(), values, paths.question.tolist()):
        kept = tuple(v for v in nodes if v >= 0)
        path = GraphPath(kept, tuple(along[: len(kept) - 1]), score, graph.orders[order].topics)
        backwards = kept[::-1]
        held = best.get(kept) or best.get(backwards)
        if held is None or path.score > held.score:
            best.pop(backwards, None)
            best[kept] = path
    return sorted(best.values(), key=lambda p: (-p.score, p.nodes))[:k]
