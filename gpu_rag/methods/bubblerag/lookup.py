"""Look-ups in BubbleRAG's graph for a batch of questions: nodes near keywords, neighbours of a frontier, passages.

Nodes that have to be ranked are ranked by what entering them costs (1 + floor((1 - cos) * 2^14), ties to the lower
node), so that the order is the same on every machine and in any batch; the scores returned are the exact cosines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from gpu_rag.graph.common.dots import exact_dots
from gpu_rag.graph.ego import ego_balls
from gpu_rag.graph.ragged import expand, row_of_value
from gpu_rag.methods.bubblerag.cosines import Cosines
from gpu_rag.methods.bubblerag.graph import BubbleGraph
from gpu_rag.methods.bubblerag.grow import node_lists, question_rows
from gpu_rag.program.search import Ranking
from gpu_rag.types import TopK

ORDERS = ("rarity", "count")
PARTS = 1 << 40  # that a weight is counted in
TreeOf = Mapping[int, int]  # the number, from 0, of the first tree that has a node


@dataclass(frozen=True)
class TreePassage:
    """A passage of an evidence graph. tree: the first tree with a node of it, from 0; n_nodes: how many nodes of all
    trees are its; weight: the sum of 1 / (passages of the node) over these, each rounded down to 2^-40; cosine: with
    the question."""

    row: int
    tree: int
    n_nodes: int
    weight: float
    cosine: float


def merged_nodes(entities: TopK, relations: TopK, n_entities: int) -> TopK:
    """The best k entities and the best k relations of each query as one TopK of 2k nodes by (-cosine, node)."""
    nodes = torch.where(relations.ids >= 0, relations.ids + n_entities, -1)
    scores, order = torch.cat([entities.scores, relations.scores], 1).sort(dim=1, descending=True, stable=True)
    return TopK(torch.cat([entities.ids, nodes], 1).gather(1, order), scores)


def near_relations(
    graph: BubbleGraph, asked: Sequence[tuple[np.ndarray, Sequence[int]]], radius: int, limit: int, k: int, threads: int
) -> list[list[Ranking]]:
    """For each question (f32[m, D], nodes) the k best relations for each of its m vectors, among those within `radius`
    steps of its nodes (of a ball with more than `limit` nodes the first ones by (steps, node))."""
    each = [len(vectors) for vectors, _ in asked]
    lists = [list(nodes) for (_, nodes), m in zip(asked, each) for _ in range(m)]
    if not lists:
        return [[] for _ in asked]
    ball = ego_balls(graph.graph, node_lists(lists, graph), radius, limit=limit, threads=threads)
    owner, node = row_of_value(ball), ball.values.long()
    kept = node >= graph.n_entities
    cosines = Cosines(graph, question_rows([vector for vectors, _ in asked for vector in vectors], graph))
    found = _ranked(cosines, owner[kept], node[kept], len(lists), k)
    ends = np.cumsum([0, *each]).tolist()
    return [found[a:b] for a, b in zip(ends, ends[1:])]


def neighbours(
    graph: BubbleGraph, asked: Sequence[tuple[np.ndarray, Sequence[int], Sequence[int]]], k: int
) -> list[Ranking]:
    """For each (question vector, frontier, held): the k best relations that end at an entity of the frontier and are
    not among those held. All are nodes."""
    frontier, held = node_lists([f for _, f, _ in asked], graph), node_lists([h for _, _, h in asked], graph)
    owner, node = row_of_value(frontier), frontier.values
    indptr, keys = graph.graph.csr.indptr, [node[:0]]
    for at, entry in expand(indptr[node], indptr[node + 1]):
        keys.append(owner[at] * graph.n + graph.graph.csr.indices[entry].long())
    known = row_of_value(held) * graph.n + held.values
    fresh = torch.unique(torch.cat(keys))
    fresh = fresh[~torch.isin(fresh, known)]
    cosines = Cosines(graph, question_rows([vector for vector, _, _ in asked], graph))
    return _ranked(cosines, fresh // graph.n, fresh % graph.n, len(asked), k)


def passages(
    graph: BubbleGraph, vectors: torch.Tensor, order: str, asked: Sequence[tuple[np.ndarray, TreeOf]], k: int
) -> list[list[TreePassage]]:
    """The k first passages of each question's nodes, by (tree, then -weight where `order` is "rarity" and -n_nodes
    where it is "count", then -cosine, then row). vectors: those of the passages."""
    n = max(vectors.shape[0], 1)
    nodes = node_lists([list(of) for _, of in asked], graph)
    tree = node_lists([list(of.values()) for _, of in asked], graph).values
    held = graph.passages
    cells, places = [nodes.values[:0]], [nodes.values[:0]]
    for at, entry in expand(held.offsets[nodes.values], held.offsets[nodes.values + 1]):
        cells.append(row_of_value(nodes)[at] * n + held.values[entry].long())
        places.append(at)
    cell, by_cell = torch.cat(cells).sort(stable=True)
    place = torch.cat(places)[by_cell]
    cell, counts = torch.unique_consecutive(cell, return_counts=True)
    of = torch.repeat_interleave(torch.arange(len(cell), device=cell.device), counts, output_size=len(place))
    first = torch.full_like(cell, torch.iinfo(torch.int64).max).scatter_reduce(0, of, tree[place], "amin")
    share = PARTS // held.offsets.diff()[nodes.values[place]]
    weight = torch.zeros_like(cell).index_add_(0, of, share).double() / PARTS  # integers: equal sums are equal
    cosine = exact_dots(question_rows([v for v, _ in asked], graph), cell // n, vectors, cell % n)
    whole, real = torch.stack([cell // n, cell % n, first, counts]), torch.stack([weight, cosine])
    return _first_passages([*whole.cpu().numpy(), *real.cpu().numpy()], order, k, len(asked))


def _first_passages(columns: list[np.ndarray], order: str, k: int, batch: int) -> list[list[TreePassage]]:
    question, row, tree, n_nodes, weight, cosine = columns
    by = np.lexsort((row, -cosine, -(weight if order == "rarity" else n_nodes), tree, question))
    ends = np.searchsorted(question[by], np.arange(batch + 1))
    found = []
    for a, b in zip(ends, ends[1:]):
        kept = by[a : min(b, a + k)]
        rows = zip(*(column[kept].tolist() for column in (row, tree, n_nodes, weight, cosine)))
        found.append([TreePassage(*values) for values in rows])
    return found


def _ranked(cosines: Cosines, owner: torch.Tensor, node: torch.Tensor, batch: int, k: int) -> list[Ranking]:
    """The k nodes of each owner that cost least, ties to the lower node. owner ascends, node within it."""
    order = cosines.costs(owner, node).sort(stable=True).indices
    order = order[owner[order].sort(stable=True).indices]
    begin = torch.searchsorted(owner, torch.arange(batch + 1, device=owner.device))
    place = torch.arange(len(order), device=order.device) - begin[owner[order]]
    order = order[place < k]
    owner, node = owner[order], node[order]
    scores = cosines.of(owner, node).tolist()
    ends = torch.searchsorted(owner, torch.arange(batch + 1, device=owner.device))
    numbers = torch.cat([ends, node]).tolist()
    cuts, rows = numbers[: batch + 1], numbers[batch + 1 :]
    return [Ranking(tuple(rows[a:b]), tuple(scores[a:b])) for a, b in pairwise(cuts)]
