"""Steps 5 and 6 of BubbleRAG: ranking of candidate evidence graphs, and growth of the best ones hop by hop.

Score(T) = 1 / (Cost_sem(T) * exp(alpha * r_miss) + 1e-6), r_miss = the sum of the weights of groups not met in T;
times `intra_penalty` if T joins two anchors of one group. alpha ranges from OR (0) to AND (5). `rank`:
  score   the trees of highest score
  first   the first connected trees, which are the shortest ways to join most groups, or to join any
  auto    score if the group weights differ from those of the rules, else first. Rarity does not tell what the question
          needs, so the mean cost would decide, and it prefers long trees through names near the question.
A hop shows the decider at most `n_neighbours` relations that end at the frontier, the nearest to the question, as
"A - R - B". At most `max_picks` are taken; by similarity, only those with a cosine of at least `pick_threshold`. Taken
relations add both their entities; the new ones form the next frontier. Growth ends without a frontier, or after
`depth` hops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_rag.graph.bubble import ALONE, INSIDE
from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.asks import EXPAND
from gpu_rag.methods.bubblerag.batched import Params, Tree, bubble_neighbours
from gpu_rag.methods.bubblerag.graph import is_relation, node_texts, passages_of
from gpu_rag.methods.bubblerag.rules import Group
from gpu_rag.program.choices import Choices
from gpu_rag.program.decide import decide
from gpu_rag.program.run import Run

EPSILON = 1e-6


def missing(tree: Tree, groups: Sequence[Group]) -> float:
    """r_miss: the summed weights of the groups without an anchor in the tree."""
    return math.fsum(group.weight for g, group in enumerate(groups) if not tree.groups >> g & 1)


def score(tree: Tree, groups: Sequence[Group], *, alpha: float, intra_penalty: float) -> float:
    """Score(T), see the module."""
    plain = 1 / (tree.cost * math.exp(alpha * missing(tree, groups)) + EPSILON)
    return plain * intra_penalty if tree.kind == INSIDE else plain


def best_trees(
    trees: Sequence[Tree], groups: Sequence[Group], n: int, *, alpha: float, intra_penalty: float, rank: bool = True
) -> list[tuple[Tree, float]]:
    """The n best trees with their scores, ties to the earlier. Without `rank` the first n connected trees; if there are
    none, the first n."""
    scores = [score(tree, groups, alpha=alpha, intra_penalty=intra_penalty) for tree in trees]
    if rank:
        order = sorted(range(len(trees)), key=lambda i: (-scores[i], i))
    else:
        order = [i for i, tree in enumerate(trees) if tree.kind != ALONE] or list(range(len(trees)))
    return [(trees[i], scores[i]) for i in order[:n]]


@dataclass
class EvidenceGraph:
    """A tree and its growth. entities, relations: nodes in the order they were added."""

    entities: dict[int, None] = field(default_factory=dict)
    relations: dict[int, None] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Tree, index: Index) -> EvidenceGraph:
        """The tree with both entities of each of its relations."""
        graph = cls({v: None for v in tree.nodes if not is_relation(index, v)})
        graph.add([v for v in tree.nodes if is_relation(index, v)], index)
        return graph

    def add(self, relations: Sequence[int], index: Index) -> list[int]:
        """Add relations. Returns the new entities at their ends."""
        ends = ((int(side[r - index.n_entities]) for side in index.relation_ends) for r in relations)
        fresh = dict.fromkeys(v for both in ends for v in both if v not in self.entities)
        self.relations.update(dict.fromkeys(relations))
        self.entities.update(fresh)
        return list(fresh)


async def expanded(
    run: Run, question: str, vector: np.ndarray, number: int, tree: Tree, choices: Choices, params: Params
) -> EvidenceGraph:
    """The evidence graph grown from the tree of rank `number` (from 1). Its choices are added to `choices`."""
    graph = EvidenceGraph.of(tree, run.index)
    frontier = list(graph.entities)
    for hop in range(1, params.depth + 1):
        neighbours = await bubble_neighbours((vector, tuple(frontier), tuple(graph.relations)), params.n_neighbours)
        if not neighbours.rows:
            break
        chosen = await decide(
            run,
            EXPAND,
            step=f"{number}_{hop}",
            question=question,
            graph=graph,
            index=run.index,
            options=node_texts(run.index, neighbours.rows),
            relations=neighbours.rows,
            k=params.max_picks,
            threshold=params.pick_threshold,
            scores=neighbours.scores,
        )
        choices.add(run, neighbours.rows, chosen, lambda v: passages_of(run.index, [v]))
        frontier = graph.add([neighbours.rows[i] for i in chosen], run.index)
        if not frontier:
            break
    return graph
