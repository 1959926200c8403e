"""The steps of HiGraRetriever, for a batch of questions: search over the graph's three tables, and the fused ranking.

similarity  = rank by cosine, or by 1 / (constant + rank) over cosine and BM25
fused       = 1 / (structure_constant + rank by the graph) + 1 / (similarity_constant + rank by similarity); a rank
              that is missing gives no term. Both rankings end at `depth`. By the graph: see `rank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.fuse import rrf
from gpu_rag.graph.nearest import on_host
from gpu_rag.index.index import Index
from gpu_rag.methods.higra.graph import higra_graph
from gpu_rag.methods.higra.rank import subgraph_scores
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.search import Ranking, nearest_rows, rankings, stacked
from gpu_rag.runtime.step import batched
from gpu_rag.settings.ranges import COUNT, DAMPING, NATURAL, TOLERANCE, check_fields
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.mentions import mentioned_names
from gpu_rag.types import TopK

TILE = 64
SIMILARITIES = ("hybrid", "dense")


@dataclass(frozen=True)
class HigraFound:
    """Rows of the three tables, best first. named: entities whose name or alias the text holds.

    Entity scores are scaled so that first in every ranking is 1 (dense: the cosine).
    """

    entities: Ranking
    relations: Ranking
    passages: Ranking
    named: tuple[int, ...]


@batched(GRAPH)
def higra_search(
    index: Index,
    queries: list[tuple[str, np.ndarray]],
    similarity: str,
    n_entities: int,
    depth: int,
    constant: float,
) -> list[HigraFound]:
    """Entities, relations and passages by similarity to each text and its unit vector f32[D].

    similarity: hybrid | dense. depth: how many of each ranking are fused and returned, of relations and passages;
    n_entities: of entities.
    """
    graph, texts = higra_graph(index), [text for text, _ in queries]
    vectors = stacked([vector for _, vector in queries], index.device)

    def search(stage: str, words: Bm25, k: int) -> list[Ranking]:
        n = max(1, index.vectors(stage).shape[0])
        k, width = min(k, n), min(max(k, depth), n)
        found = on_host(nearest_rows(index, stage, vectors, k if similarity == "dense" else width))
        if similarity == "hybrid":
            ids, scores = words.search(texts, width)
            by_words = TopK(torch.from_numpy(ids), torch.from_numpy(scores))
            found = rrf([found, by_words], k, constants=[constant, constant])
        return rankings(found)

    entities = search("higra_entity_vectors", graph.entity_bm25, n_entities)
    relations = search("higra_relation_vectors", graph.relation_bm25, depth)
    passages = search("passage_vectors", index.bm25, depth)
    best = 2 / (constant + 1) if similarity == "hybrid" else 1.0
    scaled = [Ranking(e.rows, tuple(score / best for score in e.scores)) for e in entities]
    named = [tuple(mentioned_names(text, graph.rows_by_name)) for text in texts]
    return [HigraFound(*row) for row in zip(scaled, relations, passages, named)]


@dataclass(frozen=True)
class HigraRank:
    """Parameters of one fused ranking, see the module. graph: False leaves the rank by the graph out (the ablation
    "similarity alone"); radius, damping, tol: see `rank`."""

    radius: int = 1
    damping: float = 0.85
    structure_constant: float = 10.0
    similarity_constant: float = 10.0
    depth: int = 100
    graph: bool = True
    tol: float = 1e-6

    def __post_init__(self) -> None:
        constants = {"structure_constant": NATURAL, "similarity_constant": NATURAL}
        check_fields(self, radius=NATURAL, damping=DAMPING, **constants, depth=COUNT, tol=TOLERANCE)


@dataclass(frozen=True)
class Seeded:
    """One question's input: seed entities, and its relations and passages by similarity, best first. Rows of tables."""

    seeds: tuple[int, ...]
    relations: tuple[int, ...]
    passages: tuple[int, ...]


@dataclass(frozen=True)
class HigraRanking:
    """Relations and passages by fused rank, and how many entities and passages are in the subgraph."""

    relations: Ranking
    passages: Ranking
    n_entities: int
    n_passages: int


@batched(GRAPH, tile=TILE)
def higra_rank(index: Index, queries: list[Seeded], params: HigraRank) -> list[HigraRanking]:
    """Relations and passages of the subgraph around each question's seeds, fused with their ranks by similarity."""
    graph = higra_graph(index)
    n_rows = max(1, len(graph.relation_ends[0]), graph.full_graph.n)
    depth = min(params.depth, n_rows)  # rankings are as wide as depth
    found = [[_given([q.relations for q in queries], depth)], [_given([q.passages for q in queries], depth)]]
    constants, sizes = [params.similarity_constant], [(0, 0)] * len(queries)
    if params.graph:
        scores = subgraph_scores(
            graph,
            [query.seeds for query in queries],
            radius=params.radius,
            damping=params.damping,
            tol=params.tol,
            depth=depth,
            threads=index.threads,
        )
        found = [[scores.relations, *found[0]], [scores.passages, *found[1]]]
        constants, sizes = [params.structure_constant, *constants], scores.sizes()
    relations, passages = (rankings(rrf(both, depth, constants=constants)) for both in found)
    return [HigraRanking(r, p, *size) for r, p, size in zip(relations, passages, sizes)]


def _given(lists: Sequence[Sequence[int]], depth: int) -> TopK:
    """Rankings that a program brought along; only their order counts."""
    ids = torch.full((len(lists), depth), -1, dtype=torch.int32)
    for row, ranked in enumerate(lists):
        kept = list(ranked)[:depth]
        ids[row, : len(kept)] = torch.tensor(kept, dtype=torch.int32)
    return TopK(ids, torch.where(ids >= 0, 0.0, -torch.inf))
