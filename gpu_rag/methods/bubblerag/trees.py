"""Steps 5 and 6 of BubbleRAG: candidate evidence graphs ranked, and the best of them grown hop by hop.

Score(T) = 1 / (Cost_sem(T) * exp(alpha * r_miss) + 1e-6), r_miss = the sum of the weights of groups not met in T;
times `intra_penalty` where T joins two anchors of one group. alpha is the dial from OR (0) to AND (5). `rank`:
  score   the trees of highest score
  first   the first connected trees, which are the shortest ways to join most groups, or to join any
  auto    score where a model has weighed the groups, else first: without weights that mean something the mean cost
          decides, and it prefers long trees that pass through names near the question
A hop shows the decider at most `n_neighbours` relations that end at the frontier, the nearest to the question, as
"A - R - B", and takes at most `max_picks`; by similarity those of a cosine of `pick_threshold` or more. What is taken
brings both its entities along; the new ones are the next frontier. It ends where there is none, or after `depth` hops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_rag.methods.bubblerag.groups import Group
from gpu_rag.methods.bubblerag.grow import Tree
from gpu_rag.program.verbs import Verbs
from gpu_rag.text.prompts import Prompt

EPSILON = 1e-6
RANKS = ("auto", "score", "first")


def missing(tree: Tree, groups: Sequence[Group]) -> float:
    """r_miss: the weights of the groups that have no anchor in the tree, summed."""
    return math.fsum(group.weight for g, group in enumerate(groups) if not tree.groups >> g & 1)


def score(tree: Tree, groups: Sequence[Group], *, alpha: float, intra_penalty: float) -> float:
    """Score(T), see the module."""
    plain = 1 / (tree.cost * math.exp(alpha * missing(tree, groups)) + EPSILON)
    return plain * intra_penalty if tree.is_inside else plain


def best_trees(
    trees: Sequence[Tree], groups: Sequence[Group], n: int, *, alpha: float, intra_penalty: float, rank: bool = True
) -> list[tuple[Tree, float]]:
    """The n best with their scores, ties to the earlier; without `rank` the first n that are connected, or else the
    first n."""
    scores = [score(tree, groups, alpha=alpha, intra_penalty=intra_penalty) for tree in trees]
    if rank:
        order = sorted(range(len(trees)), key=lambda i: (-scores[i], i))
    else:
        order = [i for i, tree in enumerate(trees) if not tree.is_alone] or list(range(len(trees)))
    return [(trees[i], scores[i]) for i in order[:n]]


@dataclass
class EvidenceGraph:
    """A tree and what it was grown by. entities, relations: nodes in the order in which they came."""

    entities: dict[int, None] = field(default_factory=dict)
    relations: dict[int, None] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Tree, verbs: Verbs) -> EvidenceGraph:
        """The tree with both entities of each of its relations."""
        graph = cls({v: None for v in tree.nodes if not verbs.bubble_is_relation(v)})
        graph.add([v for v in tree.nodes if verbs.bubble_is_relation(v)], verbs)
        return graph

    def add(self, relations: Sequence[int], verbs: Verbs) -> list[int]:
        """Takes relations in; returns the entities that they bring along."""
        fresh = dict.fromkeys(v for r in relations for v in verbs.bubble_ends(r) if v not in self.entities)
        self.relations.update(dict.fromkeys(relations))
        self.entities.update(fresh)
        return list(fresh)

    def lines(self, verbs: Verbs) -> list[str]:
        """Its relations as "A - R - B", or the entities of a graph without any."""
        return [verbs.bubble_text(v) for v in (self.relations or self.entities)]


@dataclass(frozen=True)
class Expansion:
    """How evidence graphs are grown, see the module."""

    depth: int
    n_neighbours: int
    max_picks: int
    pick_threshold: float


async def expanded(
    question: str, vector: np.ndarray, number: int, tree: Tree, params: Expansion, verbs: Verbs
) -> EvidenceGraph:
    """The evidence graph of the tree of rank `number` (from 1)."""
    graph = EvidenceGraph.of(tree, verbs)
    frontier = list(graph.entities)
    for hop in range(1, params.depth + 1):
        found = await verbs.bubble_neighbours(vector, frontier, list(graph.relations), params.n_neighbours)
        if not found.rows:
            break
        chosen = await verbs.choose(
            Prompt.read("gpu_rag.methods.bubblerag.prompts", "expand"),
            {"question": question, "evidence": "\n".join(graph.lines(verbs))},
            [verbs.bubble_text(v) for v in found.rows],
            query=question,
            k=params.max_picks,
            allow_none=True,
            threshold=params.pick_threshold,
            similarity=found.scores,
            name=f"expand_{number}_{hop}",
        )
        frontier = graph.add([found.rows[i] for i in chosen], verbs)
        if not frontier:
            break
    return graph
