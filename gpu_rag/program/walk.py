"""Passages ranked by a random walk with restart: the parts that graph methods share.

For a question with text t and unit vector q, and x(p) its nearness to each passage (a temperature times a cosine):
  f(e)      = the mean cosine (not below 0) with q of those of its n_facts nearest facts that have e as an end, scaled
              to sum to 1
  l(p)      = BM25(t, p)^2 over the n_words best passages by BM25, scaled to sum to 1
  d(p)      = softmax of x over all passages
  r(p)      = (1 - word_share) d + word_share l, the restart on passages; d alone without a passage of BM25 above 0;
              where titles are named, (1 - TITLE_SHARE) of it and TITLE_SHARE t, see program.seeds
  pi        = mass * w on other nodes, for their weights w, (1 - mass) * r on passages; r alone without w
  score(p)  = minmax(log max(rank(p), 1e-12)) + fusion * minmax(near(p)), both over all passages of the question
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gpu_rag.graph.fuse import minmax_rows
from gpu_rag.graph.nearest import on_host, topk_rows
from gpu_rag.index.index import Index
from gpu_rag.program.search import Ranking, nearest_rows, rankings

TILE = 64  # questions that are ranked together
TITLE_SHARE = 0.5  # of the restart on passages, for those whose titles a question names
_ROWS = 1 << 16  # of f16 vectors that are in f32 at a time
_FLOOR = 1e-12  # of a probability, before its logarithm


def passage_cosines(index: Index, queries: torch.Tensor) -> torch.Tensor:
    """f32[B, P]: the cosines of B <= TILE questions, f32[B, D], with all passages. Products in f32, also of rows in
    f16: a cosine rounded to f16 is off by up to 2^-12."""
    padded = torch.zeros((TILE, queries.shape[1]), dtype=torch.float32, device=queries.device)
    padded[: len(queries)] = queries  # of one shape: same bits in any batch
    base = index.vectors("passage_vectors")
    return torch.cat([padded @ rows.float().T for rows in base.split(_ROWS)], 1)[: len(queries)]


def word_restart(index: Index, texts: Sequence[str], n_words: int = 20) -> np.ndarray:
    """l f64[B, P]: rows sum to 1, or are zero."""
    words = np.zeros((len(texts), index.n_passages))
    if n_words:
        ids, scores = index.bm25.search(texts, min(n_words, index.n_passages))
        rows, columns = np.nonzero(ids >= 0)
        words[rows, ids[rows, columns]] = scores[rows, columns].astype(np.float64) ** 2
    return scaled(words)


def restart(
    near: torch.Tensor, words: np.ndarray, word_share: float = 0.2, titles: np.ndarray | None = None
) -> torch.Tensor:
    """r f32[B, P], rows sum to 1. near: x f32[B, P]; words: l; titles: t."""
    share = np.where(words.sum(1, keepdims=True) > 0, word_share, 0.0)
    rest, by_words = (torch.from_numpy(a.astype(np.float32)).to(near.device) for a in (1 - share, share * words))
    found = rest * torch.softmax(near, dim=1) + by_words
    if titles is None:
        return found
    by_titles = torch.from_numpy((TITLE_SHARE * titles).astype(np.float32)).to(near.device)
    return (1 - by_titles.sum(1, keepdim=True)) * found + by_titles


def fact_weights(
    index: Index, stage: str, ends: tuple[np.ndarray, np.ndarray], n_entities: int, queries: torch.Tensor, n_facts: int
) -> tuple[np.ndarray, list[list[int]]]:
    """(f f64[B, n_entities], seed facts of each question). stage: of the vectors of facts; ends: i64[R] entities of
    each. Sums in a fixed order, so they repeat to the bit."""
    total, count = np.zeros((len(queries), n_entities)), np.zeros((len(queries), n_entities))
    n_facts = min(n_facts, len(ends[0]))
    if not n_facts:
        return total, [[] for _ in range(len(queries))]
    top = on_host(nearest_rows(index, stage, queries, n_facts))
    ids, cosine = top.ids.numpy(), top.scores.numpy().clip(min=0)
    subjects, objects = (side[ids] for side in ends)
    rows = np.arange(len(queries))[:, None]
    for side, counted in ((subjects, np.ones(ids.shape)), (objects, (objects != subjects).astype(float))):
        np.add.at(total, (rows, side), cosine * counted)
        np.add.at(count, (rows, side), counted)
    return scaled(total / np.maximum(count, 1)), [row.tolist() for row in ids]


def mixed(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """(1 - share) first + share second for scaled rows; where one row is empty, the other alone."""
    return scaled((1 - share) * first + share * second)


def prior_of(weights: np.ndarray, passages: torch.Tensor, mass: float) -> torch.Tensor:
    """pi f32[B, N + P], rows sum to 1. weights: w f64[B, N], rows that sum to 1 or are zero; passages: r f32[B, P]."""
    masses = np.where(weights.sum(1, keepdims=True) > 0, mass, 0.0)
    first, rest = (torch.from_numpy(a.astype(np.float32)).to(passages.device) for a in (masses * weights, 1 - masses))
    return torch.cat([first, rest * passages], dim=1)


def ranked(ranks: torch.Tensor, near: torch.Tensor, fusion: float, k: int) -> list[Ranking]:
    """The k passages of highest score for each question. ranks, near: f32[B, P]."""
    scores = minmax_rows(ranks.clamp_min(_FLOOR).log()) + fusion * minmax_rows(near)
    return rankings(topk_rows(scores, min(k, ranks.shape[1])))


def scaled(rows: np.ndarray) -> np.ndarray:
    """Rows divided by their sums; rows of zeros stay."""
    sums = rows.sum(1, keepdims=True)
    return rows / np.where(sums > 0, sums, 1)
