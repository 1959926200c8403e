"""The step behind `ppr`: seeding, personalized PageRank and the final ranking, for a batch of questions.

For a question with text t and unit vector q, over the nodes [entities | passages] of the index graph:
  facts     = the n_facts relations of highest cosine to q
  f(e)      = the mean cosine (not below 0) of those facts that have e as an end, scaled to sum to 1
  m(e)      = weights of the entities that t names, rare ones weighing more, see program.seeds; scaled to sum to 1
  w         = (1 - mention_share) f + mention_share m; if one of the two is empty, the other alone
  r(p)      = the restart on passages by cosine, BM25 and, with title_weight, titles that t names, with
              x = prior_temperature * cos(q, p), see program.walk
  pi        = entity_mass * w on entities, (1 - entity_mass) * r on passages; r alone without seed entities
  p         = (1 - damping) pi + damping P^T p, see graph.pagerank, on the graph of the index, where title_weight is
              added between a passage and the entity that its title names, see index.titles
  score(p)  = minmax(log max(p(p), 1e-12)) + fusion * minmax(cos(q, p)), both over all passages of the question
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from gpu_rag.graph.common.arrays import to_host
from gpu_rag.graph.csr import weights_of
from gpu_rag.graph.memory import halved
from gpu_rag.graph.pagerank import PageRankGraph, personalized_pagerank, prepare
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import words_of
from gpu_rag.index.titles import TITLE_WEIGHT
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.search import Ranking
from gpu_rag.program.seeds import entity_names, entity_seeds, spread, title_names, title_seeds
from gpu_rag.program.walk import (
    TITLE_SHARE,
    blended,
    ends_of,
    fact_weights,
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
from gpu_rag.settings.ranges import DAMPING, NATURAL, Range
from gpu_rag.types import CSR


@dataclass(frozen=True)
class Params(Declared):
    """Seeds, and the walk from them."""

    n_facts: Annotated[int, NATURAL, "number of nearest facts whose ends become seeds"] = 5
    damping: Annotated[float, DAMPING, "probability of following an edge"] = 0.85
    title_weight: Annotated[
        float,
        Range(0, 1000),
        "weight of the edge from a title's entity to its passage; other mentions have weight 1; 0: no such edge",
    ] = TITLE_WEIGHT

    n_words: ClassVar[int] = 20
    entity_mass: ClassVar[float] = 0.5
    mention_share: ClassVar[float] = 0.5
    word_share: ClassVar[float] = 0.2
    prior_temperature: ClassVar[float] = 30.0
    fusion: ClassVar[float] = 0.1
    tol: ClassVar[float] = 1e-6  # L1 error bound of PageRank, proved


Query = tuple[str, np.ndarray]  # a question's text and its unit vector


@dataclass(frozen=True)
class GraphRanking(Ranking):
    """A ranking by the graph, with the relation rows that seeded it (best first)."""

    facts: tuple[int, ...] = ()


@batched(GRAPH, tile=walk_tile)
@halved
def rank_by_graph(index: Index, queries: list[Query], params: Params, k: int) -> list[GraphRanking]:
    """The k passages of highest score for each question, see the module. Inputs go to a GPU in two copies, words
    first; ids and scores come back in one. The host waits for that copy, and twice for PageRank: for the sums of its
    restarts and for its proof."""
    texts = [text for text, _ in queries]
    words = word_weights(index, texts, params.n_words if params.word_share else 0)
    text_words = [words_of(text) for text in texts]
    mentions = spread(entity_seeds(entity_names(index), text_words, index.entity_n_passages))
    titles = spread(title_seeds(title_names(index), text_words) if params.title_weight else [{} for _ in text_words])
    vectors, *lists = uploaded(index, [vector for _, vector in queries], mentions, titles)
    cosine = passage_cosines(index, vectors)
    named, graph = seeds_of(lists[0], lists[1]), _graph(index, params.title_weight)
    ends, first = ends_of(index, "relation_vectors", index.relation_ends), index.n_entities
    for proved in (False, True):
        passages = restart(params.prior_temperature * cosine, *words, params.word_share)
        passages = blended(passages, lists[2], lists[3], TITLE_SHARE)
        facts, known = near_facts(index, "relation_vectors", vectors, params.n_facts, proved)
        prior = restarts_of(mixed(fact_weights(ends, facts), named, params.mention_share), passages, params.entity_mass)
        ranks = personalized_pagerank(
            graph, prior=prior, damping=params.damping, tol=params.tol, threads=index.threads, ids=(first, graph.n)
        )
        top = ranked(ranks, cosine, params.fusion, k)
        ids, scores, seeds, sure = to_host(top.ids, top.scores, facts.ids, known)
        if bool(sure.all()):
            break
    pairs = zip(passages_of(ids, scores), seeds.tolist())
    return [GraphRanking(ranking.rows, ranking.scores, tuple(seeds)) for ranking, seeds in pairs]


def _graph(index: Index, title_weight: float) -> PageRankGraph:
    """The graph of the index; with another weight of titles than the index has, made once."""
    if title_weight == TITLE_WEIGHT:
        return index.graph

    def load(index: Index) -> PageRankGraph:
        csr = index.graph.pull  # symmetric
        weight = weights_of(csr).clone()
        titles = weight >= TITLE_WEIGHT
        weight[titles] += title_weight - TITLE_WEIGHT
        return prepare(CSR(csr.indptr, csr.indices, weight))

    return index.loaded(f"ppr graph {title_weight}", load)
