"""BubbleRAG's steps over its graph: find anchors of keywords, trees that join them, neighbours, and passages.

For a question with unit vector q and groups of anchors, over the nodes [entities | relations] of `graph`:
  G'        = the nodes within `hops` steps of an anchor, at most `max_local`, see `graph.bubble.localise`
  w(v)      = 1 + floor((1 - cos(q, v)) * 2^14), from one table of cosines per batch
  T_1, ...  = the first `budget` candidate trees of `graph.bubble.bubble_expansion` in G' with w
  Cost_sem  = the mean of 1 - cos(q, v) over the entities of T (if T is a single relation, over that relation);
              BubbleRAG calls it semantic dissonance
The local graphs of a batch are the blocks of one block-diagonal graph. Nodes are ranked by w, ties to the lower node.
So their order is the same on every machine and in any batch. Their scores are the exact cosines.

For a question with text t, a random walk over [entities | relations | passages] starts at the nodes S of its evidence
graphs and the anchors A of its groups, see `graph.walk_graph` and `program.walk`:
  u(v, X)   = 1 / (passages of v) for v in X, scaled to sum to 1
  g(v)      = (1 - ANCHOR_SHARE) u(v, S) + ANCHOR_SHARE u(v, A); anchors outside all trees count too
  e(v)      = (1 - NAME_SHARE) g(v) + NAME_SHARE m(v), where m weights the entities that t names, see `program.seeds`
  pi        = SEED_MASS * e on entities and relations; the rest of the mass is on passages, by TEMPERATURE * cos(q, p),
              BM25, and the titles that t names
  p         = (1 - WALK_DAMPING) pi + WALK_DAMPING P^T p
  score(p)  = minmax(log p(p)) + WALK_FUSION * minmax(cos(q, p))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from gpu_rag.graph.bubble import Bubbles, bubble_expansion, local_graphs
from gpu_rag.graph.common.arrays import to_device, to_host
from gpu_rag.graph.common.dots import exact_dots
from gpu_rag.graph.common.segments import are_first
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.ego import ego_balls
from gpu_rag.graph.memory import halved
from gpu_rag.graph.pagerank import personalized_pagerank
from gpu_rag.graph.ragged import expand, flat, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import words_of
from gpu_rag.methods.bubblerag.graph import BubbleGraph, Cosines, bubble_graph, n_passages_of, starts_of, walk_graph
from gpu_rag.program.kinds import GRAPH, WALK
from gpu_rag.program.search import Ranking, nearest_of, rankings, stacked
from gpu_rag.program.seeds import entity_names, entity_seeds, spread, title_names, title_seeds
from gpu_rag.program.walk import (
    TILE,
    TITLE_SHARE,
    blended,
    listed,
    mixed,
    passage_cosines,
    passages_of,
    ranked,
    restart,
    restarts_of,
    seeds_of,
    uploaded,
    walk_tile,
    word_weights,
)
from gpu_rag.runtime.step import batched
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COUNT, NATURAL, Range
from gpu_rag.types import Ragged, TopK

MAX_ALPHA = 100  # largest value for which exp stays finite
PARTS = 1 << 40  # weights are rounded down to multiples of 1 / PARTS
FAR = 1 << 16  # above every cost of a node
SEED_MASS, TEMPERATURE, WALK_FUSION = 0.5, 30.0, 0.05  # parameters of the random walk
ANCHOR_SHARE, NAME_SHARE = 2 / 3, 0.4
WALK_DAMPING = 0.9  # higher than in other methods, because an entity is two steps from the next
TOL = 1e-6  # L1 error bound of PageRank


@dataclass(frozen=True)
class Params(Declared):
    """Keywords, trees, and the passages of trees."""

    specialise: Annotated[
        bool,
        "whether vague keywords are bound to others; false: as listed, or without a model names and content words",
    ] = True
    relax: Annotated[
        bool,
        "whether keywords are reworded after passages are read; false: as they are, and without a model open "
        "sub-questions are searched everywhere",
    ] = True
    budget: Annotated[int, COUNT, "number of candidate trees"] = 10
    cover_first: Annotated[
        bool, "whether trees that miss fewer groups come first; false: ordered by distance alone"
    ] = True
    alpha: Annotated[float, Range(0, MAX_ALPHA), "penalty of a missing group; 0 acts as OR, 5 as AND"] = 1.0
    rank: Annotated[
        Literal["auto", "score", "first"],
        "trees kept: those of the highest score, or those found first; auto: score if a model weighs the groups",
    ] = "auto"
    n_trees: Annotated[int, COUNT, "number of trees kept"] = 3
    depth: Annotated[int, NATURAL, "maximum number of hops by which trees are grown; 0: none"] = 6
    passages: Annotated[
        Literal["walk", "trees"], "order of passages: by a random walk from the trees, or by tree (the paper's choice)"
    ] = "walk"
    n_passages: Annotated[int, COUNT, "number of passages that are retrieved, and read by a capable model"] = 15

    n_before: ClassVar[int] = 5  # passages retrieved first; with them a model checks and rewords keywords
    n_anchors: ClassVar[int] = 10  # candidates per keyword
    near: ClassVar[int] = 4  # an open sub-question is searched within this many steps of the other anchors
    hops: ClassVar[int] = 6  # radius of the local graph around the anchors
    max_local: ClassVar[int] = 20_000  # nodes in a local graph
    intra_penalty: ClassVar[float] = 0.9  # factor for a tree that joins two anchors of one group
    n_neighbours: ClassVar[int] = 40  # relations shown per hop, nearest to the question
    max_picks: ClassVar[int] = 5  # relations taken per hop
    pick_threshold: ClassVar[float] = 0.45  # if similarity decides: least cosine of a relation that is taken


@dataclass(frozen=True)
class Tree:
    """A candidate tree.

    nodes: ascending; groups: bit g is set if the tree has an anchor of group g; cost: Cost_sem; distance: distance of
    the event that found it; kind: MEETING, INSIDE (joins anchors of one group) or ALONE (one anchor), see
    `graph.bubble`.
    """

    nodes: tuple[int, ...]
    groups: int
    cost: float
    distance: int
    kind: int


Nodes = tuple[int, ...]
Around = tuple[np.ndarray, Nodes]  # unit vectors f32[m, D] of keywords, and nodes around which to search relations
Growing = tuple[np.ndarray, tuple[Nodes, ...]]  # a question's unit vector, and the anchors of each of its groups
Frontier = tuple[np.ndarray, Nodes, Nodes]  # unit vector, entities of the frontier, and relations that the question has
FromTrees = tuple[str, np.ndarray, Nodes, Nodes]  # text, unit vector, nodes of the evidence graphs, and anchors
OfTrees = tuple[np.ndarray, Mapping[int, int]]  # a question's unit vector, and {node: number of its first tree}


class TreePassage(NamedTuple):
    """A passage of an evidence graph.

    tree: number (from 0) of the first tree with a node of this passage; n_nodes: number of such nodes in all trees;
    weight: the sum of 1 / (number of passages of the node) over these nodes, each term rounded down to a multiple of
    2^-40; cosine: cosine of the passage and the question.
    """

    row: int
    tree: int
    n_nodes: int
    weight: float
    cosine: float


@batched(GRAPH)
def bubble_anchors(index: Index, queries: list[np.ndarray], k: int) -> list[list[Ranking]]:
    """For each vector of f32[m, D], the k entities and k relations of highest cosine, as one ranking of nodes."""
    cuts = np.cumsum([0, *map(len, queries)]).tolist()
    if not cuts[-1]:
        return [[] for _ in queries]
    rows = stacked([vector for vectors in queries for vector in vectors], index.device)
    entities, relations = nearest_of(index, ["entity_vectors", "relation_vectors"], rows, k)
    anchors = rankings(_merged(entities, relations, index.n_entities))
    return [anchors[a:b] for a, b in pairwise(cuts)]


@batched(GRAPH, tile=walk_tile)
@trusted()
def bubble_anchors_near(index: Index, queries: list[Around], radius: int, limit: int, k: int) -> list[list[Ranking]]:
    """For each vector, the k relations of highest cosine within `radius` steps of the query's nodes. If more than
    `limit` nodes are so near, only the first ones by (steps, node) are kept."""
    graph, sizes = bubble_graph(index), [len(vectors) for vectors, _ in queries]
    lists = [nodes for (_, nodes), m in zip(queries, sizes) for _ in range(m)]
    if not lists:
        return [[] for _ in queries]
    ball = ego_balls(graph.graph, ragged_of_lists(lists, index.device), radius, limit=limit, threads=index.threads)
    node = ball.values.long()
    cosines = Cosines(graph, stacked([vector for vectors, _ in queries for vector in vectors], index.device))
    anchors = _ranked(cosines, row_of_value(ball), node, node < graph.n_entities, len(lists), k)
    return [anchors[a:b] for a, b in pairwise(np.cumsum([0, *sizes]).tolist())]


@batched(WALK, tile=walk_tile)  # after the anchors of all questions
@trusted()
def bubble_trees(index: Index, queries: list[Growing], params: Params) -> list[tuple[Tree, ...]]:
    """The candidate trees that join a question's groups of anchors, in the order of `bubble_expansion`. A question
    without anchors has none; it may have at most MAX_GROUPS groups."""
    graph = bubble_graph(index)
    cosines = Cosines(graph, stacked([vector for vector, _ in queries], index.device))
    anchors = ragged_of_lists([[v for group in groups for v in group] for _, groups in queries], index.device)
    numbers = [[g for g, group in enumerate(groups) for _ in group] for _, groups in queries]
    kinds = ragged_of_lists(numbers, index.device)
    blocks = local_graphs(
        graph.graph, anchors, cosines.costs, hops=params.hops, limit=params.max_local, threads=index.threads
    )
    costs = cosines.costs(row_of_value(Ragged(blocks.global_ids, blocks.offsets)), blocks.global_ids.long())
    bubbles = bubble_expansion(
        blocks, costs, anchors, kinds, limit=params.budget, cover_first=params.cover_first, threads=index.threads,
        n_groups=max((len(groups) for _, groups in queries), default=0),
    )  # fmt: skip
    return _described(graph, bubbles, cosines)


@batched(GRAPH, tile=4 * TILE)  # a question asks for each of its trees
@trusted()
def bubble_neighbours(index: Index, queries: list[Frontier], k: int) -> list[Ranking]:
    """For each question, the k nearest relations that touch its frontier and that it does not have yet. One wait."""
    graph = bubble_graph(index)
    n, lists = graph.n, [entities for _, entities, _ in queries]
    owners, first, last = _spans(starts_of(index)[0], lists)
    has = [b * n + relation for b, (_, _, relations) in enumerate(queries) for relation in relations]
    present = np.sort(np.array([*has, len(queries) * n], np.int64))  # above all keys at the end
    whole = int((last - first).sum())
    vectors, owner, first_of, last_of, known = to_device(
        index.device, np.stack([vector for vector, _, _ in queries]).astype(np.float32), owners, first, last, present
    )
    entries = expand(first_of, last_of, whole)
    pieces = [owner[place] * n + graph.graph.csr.indices[entry].long() for place, entry in entries]
    keys = torch.cat([owner[:0], *pieces]).sort().values
    out = known[torch.searchsorted(known, keys)] == keys
    out[1:] |= keys[1:] == keys[:-1]
    return _ranked(Cosines(graph, vectors), keys // n, keys % n, out, len(queries), k)


@batched(WALK, tile=walk_tile)  # after the growth of all trees
def bubble_passages(index: Index, queries: list[OfTrees], order: str, k: int) -> list[list[TreePassage]]:
    """The first k passages of each query's nodes. They are ordered by (tree, -weight, -cosine, row) if `order` is
    "walk"; if it is "trees", -n_nodes replaces -weight. A node in half of the corpus says little about one passage, so
    rare nodes weigh more. One wait."""
    graph, vectors = bubble_graph(index), index.vectors("passage_vectors")
    n, trees = max(vectors.shape[0], 1), flat(tree_of.values() for _, tree_of in queries)
    owners, first, last = _spans(starts_of(index)[1], [list(tree_of) for _, tree_of in queries])
    whole, parts = int((last - first).sum()), PARTS // np.maximum(last - first, 1)
    rows, owner, first_of, last_of, tree, share = to_device(
        index.device, np.stack([vector for vector, _ in queries]).astype(np.float32), owners, first, last, trees, parts
    )
    cells, places = [owner[:0]], [owner[:0]]
    for position, entry in expand(first_of, last_of, whole):
        cells.append(owner[position] * n + graph.passages.values[entry].long())
        places.append(position)
    cell, by_cell = torch.cat(cells).sort(stable=True)
    place = torch.cat(places)[by_cell]
    cell_of, sums = are_first(cell).cumsum(0) - 1, torch.zeros(2, whole, dtype=torch.int64, device=cell.device)
    trees_of = torch.full_like(cell, torch.iinfo(torch.int64).max).scatter_reduce(0, cell_of, tree[place], "amin")
    # exact integer sums: ties stay ties
    sums.index_add_(1, cell_of, torch.stack([torch.ones_like(place), share[place]]))
    cell = torch.zeros_like(cell).scatter_(0, cell_of, cell)
    cosine = exact_dots(rows, cell // n, vectors, cell % n)
    columns = [part.numpy() for part in to_host(cell, trees_of, *sums, cosine)]
    cell_at, tree_at, count, weight, value = (column[columns[2] > 0] for column in columns)  # without the unused cells
    return _first_passages([cell_at // n, cell_at % n, tree_at, count, weight / PARTS, value], order, k, len(queries))


def _spans(starts: np.ndarray, lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The list of each node, and where its entries begin and end: i64[T] each."""
    nodes = flat(lists)
    owners = np.repeat(np.arange(len(lists)), [*map(len, lists)])
    return owners, starts[nodes], starts[nodes + 1]


