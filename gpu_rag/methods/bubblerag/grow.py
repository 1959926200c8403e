"""The fused verb behind `bubblerag`: bubbles grow in the local graphs of a batch of questions, trees are described.

For a question with unit vector q and groups of anchors, over the nodes [entities | relations] of `index.bubble`:
  G'        = the nodes within `hops` steps of an anchor, at most `max_local`, see `graph.bubble_local.localise`
  w(v)      = 1 + floor((1 - cos(q, v)) * 2^14), from one table of cosines a batch, see `bubble_cosines`
  T_1, ...  = the first `limit` candidate trees of `graph.bubble.bubble_expansion` in G' with w
  Cost_sem  = the mean of 1 - cos(q, v) over the entities of T (over all its nodes, where `cost_on` says so or T is a
              relation by itself); BubbleRAG's semantic dissonance
All local graphs of a batch are blocks of one block-diagonal graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.errors import UsageError
from gpu_rag.graph.bubble import ALONE, INSIDE, MOST_GROUPS, Bubbles, bubble_expansion
from gpu_rag.graph.bubble.local import localise
from gpu_rag.graph.ego import induced_subgraphs
from gpu_rag.graph.ragged import ragged_of_lists, row_of_value
from gpu_rag.methods.bubblerag.cosines import Cosines
from gpu_rag.methods.bubblerag.graph import BubbleGraph
from gpu_rag.settings.ranges import COUNT, NATURAL, check_fields
from gpu_rag.types import Ragged

__all__ = ["COSTS_ON", "MOST_GROUPS", "BubbleGrowth", "Grown", "Tree", "grow", "node_lists", "question_rows"]

COSTS_ON = ("nodes", "nodes+edges")


@dataclass(frozen=True)
class BubbleGrowth:
    """Parameters of one expansion, see the module; calls with equal parameters share a batch. cover_first: trees that
    miss fewer groups come first. cost_on: nodes (the entities) | nodes+edges."""

    hops: int = 6
    max_local: int = 20_000
    limit: int = 10
    cover_first: bool = False
    cost_on: str = "nodes"

    def __post_init__(self) -> None:
        check_fields(self, hops=NATURAL, max_local=COUNT, limit=COUNT, cost_on=COSTS_ON)


@dataclass(frozen=True)
class Tree:
    """A candidate. nodes: ascending; groups: bit g is set where an anchor of group g is among them; cost: Cost_sem;
    distance: of the event that found it; kind: MEETING, INSIDE or ALONE of `graph.bubble`."""

    nodes: tuple[int, ...]
    groups: int
    cost: float
    distance: int
    kind: int

    @property
    def is_inside(self) -> bool:
        """Whether it joins two anchors of one group."""
        return self.kind == INSIDE

    @property
    def is_alone(self) -> bool:
        """Whether it is one anchor by itself, since no bubbles met."""
        return self.kind == ALONE


Grown = tuple[np.ndarray, tuple[tuple[int, ...], ...]]  # a question's unit vector, and the anchors of each group


def question_rows(vectors: Sequence[np.ndarray], graph: BubbleGraph) -> torch.Tensor:
    """Unit vectors as f32[B, D] on the device of the graph."""
    return torch.from_numpy(np.stack(vectors).astype(np.float32)).to(graph.ends.device)


def node_lists(lists: Sequence[Sequence[int]], graph: BubbleGraph) -> Ragged:
    """Lists of nodes as Ragged i64 on the device of the graph."""
    return ragged_of_lists(lists, graph.ends.device)


def grow(graph: BubbleGraph, params: BubbleGrowth, asked: Sequence[Grown], threads: int = 1) -> list[tuple[Tree, ...]]:
    """The candidate trees of each question, in the order of `bubble_expansion`; none for one without anchors.

    Memory: all local graphs at once, so a caller takes some dozens of questions at a time. Raises BadInput, UsageError.
    """
    if not asked:
        return []
    if any(len(groups) > MOST_GROUPS for _, groups in asked):
        given = max(len(groups) for _, groups in asked)
        raise UsageError("too many groups of anchors", given=given, expected=f"<= {MOST_GROUPS}")
    cosines = Cosines(graph, question_rows([vector for vector, _ in asked], graph))
    anchors = node_lists([[v for group in groups for v in group] for _, groups in asked], graph)
    kinds = node_lists([[g for g, group in enumerate(groups) for _ in group] for _, groups in asked], graph)
    nodes = localise(graph.graph, anchors, cosines.costs, hops=params.hops, limit=params.max_local, threads=threads)
    blocks = induced_subgraphs(graph.graph, nodes)
    costs = cosines.costs(row_of_value(nodes), nodes.values.long())
    found = bubble_expansion(
        blocks, costs, anchors, kinds, limit=params.limit, cover_first=params.cover_first, threads=threads
    )
    return _described(graph, found, cosines, params.cost_on)


def _described(graph: BubbleGraph, found: Bubbles, cosines: Cosines, cost_on: str) -> list[tuple[Tree, ...]]:
    """The trees of each question. A sum of cosines has no rounding (see `graph.dots`), so no order matters."""
    of, n_trees = row_of_value(found.nodes), found.kind.shape[0]
    question = row_of_value(Ragged(found.distance, found.offsets))[of].to(graph.ends.device)
    node = found.nodes.values.long().to(graph.ends.device)
    paid = 1 - cosines.of(question, node).cpu().numpy()
    tree = of.numpy()
    counted = np.ones(len(tree), bool) if cost_on == "nodes+edges" else (node < graph.n_entities).cpu().numpy()
    counted |= np.bincount(tree[counted], minlength=n_trees)[tree] == 0
    n_counted = np.bincount(tree[counted], minlength=n_trees)
    cost = np.bincount(tree[counted], paid[counted], minlength=n_trees) / np.maximum(n_counted, 1)
    at, values = found.nodes.offsets.tolist(), found.nodes.values.tolist()
    columns = (found.groups.tolist(), cost.tolist(), found.distance.tolist(), found.kind.tolist())
    trees = [Tree(tuple(values[a:b]), *row) for a, b, *row in zip(at, at[1:], *columns)]
    ends = found.offsets.tolist()
    return [tuple(trees[a:b]) for a, b in zip(ends, ends[1:])]
