"""The fused verb behind `ppr`: seeding, personalized PageRank and the final ranking, for a batch of questions.

For a question vector q, over the nodes [entities | passages]:
  facts     = the n_facts relations of highest cosine to q; entities = the n_entities entities of highest cosine
  w(e)      = the mean cosine of the facts and entities near q that name entity e (0 for others)
  pi        = fact_mass * w / sum(w) on entities, (1 - fact_mass) * softmax(prior_temperature * cos(q, p)) on passages
  p         = (1 - damping) pi + damping P^T p, see gpu_rag.graph.pagerank
  score(p)  = minmax(log p(p)) + fusion * minmax(cos(q, p)), both over all passages of the question
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.errors import UsageError
from gpu_rag.graph.fuse import minmax_rows
from gpu_rag.graph.nearest import nearest, topk_rows
from gpu_rag.graph.pagerank import personalized_pagerank
from gpu_rag.index.index import Index
from gpu_rag.types import TopK

TILE = 64
_FLOOR = 1e-12  # of a probability, before its logarithm


@dataclass(frozen=True)
class GraphRank:
    """Parameters of one graph ranking; calls with equal parameters share a batch."""

    k: int
    n_facts: int
    n_entities: int
    fact_mass: float
    prior_temperature: float
    damping: float
    fusion: float
    tol: float = 1e-6

    def __post_init__(self) -> None:
        if self.k < 1 or self.n_facts < 0 or self.n_entities < 0 or not 0 <= self.fact_mass <= 1:
            raise UsageError(
                "bad parameters of a graph ranking", given=self, expected="k >= 1, counts >= 0, 0 <= fact_mass <= 1"
            )


def graph_rank_executor(
    index: Index, threads: int
) -> Callable[[GraphRank, Sequence[np.ndarray]], tuple[TopK, list[list[int]]]]:
    """rank(params, vectors) -> (TopK over passage rows, seed facts of each question)."""

    def rank(params: GraphRank, vectors: Sequence[np.ndarray]) -> tuple[TopK, list[list[int]]]:
        tops, facts = [], []
        for start in range(0, len(vectors), TILE):
            top, seeds = _rank_tile(index, params, vectors[start : start + TILE], threads)
            tops.append(top)
            facts.extend(seeds)
        return TopK(torch.cat([t.ids for t in tops]), torch.cat([t.scores for t in tops])), facts

    return rank


def _rank_tile(
    index: Index, params: GraphRank, vectors: Sequence[np.ndarray], threads: int
) -> tuple[TopK, list[list[int]]]:
    n = len(vectors)
    queries = torch.zeros((TILE, len(vectors[0])), dtype=torch.float32, device=index.device)
    queries[:n] = torch.from_numpy(np.stack(vectors).astype(np.float32)).to(index.device)
    weights, facts = _entity_weights(index, params, queries[:n])
    base = index.vectors("passage_vectors")
    cosine = (queries.to(base.dtype) @ base.T).float()[:n]  # the padded product has one shape: same bits in any batch
    prior = _prior(params, weights, cosine)
    ranks = personalized_pagerank(index.graph, prior=prior, damping=params.damping, tol=params.tol, threads=threads)
    structural = minmax_rows(ranks[:, index.n_entities :].clamp_min(_FLOOR).log())
    scores = structural + params.fusion * minmax_rows(cosine)
    return topk_rows(scores, min(params.k, index.n_passages)), facts


def _entity_weights(index: Index, params: GraphRank, queries: torch.Tensor) -> tuple[np.ndarray, list[list[int]]]:
    """(w f64[b, n_entities], seed facts of each question). Sums in a fixed order, so they repeat to the bit."""
    n = len(queries)
    total, count = np.zeros((n, index.n_entities)), np.zeros((n, index.n_entities))
    facts: list[list[int]] = [[] for _ in range(n)]
    if params.n_facts and index.relations.num_rows:
        top = nearest(queries, index.vectors("relation_vectors"), min(params.n_facts, index.relations.num_rows))
        ids, scores = top.ids.cpu().numpy(), top.scores.cpu().numpy().clip(min=0)
        facts = [row[row >= 0].tolist() for row in ids]
        for ends in index.relation_ends:
            _add(total, count, ends[ids], scores)
    if params.n_entities and index.n_entities:
        top = nearest(queries, index.vectors("entity_vectors"), min(params.n_entities, index.n_entities))
        _add(total, count, top.ids.cpu().numpy().astype(np.int64), top.scores.cpu().numpy().clip(min=0))
    return total / np.maximum(count, 1), facts


def _add(total: np.ndarray, count: np.ndarray, entities: np.ndarray, scores: np.ndarray) -> None:
    rows = np.repeat(np.arange(len(total)), entities.shape[1])
    np.add.at(total, (rows, entities.ravel()), scores.ravel())
    np.add.at(count, (rows, entities.ravel()), 1)


def _prior(params: GraphRank, weights: np.ndarray, cosine: torch.Tensor) -> torch.Tensor:
    """pi f32[b, n_entities + n_passages]; a question without seed entities puts all mass on passages."""
    mass = weights.sum(1, keepdims=True)
    share = np.where(mass > 0, params.fact_mass, 0.0)
    entities = torch.from_numpy((share * weights / np.where(mass > 0, mass, 1)).astype(np.float32)).to(cosine.device)
    passages = torch.softmax(params.prior_temperature * cosine, dim=1)
    rest = torch.from_numpy((1 - share).astype(np.float32)).to(cosine.device)
    return torch.cat([entities, rest * passages], dim=1)
