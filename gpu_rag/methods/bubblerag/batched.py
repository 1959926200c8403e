"""What a program may say to BubbleRAG's graph: anchors for keywords, trees that join them, neighbours, passages.

Nodes are those of `graph`: [entities | relations]. Law: a call returns nodes and scores, at most k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpu_rag.errors import UsageError
from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.graph import BubbleGraph, load_bubble_graph
from gpu_rag.methods.bubblerag.grow import BubbleGrowth, Grown, Tree, grow, question_rows
from gpu_rag.methods.bubblerag.lookup import (
    ORDERS,
    TreePassage,
    merged_nodes,
    near_relations,
    neighbours,
    passages,
)
from gpu_rag.program.legacy import RANK_GRAPH, Call, Executor
from gpu_rag.program.search import Ranking, nearest_rows, rankings
from gpu_rag.text.linking import mentioned_names

TILE = 64  # questions whose local graphs, balls and passages are alive at once


def bubble_graph(index: Index) -> BubbleGraph:
    """The graph of an index, prepared once. Raises MissingLayer."""
    return index.loaded("bubble", load_bubble_graph)


def _n_passages(index: Index) -> np.ndarray:
    """i64[N + R]: how many passages each node has."""
    return np.asarray(bubble_graph(index).passages.offsets.diff().cpu().numpy())


def bubble_executors(index: Index, threads: int = 1) -> dict[str, Executor]:
    """The executors of the bubble verbs; the graph is made when it is first asked."""

    def tiled(run: Callable[..., Sequence[Any]], *before: Any, args: list[Any], after: tuple[Any, ...]) -> list[Any]:
        tiles = (args[start : start + TILE] for start in range(0, len(args), TILE))
        return [found for tile in tiles for found in run(bubble_graph(index), *before, tile, *after)]

    def anchors(static: tuple[Any, ...], args: list[np.ndarray]) -> list[list[Ranking]]:
        graph, ends = bubble_graph(index), np.cumsum([0, *map(len, args)]).tolist()
        if not ends[-1]:
            return [[] for _ in args]
        queries = question_rows([vector for vectors in args for vector in vectors], graph)
        entities, relations = (
            nearest_rows(index, f"{of}_vectors", queries, static[0]) for of in ("entity", "relation")
        )
        found = rankings(merged_nodes(entities, relations, graph.n_entities))
        return [found[a:b] for a, b in zip(ends, ends[1:])]

    def near(static: tuple[Any, ...], args: list[tuple[np.ndarray, tuple[int, ...]]]) -> list[list[Ranking]]:
        return tiled(near_relations, args=args, after=(*static, threads))

    def trees(static: tuple[Any, ...], args: list[Grown]) -> list[tuple[Tree, ...]]:
        return tiled(grow, static[0], args=args, after=(threads,))

    def around(static: tuple[Any, ...], args: list[tuple[np.ndarray, Any, Any]]) -> list[Ranking]:
        return tiled(neighbours, args=args, after=static)

    def held(static: tuple[Any, ...], args: list[tuple[np.ndarray, Mapping[int, int]]]) -> list[list[TreePassage]]:
        order, k = static
        return tiled(passages, index.vectors("passage_vectors"), order, args=args, after=(k,))

    runs: dict[str, Callable[[tuple[Any, ...], list[Any]], Sequence[Any]]] = {
        "bubble_anchors": anchors,
        "bubble_anchors_near": near,
        "bubble_trees": trees,
        "bubble_neighbours": around,
        "bubble_passages": held,
    }
    return {name: Executor(run, "graph", RANK_GRAPH) for name, run in runs.items()}


class BubbleVerbs:
    """The bubble verbs of one question."""

    index: Index

    async def bubble_anchors(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """For each vector of f32[m, D] the k entities and k relations of highest cosine, as one ranking of nodes."""
        return await Call("bubble_anchors", (k,), vectors)

    async def bubble_anchors_near(
        self, vectors: np.ndarray, nodes: Sequence[int], *, radius: int, limit: int, k: int
    ) -> list[Ranking]:
        """For each vector of f32[m, D] the k relations of highest cosine within `radius` steps of the nodes."""
        return await Call("bubble_anchors_near", (radius, limit, k), (vectors, tuple(nodes)))

    async def bubble_trees(
        self, vector: np.ndarray, groups: Sequence[Sequence[int]], params: BubbleGrowth
    ) -> tuple[Tree, ...]:
        """The candidate trees that join the groups of anchors, at most 16, see `bubble_grow`."""
        return await Call("bubble_trees", (params,), (vector, tuple(tuple(group) for group in groups)))

    async def bubble_neighbours(
        self, vector: np.ndarray, frontier: Sequence[int], held: Sequence[int], k: int
    ) -> Ranking:
        """The k relations nearest to the question that end at an entity of the frontier and are not held."""
        return await Call("bubble_neighbours", (k,), (vector, tuple(frontier), tuple(held)))

    async def bubble_passages(
        self, vector: np.ndarray, tree_of: Mapping[int, int], k: int, *, order: str
    ) -> list[TreePassage]:
        """The k first passages of nodes. tree_of: the first tree of each node; order: one of ORDERS."""
        if order not in ORDERS:
            raise UsageError("unknown order of passages", given=order, expected=" | ".join(ORDERS))
        return await Call("bubble_passages", (order, k), (vector, dict(tree_of)))

    def bubble_names(self, text: str) -> list[str]:
        """The written names of the entities that a text names."""
        return [self.index.entity_names[row] for row in mentioned_names(text, self.index.entity_rows)]

    def bubble_is_relation(self, node: int) -> bool:
        """Whether a node is a relation."""
        return node >= self.index.n_entities

    def bubble_text(self, node: int) -> str:
        """An entity's written name, or "subject - label - object"."""
        if self.bubble_is_relation(node):
            return " - ".join(self.index.relation_text(node - self.index.n_entities))
        return self.index.entity_names[node]

    def bubble_fact(self, node: int) -> tuple[str, str, str, tuple[str, ...]]:
        """(subject, label, object, ids of the passages that state it) of a node that is a relation."""
        row = node - self.index.n_entities
        stated = self.index.relations["passages"][row].as_py()
        return (*self.index.relation_text(row), tuple(self.index.passage_ids[p] for p in stated))

    def bubble_ends(self, node: int) -> tuple[int, int]:
        """Subject and object of a node that is a relation, as nodes."""
        subjects, objects = self.index.relation_ends
        row = node - self.index.n_entities
        return int(subjects[row]), int(objects[row])

    def bubble_rarity(self, node: int) -> float:
        """log(1 + passages / passages of the node): the fewer there are, the more a node says."""
        sizes = self.index.loaded("bubble_sizes", _n_passages)
        return math.log1p(self.index.n_passages / max(int(sizes[node]), 1))
