"""Hybrid similarity of all pairs in whole numbers, and rows and keywords with many ties: the brute force that joins,
frontiers and scores of pairs are compared with."""

from collections.abc import Sequence

import numpy as np
import torch

from gpu_rag.graph.common.dots import GRID, on_grid
from gpu_rag.types import Ragged, TopK

Groups = tuple[torch.Tensor, torch.Tensor] | None
Pairs = list[tuple[float, int]]


def unit_rows(r: np.random.Generator, n: int, dim: int, half: bool = False) -> torch.Tensor:
    """Some rows are equal."""
    x = r.normal(size=(n, dim))
    vectors = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True)).float()
    vectors = vectors[torch.from_numpy(r.integers(0, n, n))] if n else vectors
    return vectors.half() if half else vectors


def words(r: np.random.Generator, n: int, most: int, vocabulary: int) -> list[list[int]]:
    """Few words are common, many rare; some rows have none, some repeat one."""
    return [(r.integers(0, vocabulary, k) ** 2 // vocabulary).tolist() for k in r.integers(0, most, n)]


def sets(keywords: Ragged) -> list[set[int]]:
    """Each list as a set."""
    offsets = keywords.offsets.tolist()
    return [set(keywords.values[a:b].tolist()) for a, b in zip(offsets, offsets[1:])]


def all_scores(left: torch.Tensor, lk: Ragged, right: torch.Tensor, rk: Ragged, exclude: Groups = None) -> np.ndarray:
    """f64[Nl, Nr]: dot products in whole numbers of 2^-48, then one division, one sum and one halving."""
    whole = [(on_grid(v) * GRID).long().cpu().numpy() for v in (left, right)]
    dots = (whole[0] @ whole[1].T).astype(np.float64) * 2.0**-48
    shares = [[len(a & b) / max(len(a | b), 1) for b in sets(rk)] for a in sets(lk)]
    scores = (np.array(shares).reshape(dots.shape) + dots) / 2
    if exclude is not None:
        scores[(exclude[0][:, None] == exclude[1][None]).cpu().numpy()] = -np.inf
    return np.asarray(scores)


def check_join(found: tuple[torch.Tensor, torch.Tensor], scores: np.ndarray) -> None:
    """The best of each row of scores, of equal ones the first; -1 and -inf where there is none."""
    index, score = found
    assert index.dtype == torch.int64 and score.dtype == torch.float64
    if not scores.shape[1]:
        assert index.tolist() == [-1] * len(scores) and score.tolist() == [-np.inf] * len(scores)
        return
    best = scores.max(1)
    assert index.tolist() == np.where(best > -np.inf, scores.argmax(1), -1).tolist()
    assert score.tolist() == best.tolist()


def best_out_edges(sim: np.ndarray, indptr: Sequence[int], frontier: list[list[int]], k: int) -> list[Pairs]:
    """The k best out-edges of each frontier vertex, of equal ones the lower; sim: f32[B, E]."""
    found = []
    for scores, vertices in zip(sim, frontier):
        for v in vertices:
            out = range(indptr[v], indptr[v + 1])
            found.append([(float(scores[e]), e) for e in sorted(out, key=lambda e: (-scores[e], e))[:k]])
    return found


def check_top(top: TopK, expected: list[Pairs], k: int) -> None:
    """Rows of ids and scores, padded."""
    assert top.ids.dtype == torch.int32 and top.scores.dtype == torch.float32
    assert top.ids.shape == top.scores.shape == (len(expected), k)
    ids = [[e for _, e in row] + [-1] * (k - len(row)) for row in expected]
    scores = [[s for s, _ in row] + [-np.inf] * (k - len(row)) for row in expected]
    assert torch.equal(top.ids.cpu(), torch.tensor(ids, dtype=torch.int32).view(-1, k))
    assert torch.equal(top.scores.cpu(), torch.tensor(scores, dtype=torch.float32).view(-1, k))