@batched(WALK, tile=walk_tile)
@halved
def bubble_walk(index: Index, queries: list[FromTrees], k: int) -> list[Ranking]:
    """The k best passages of each query by the random walk from its nodes, see the docstring of the module."""
    texts = [text for text, *_ in queries]
    text_words, sizes = [words_of(text) for text in texts], n_passages_of(index)
    names = spread(entity_seeds(entity_names(index), text_words, index.entity_n_passages))
    titles = spread(title_seeds(title_names(index), text_words))
    trees = listed([sorted(nodes) for _, _, nodes, _ in queries], sizes)
    anchors = listed([sorted(nodes) for *_, nodes in queries], sizes)
    words, given = word_weights(index, texts), [vector for _, vector, *_ in queries]
    vectors, *lists = uploaded(index, given, titles, trees, anchors, names)
    cosine = passage_cosines(index, vectors)
    passages = restart(TEMPERATURE * cosine, *words)
    passages = blended(passages, lists[0], lists[1], TITLE_SHARE)
    groups = mixed(seeds_of(lists[2], lists[3]), seeds_of(lists[4], lists[5]), ANCHOR_SHARE)
    weights = mixed(groups, seeds_of(lists[6], lists[7]), NAME_SHARE)
    prior, graph = restarts_of(weights, passages, SEED_MASS), walk_graph(index)
    n = graph.n - index.n_passages
    ranks = personalized_pagerank(
        graph, prior=prior, damping=WALK_DAMPING, tol=TOL, threads=index.threads, ids=(n, graph.n)
    )
    top = ranked(ranks, cosine, WALK_FUSION, k)
    return passages_of(*to_host(top.ids, top.scores))


