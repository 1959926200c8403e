"""The steps of HiGraRetriever, for a batch of questions: search over the graph's three tables, and the fused ranking.

similarity  = rank by cosine, or by 1 / (constant + rank) over cosine and BM25
For a question with seed entities S, over the entity layer and the passage layer of `HigraGraph`:
  G_S       = the entities within `radius` hops of S, and the relations with both ends among them
  p         = PageRank on G_S, restart uniform on S: p = damping P^T p + (1 - damping) pi, see graph.local_pagerank
  relation  = the mean of p at its two ends
  G_S+      = G_S with every passage that is linked to one of its entities
  passage   = PageRank on G_S+ at the passage, same restart
fused       = 1 / (structure_constant + rank by the graph) + 1 / (similarity_constant + rank by similarity); a rank
              that is missing gives no term. Both rankings have at most `depth` places.
All subgraphs of a batch are blocks of one block-diagonal graph. This is the paper's retriever (`walk=subgraph`).

`walk=whole` has more seeds and walks on the whole graph. For a question with text t and unit vector q, over the nodes
[entities | passages] of this graph with title edges, see `graph.walk_graph` and program.walk:
  m(e)      = 1 / (passages of e) for the seed entities, scaled to sum to 1
  f(e)      = the weights of the ends of the n_facts nearest relations
  pi        = SEED_MASS * (SEED_SHARE m + (1 - SEED_SHARE) f) (the other alone if one is empty), the rest the restart on
              passages by TEMPERATURE * cos(q, p), titles that t names, and with `hybrid` by BM25
  p         = damping P^T p + (1 - damping) pi
  passage   = minmax(log p) + FUSION * minmax(cos(q, p))
  relation  = the mean of p at its two ends, fused with its rank by similarity
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from gpu_rag.graph.common.arrays import to_host
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.ego import ego_balls, induced_subgraphs
from gpu_rag.graph.fuse import rrf
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.memory import halved
from gpu_rag.graph.nearest import topk_rows
from gpu_rag.graph.nearest.best import best_of_two
from gpu_rag.graph.pagerank import personalized_pagerank
from gpu_rag.graph.ragged import expand, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import words_of
from gpu_rag.methods.higra.graph import HigraGraph, higra_graph, walk_graph
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.search import Ranking, best_by_words, fused, nearest_rows, rankings, stacked
from gpu_rag.program.seeds import spread, title_names, title_seeds
from gpu_rag.program.walk import (
    TITLE_SHARE,
    blended,
    ends_of,
    fact_weights,
    listed,
    mixed,
    near_facts,
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
from gpu_rag.settings.ranges import COUNT, DAMPING, NATURAL
from gpu_rag.types import Blocks, Ragged, TopK

SEED_MASS, SEED_SHARE, TEMPERATURE, FUSION = 0.5, 0.75, 30.0, 0.1  # parameters of the walk on the whole graph
_SCORES = 1 << 24  # scores of relations at a time


@dataclass(frozen=True)
class Params(Declared):
    """Seeds, the subgraph around them, and the amount of it that is read."""

    seed_threshold: Annotated[
        float, "minimum score of a seed, without a model; 1 means first in both the vector and the word ranking"
    ] = 1.0
    radius: Annotated[int, NATURAL, "hops around the seeds that the subgraph covers"] = 1
    damping: Annotated[float, DAMPING, "damping factor of PageRank"] = 0.85
    n_relations: Annotated[int, NATURAL, "number of relations read; 0: passages only"] = 10
    n_passages: Annotated[int, NATURAL, "number of passages read, best by fused rank"] = 10
    walk: Annotated[
        Literal["whole", "subgraph"],
        "graph that PageRank runs on: the whole graph, or the subgraph around the seeds (the paper's choice)",
    ] = "whole"
    n_facts: Annotated[int, NATURAL, "whole graph: number of nearest relations whose ends become seeds too"] = 3
    similarity: Annotated[
        Literal["hybrid", "dense"], "similarity search: hybrid (BM25 and cosine) or dense (cosine)"
    ] = "hybrid"
    graph_context: Annotated[bool, "whether the graph is used; false: similarity alone"] = True
    max_seeds: Annotated[int, COUNT, "maximum number of seeds without a model, which has no limit"] = 5
    structure_constant: Annotated[float, NATURAL, "fusion constant of the rank by PageRank"] = 10.0
    similarity_constant: Annotated[float, NATURAL, "fusion constant of the rank by similarity"] = 10.0

    n_entities: ClassVar[int] = 20  # candidates for seeds
    n_nearest: ClassVar[int] = 10  # whole graph: of these, the candidates that a model sees
    n_bridges: ClassVar[int] = 20  # whole graph: passages, each of which offers a model its rarest entity
    named_bonus: ClassVar[float] = 1.0  # added to the score of an entity that the question names
    fallback_seeds: ClassVar[int] = 3  # first entities by rank, used if none is chosen
    n_similar: ClassVar[int] = 5  # best passages by similarity, which are always read
    depth: ClassVar[int] = 100  # places of each fused ranking
    constant: ClassVar[float] = 60.0  # fusion constant for BM25 and cosine
    tol: ClassVar[float] = 1e-6  # L1 error bound of PageRank

    @property
    def constants(self) -> tuple[float, float]:
        """Fusion constants of the ranks by graph and by similarity."""
        return self.structure_constant, self.similarity_constant

    def walked(self, depth: int) -> tuple[float, int, str, int, tuple[float, float]]:
        """The parameters of `higra_walk` for `depth` passages."""
        return self.damping, self.n_facts, self.similarity, depth, self.constants


@dataclass(frozen=True)
class HigraFound:
    """Rows of the three tables, best first. named: entities whose name or alias is in the text.

    Entity scores are scaled so that the first place in every ranking gives 1 (dense: the cosine).
    """

    entities: Ranking
    relations: Ranking
    passages: Ranking
    named: tuple[int, ...]


@batched(GRAPH)
def higra_search(index: Index, queries: list[tuple[str, np.ndarray]], similarity: str) -> list[HigraFound]:
    """Entities, relations and passages by similarity (hybrid | dense) to each text and its unit vector f32[D]."""
    graph, texts = higra_graph(index), [text for text, _ in queries]
    vectors = stacked([vector for _, vector in queries], index.device)

    def search(stage: str, k: int, *words: str) -> list[Ranking]:
        n = max(1, index.vectors(stage).shape[0])
        k, width = min(k, n), min(max(k, Params.depth), n)
        top = nearest_rows(index, stage, vectors, k if similarity == "dense" else width)
        if similarity == "hybrid":
            top = fused(top, best_by_words(index, texts, width, *words), k, Params.constant)
        return rankings(top)

    entities = search("higra_entity_vectors", Params.n_entities, "higra_search", "entities")
    relations = search("higra_relation_vectors", Params.depth, "higra_search", "relations")
    passages = search("passage_vectors", Params.depth)
    best = 2 / (Params.constant + 1) if similarity == "hybrid" else 1.0
    scaled = [Ranking(e.rows, tuple(score / best for score in e.scores)) for e in entities]
    named = [graph.named(text) for text in texts]
    return [HigraFound(*row) for row in zip(scaled, relations, passages, named)]


@dataclass(frozen=True)
class Seeded:
    """Input of one question: seed entities, and its relations and passages by similarity, best first. All are table
    rows."""

    seeds: tuple[int, ...]
    relations: tuple[int, ...]
    passages: tuple[int, ...]


@dataclass(frozen=True)
class HigraRanking:
    """Relations and passages by fused rank, and the number of entities and passages in the subgraph."""

    relations: Ranking
    passages: Ranking
    n_entities: int
    n_passages: int


@batched(GRAPH, tile=walk_tile)
@trusted()
def higra_rank(
    index: Index, queries: list[Seeded], radius: int, damping: float, constants: tuple[float, float]
) -> list[HigraRanking]:
    """Relations and passages of the subgraph around each question's seeds, fused with their ranks by similarity.

    Without seeds the ranking is by similarity alone.
    """
    graph = higra_graph(index)
    depth = min(Params.depth, max(1, len(graph.ends[0]), graph.full_graph.n))  # rankings are as wide as depth
    scores = subgraph_scores(graph, [q.seeds for q in queries], radius, damping, depth, index.threads)
    relations = rrf([scores.relations, _given([q.relations for q in queries], depth)], depth, constants=constants)
    passages = rrf([scores.passages, _given([q.passages for q in queries], depth)], depth, constants=constants)
    sizes = [blocks.offsets.diff() for blocks, _ in (scores.entities, scores.nodes)]
    n_entities, n_nodes = torch.stack(sizes).tolist()  # one wait for the device
    n_passages = (n - inner for n, inner in zip(n_nodes, n_entities))
    return [HigraRanking(*row) for row in zip(rankings(relations), rankings(passages), n_entities, n_passages)]


@dataclass(frozen=True)
class Walked:
    """Input of one question for the whole graph: its text and unit vector, its seed entities, and its relations by
    similarity, best first."""

    text: str
    vector: np.ndarray
    seeds: tuple[int, ...]
    relations: tuple[int, ...]


@batched(GRAPH, tile=walk_tile)
@halved
def higra_walk(
    index: Index,
    queries: list[Walked],
    damping: float,
    n_facts: int,
    similarity: str,
    k: int,
    constants: tuple[float, float],
) -> list[HigraRanking]:
    """The k best passages by PageRank on the whole graph, and relations, see the module."""
    graph = higra_graph(index)
    n, ends, depth = graph.n_entities, graph.ends, min(Params.depth, max(1, len(graph.ends[0])))
    words = word_weights(index, [q.text for q in queries], 20 if similarity == "hybrid" else 0)
    named = listed([q.seeds for q in queries], graph.n_passages)
    titles = spread(title_seeds(title_names(index), [words_of(q.text) for q in queries]))
    vectors, nodes, seeded, *named_titles = uploaded(index, [q.vector for q in queries], named, titles)
    stage, seeds = "higra_relation_vectors", seeds_of(nodes, seeded)
    subjects, objects = ends_of(index, stage, ends)
    facts, _ = near_facts(index, stage, vectors, n_facts, True)
    cosine = passage_cosines(index, vectors)
    passages = blended(restart(TEMPERATURE * cosine, *words), named_titles[0], named_titles[1], TITLE_SHARE)
    prior = restarts_of(mixed(fact_weights((subjects, objects), facts), seeds, SEED_SHARE), passages, SEED_MASS)
    ranks = personalized_pagerank(
        walk_graph(index), prior=prior, damping=damping, tol=Params.tol, threads=index.threads
    )
    top = ranked(ranks[:, n:], cosine, FUSION, k)
    by_graph = best_relations(ranks, subjects, objects, depth)
    ids, scores, *pair = to_host(top.ids, top.scores, by_graph.ids, by_graph.scores)
    relations = rrf([TopK(*pair), _given([q.relations for q in queries], depth)], depth, constants=constants)
    pairs = zip(rankings(relations), passages_of(ids, scores))
    return [HigraRanking(*row, n, index.n_passages) for row in pairs]


def best_relations(ranks: torch.Tensor, subjects: torch.Tensor, objects: torch.Tensor, k: int) -> TopK:
    """The k relations with the highest mean of their ends' ranks, by (-mean, row), some at a time: it bounds memory.

    ranks: f32[B, N]; subjects, objects: i64[R]."""
    width = max(1, _SCORES // max(1, len(ranks)))
    ends = zip(range(0, max(1, len(subjects)), width), subjects.split(width), objects.split(width))
    parts = (topk_rows((ranks[:, s] + ranks[:, o]) / 2, k, lo=lo) for lo, s, o in ends)
    return reduce(partial(best_of_two, k=k), parts)


def _given(lists: Sequence[Sequence[int]], depth: int) -> TopK:
    """Given rankings as TopK; only their order counts, so all scores are 0."""
    ids = torch.full((len(lists), depth), -1, dtype=torch.int32)
    for row, given in enumerate(lists):
        kept = list(given)[:depth]
        ids[row, : len(kept)] = torch.tensor(kept, dtype=torch.int32)
    return TopK(ids, torch.where(ids >= 0, 0.0, -torch.inf))


@dataclass(frozen=True)
class SubgraphScores:
    """The subgraphs of a batch: scores of the entities of G_S and of all nodes of G_S+, and rankings by these scores.
    entities, nodes: (blocks, f32 values aligned with their global_ids)."""

    entities: tuple[Blocks, torch.Tensor]
    nodes: tuple[Blocks, torch.Tensor]
    relations: TopK
    passages: TopK


def subgraph_scores(
    graph: HigraGraph, seeds: Sequence[Sequence[int]], radius: int, damping: float, depth: int, threads: int = 1
) -> SubgraphScores:
    """PageRank on G_S and G_S+ for each seed set (rows of the entity table), and the `depth` best relations and
    passages."""
    starts = ragged_of_lists([sorted(set(rows)) for rows in seeds], graph.entity_graph.indptr.device)
    entity, full = graph.checked
    ball = ego_balls(entity, starts, radius, threads=threads)
    inner = induced_subgraphs(entity, ball)
    p = blocks_pagerank(inner, starts, damping=damping, tol=Params.tol).values
    passages = (graph.n_entities, full.csr.n)
    outer = induced_subgraphs(full, ego_balls(full, ball, 1, include=[passages], threads=threads))
    q = blocks_pagerank(outer, starts, damping=damping, tol=Params.tol).values
    block, node = row_of_value(Ragged(outer.global_ids, outer.offsets)), outer.global_ids.long() - graph.n_entities
    linked = (node >= 0).nonzero()[:, 0]
    whole = to_host(block[linked], node[linked], q[linked], *_relations_inside(graph, inner, p))
    by_passage, by_relation = (_ranked(whole[a : a + 3], starts.batch, depth) for a in (0, 3))
    return SubgraphScores((inner, p), (outer, q), by_relation, by_passage)


def _relations_inside(
    graph: HigraGraph, inner: Blocks, p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(block, relation row, score) of every relation with both ends in one block."""
    first, objects = graph.relations_by_subject
    n = max(graph.n_entities, 1)
    node = inner.global_ids.long()
    base = row_of_value(Ragged(inner.global_ids, inner.offsets)) * n
    keys = base + node  # ascending: by block, then by node
    pieces: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = [(node[:0], node[:0], p[:0])]
    for owner, row in expand(first[node], first[node + 1]):
        wanted = base[owner] + objects[row]
        position = torch.searchsorted(keys, wanted).clamp(max=keys.shape[0] - 1)
        hits = (keys[position] == wanted).nonzero()[:, 0]
        owner, position = owner[hits], position[hits]
        pieces.append((base[owner] // n, row[hits], ((p[owner].double() + p[position].double()) / 2).float()))
    block, rows, scores = (torch.cat(parts) for parts in zip(*pieces))
    return block, rows, scores


def _ranked(columns: Sequence[torch.Tensor], batch: int, depth: int) -> TopK:
    """The best `depth` of each block, by (-score, id), padded. columns: block, id and score."""
    block, key, value = (column.numpy() for column in columns)
    order = np.lexsort((key, -value, block))
    block, key, value = block[order], key[order], value[order]
    place = np.arange(len(block)) - np.searchsorted(block, block)
    kept = place < depth
    out_ids = np.full((batch, depth), -1, np.int32)
    out_scores = np.full((batch, depth), -np.inf, np.float32)
    out_ids[block[kept], place[kept]], out_scores[block[kept], place[kept]] = key[kept], value[kept]
    return TopK(torch.from_numpy(out_ids), torch.from_numpy(out_scores))
