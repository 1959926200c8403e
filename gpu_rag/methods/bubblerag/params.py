"""The parameters of BubbleRAG: what its steps look for, how trees are ranked and grown, and what is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COUNT, NATURAL, Range

MOST_ALPHA = 100  # its exponential is a number


@dataclass(frozen=True)
class Params(Declared):
    """Keywords, trees, and the passages of trees."""

    specialise: Annotated[bool, "false: keywords as they are listed; without a model names and content words"] = True
    relax: Annotated[
        bool,
        "false: passages are not looked at before anchoring; without a model open sub-questions are looked for "
        "everywhere",
    ] = True
    budget: Annotated[int, COUNT, "candidate trees"] = 10
    cover_first: Annotated[bool, "trees that miss fewer groups come first; false: by distance alone"] = True
    alpha: Annotated[float, Range(0, MOST_ALPHA), "what a missing group costs: 0 is OR, 5 is AND"] = 1.0
    rank: Annotated[
        Literal["auto", "score", "first"],
        "score (the trees of highest score), first (those found first), or auto: score where a model weighs the groups",
    ] = "auto"
    n_trees: Annotated[int, COUNT, "trees kept"] = 3
    depth: Annotated[int, NATURAL, "hops by which they are grown at most; 0: none"] = 6
    passages: Annotated[Literal["fused", "trees"], "their order"] = "fused"
    n_passages: Annotated[int, COUNT, "retrieved, and read by a capable model"] = 15

    n_before: ClassVar[int] = 5  # pre-retrieved passages that a model checks, and words keywords by
    n_anchors: ClassVar[int] = 10  # candidates of a keyword
    near: ClassVar[int] = 4  # steps around the others' anchors within which an open sub-question is looked for
    hops: ClassVar[int] = 6  # steps around the anchors that the local graph has
    max_local: ClassVar[int] = 20_000  # nodes of a local graph
    cost_on: ClassVar[str] = "nodes"  # the cost of a tree is the mean over its entities
    intra_penalty: ClassVar[float] = 0.9  # factor for a tree that joins two anchors of one group
    n_neighbours: ClassVar[int] = 40  # relations shown at a hop, the nearest to the question
    max_picks: ClassVar[int] = 5  # of these taken
    pick_threshold: ClassVar[float] = 0.45  # by similarity: least cosine with the question of one that is taken
    fusion_constant: ClassVar[float] = 3.0