def _merged(entities: TopK, relations: TopK, n_entities: int) -> TopK:
    """The best k entities and the best k relations of each query as one TopK of 2k nodes, by (-cosine, node)."""
    nodes = torch.where(relations.ids >= 0, relations.ids + n_entities, -1)
    scores, order = torch.cat([entities.scores, relations.scores], 1).sort(dim=1, descending=True, stable=True)
    return TopK(torch.cat([entities.ids, nodes], 1).gather(1, order), scores)


def _described(graph: BubbleGraph, grown: Bubbles, cosines: Cosines) -> list[tuple[Tree, ...]]:
    """The trees of each question. Sums of cosines are exact (see `graph.common.dots`), so the order of terms does
    not matter."""
    n_trees, tree_of = grown.kind.shape[0], row_of_value(grown.nodes)
    question = row_of_value(Ragged(grown.distance, grown.offsets))[tree_of]
    cosine = cosines.cosines(question, grown.nodes.values.long())
    parts = grown.nodes.values, grown.nodes.offsets, grown.offsets, grown.groups, grown.distance, grown.kind, tree_of
    columns = torch.cat([*(part.long() for part in parts), cosine.view(torch.int64)]).cpu()  # the host waits only once
    node, begins, places, groups, distance, kind, tree, cosine = columns.split([*map(len, parts), len(cosine)])
    paid, tree = 1 - cosine.view(torch.float64).numpy(), tree.numpy()
    counted = (node < graph.n_entities).numpy()
    counted |= np.bincount(tree[counted], minlength=n_trees)[tree] == 0
    n_counted = np.bincount(tree[counted], minlength=n_trees)
    cost = np.bincount(tree[counted], paid[counted], minlength=n_trees) / np.maximum(n_counted, 1)
    starts, values = begins.tolist(), node.tolist()
    rows = zip(starts, starts[1:], groups.tolist(), cost.tolist(), distance.tolist(), kind.tolist())
    trees = [Tree(tuple(values[a:b]), *row) for a, b, *row in rows]
    ends = places.tolist()
    return [tuple(trees[a:b]) for a, b in zip(ends, ends[1:])]


