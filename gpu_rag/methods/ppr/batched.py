"""The step behind `ppr`: seeding, personalized PageRank and the final ranking, for a batch of questions.

For a question with text t and unit vector q, over the nodes [entities | passages] of the index graph:
  facts     = the n_facts relations of highest cosine to q
  f(e)      = the mean cosine (not below 0) of those facts that have e as an end, scaled to sum to 1
  m(e)      = 1 / (passages that name e) for the entities that t names (longest names first), scaled to sum to 1
  w         = (1 - mention_share) f + mention_share m; where one of the two is empty, the other alone
  l(p)      = BM25(t, p)^2 over the n_words best passages by BM25, scaled to sum to 1
  d(p)      = softmax over all passages of prior_temperature * cos(q, p)
  pi        = entity_mass * w on entities, (1 - entity_mass) * ((1 - word_share) d + word_share l) on passages;
              without seed entities, or without a passage of BM25 above 0, the rest takes the share
  p         = (1 - damping) pi + damping P^T p, see gpu_rag.graph.pagerank
  score(p)  = minmax(log max(p(p), 1e-12)) + fusion * minmax(cos(q, p)), both over all passages of the question
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from gpu_rag.graph.fuse import minmax_rows
from gpu_rag.graph.nearest import on_host, topk_rows
from gpu_rag.graph.pagerank import personalized_pagerank
from gpu_rag.index.index import Index
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.search import Ranking, nearest_rows, rankings, stacked
from gpu_rag.runtime.step import batched
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import DAMPING, NATURAL
from gpu_rag.text.mentions import mentioned_names

TILE = 64
_ROWS = 1 << 16  # of f16 vectors that are in f32 at a time
_FLOOR = 1e-12  # of a probability, before its logarithm


@dataclass(frozen=True)
class Params(Declared):
    """Seeds, and the walk from them."""

    n_facts: Annotated[int, NATURAL, "nearest facts whose ends are seeds"] = 5
    damping: Annotated[float, DAMPING, "chance to follow an edge"] = 0.85

    n_words: ClassVar[int] = 20
    entity_mass: ClassVar[float] = 0.5
    mention_share: ClassVar[float] = 0.5
    word_share: ClassVar[float] = 0.2
    prior_temperature: ClassVar[float] = 30.0
    fusion: ClassVar[float] = 0.1
    tol: ClassVar[float] = 1e-6  # L1 error of PageRank, proved


Query = tuple[str, np.ndarray]  # a question's text and its unit vector


@dataclass(frozen=True)
class GraphRanking(Ranking):
    """A ranking by the graph, with the relation rows that seeded it (best first)."""

    facts: tuple[int, ...] = ()


@batched(GRAPH, tile=TILE)
def rank_by_graph(index: Index, queries: list[Query], params: Params, k: int) -> list[GraphRanking]:
    """The k passages of highest score for each question, see the module."""
    n, texts = len(queries), [text for text, _ in queries]
    vectors = torch.zeros((TILE, len(queries[0][1])), dtype=torch.float32, device=index.device)
    vectors[:n] = stacked([vector for _, vector in queries], index.device)
    cosine = _cosines(vectors, index.vectors("passage_vectors"))[:n]  # of one shape, padded: same bits in any batch
    by_fact, facts = _fact_weights(index, params, vectors[:n])
    weights = _mixed(by_fact, _mention_weights(index, texts), params.mention_share)
    prior = _prior(params, weights, cosine, _word_prior(index, params, texts))
    ranks = personalized_pagerank(
        index.graph, prior=prior, damping=params.damping, tol=params.tol, threads=index.threads
    )
    structural = minmax_rows(ranks[:, index.n_entities :].clamp_min(_FLOOR).log())
    scores = structural + params.fusion * minmax_rows(cosine)
    found = rankings(topk_rows(scores, min(k, index.n_passages)))
    return [GraphRanking(ranking.rows, ranking.scores, tuple(seeds)) for ranking, seeds in zip(found, facts)]


def _cosines(queries: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """f32[B, N]: products in f32, also of rows in f16: a cosine rounded to f16 is off by up to 2^-12."""
    return torch.cat([queries @ rows.float().T for rows in base.split(_ROWS)], 1)


def _scaled(rows: np.ndarray) -> np.ndarray:
    """Rows divided by their sums; rows of zeros stay."""
    sums = rows.sum(1, keepdims=True)
    return rows / np.where(sums > 0, sums, 1)


def _mixed(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """(1 - share) first + share second for scaled rows; where one row is empty, the other alone."""
    return _scaled((1 - share) * first + share * second)


def _fact_weights(index: Index, params: Params, queries: torch.Tensor) -> tuple[np.ndarray, list[list[int]]]:
    """(f f64[b, n_entities], seed facts of each question). Sums in a fixed order, so they repeat to the bit."""
    total, count = np.zeros((len(queries), index.n_entities)), np.zeros((len(queries), index.n_entities))
    n_facts = min(params.n_facts, index.relations.num_rows)
    if not n_facts:
        return total, [[] for _ in range(len(queries))]
    top = on_host(nearest_rows(index, "relation_vectors", queries, n_facts))
    ids, cosine = top.ids.numpy(), top.scores.numpy().clip(min=0)
    subjects, objects = (ends[ids] for ends in index.relation_ends)
    rows = np.arange(len(queries))[:, None]
    for ends, counted in ((subjects, np.ones(ids.shape)), (objects, (objects != subjects).astype(float))):
        np.add.at(total, (rows, ends), cosine * counted)
        np.add.at(count, (rows, ends), counted)
    return _scaled(total / np.maximum(count, 1)), [row.tolist() for row in ids]


def _mention_weights(index: Index, texts: Sequence[str]) -> np.ndarray:
    """m f64[b, n_entities]: the rarer a named entity, the more it says."""
    weights = np.zeros((len(texts), index.n_entities))
    for row, text in enumerate(texts):
        named = mentioned_names(text, index.entity_rows)
        weights[row, named] = 1 / np.maximum(index.entity_n_passages[named], 1)
    return _scaled(weights)


def _word_prior(index: Index, params: Params, texts: Sequence[str]) -> np.ndarray:
    """l f64[b, n_passages]."""
    prior = np.zeros((len(texts), index.n_passages))
    if params.n_words and params.word_share:
        ids, scores = index.bm25.search(texts, min(params.n_words, index.n_passages))
        rows, columns = np.nonzero(ids >= 0)
        prior[rows, ids[rows, columns]] = scores[rows, columns].astype(np.float64) ** 2
    return _scaled(prior)


def _prior(params: Params, weights: np.ndarray, cosine: torch.Tensor, words: np.ndarray) -> torch.Tensor:
    """pi f32[b, n_entities + n_passages], rows sum to 1."""
    share = np.where(words.sum(1, keepdims=True) > 0, params.word_share, 0.0)
    mass = np.where(weights.sum(1, keepdims=True) > 0, params.entity_mass, 0.0)

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(cosine.device)

    passages = torch.softmax(params.prior_temperature * cosine, dim=1)
    mixed = on_device(1 - share) * passages + on_device(share * words)
    return torch.cat([on_device(mass * weights), on_device(1 - mass) * mixed], dim=1)