def _first_passages(columns: list[np.ndarray], order: str, k: int, batch: int) -> list[list[TreePassage]]:
    question, row, tree, n_nodes, weight, cosine = columns
    sorting = np.lexsort((row, -cosine, -(weight if order == "walk" else n_nodes), tree, question))
    ends = np.searchsorted(question[sorting], np.arange(batch + 1))
    lists = []
    for a, b in zip(ends, ends[1:]):
        kept = sorting[a : min(b, a + k)]
        rows = zip(*(column[kept].tolist() for column in (row, tree, n_nodes, weight, cosine)))
        lists.append([TreePassage(*values) for values in rows])
    return lists


def _ranked(
    cosines: Cosines, owner: torch.Tensor, node: torch.Tensor, out: torch.Tensor, batch: int, k: int
) -> list[Ranking]:
    """The k nodes of lowest cost for each owner, ties to the lower node, without those marked `out`. owner ascends, and
    node ascends within it. One wait."""
    if not len(node):
        return [Ranking((), ())] * batch
    key = owner * FAR + torch.where(out, FAR - 1, cosines.costs(owner, node))
    order, starts = key.argsort(stable=True), torch.searchsorted(owner, torch.arange(batch + 1, device=owner.device))
    place = starts[:-1, None] + torch.arange(min(k, len(node)), device=owner.device)
    first = order[place.clamp(max=len(node) - 1)]
    real = (place < starts[1:, None]) & ~out[first]
    scores = cosines.cosines(owner[first].flatten(), node[first].flatten()).view(first.shape)
    rows, values, counts = (part.tolist() for part in to_host(node[first], scores, real.sum(1)))
    return [Ranking(tuple(r[:c]), tuple(s[:c])) for r, s, c in zip(rows, values, counts)]
