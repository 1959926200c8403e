"""The case `join`: the best of n described vectors for each of B others, by shared keywords and cosine.

The n vectors and their keywords are made ready before the clock starts, by `join_index` as by the peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import MOST_TILED, Case, Checked, Config, Peer
from gpu_rag.bench.measure import torch_threads
from gpu_rag.errors import UsageError
from gpu_rag.graph.join import join_index
from gpu_rag.graph.memory import free_bytes
from gpu_rag.graph.pagerank.bench import part
from gpu_rag.types import Ragged

DIMS = 384
KEYWORDS = 6  # of a vector
WORDS = 20_000  # different ones; the chance of the word of rank r falls as 1 / r
MOST_RIGHT = 100_000  # vectors to choose from: the time grows with B times n
ERROR = 1e-5  # of a score in f32


def cases(config: Config) -> Iterator[Case]:
    """Random unit vectors with keywords of a Zipf distribution, at most 100,000 on the right."""
    for n in sorted({min(n, MOST_RIGHT) for n in config.sizes}):
        needed, free = 3 * 4 * n * DIMS, free_bytes(torch.device(config.device))
        if needed > free:
            given = f"{n:,} vectors: {needed / 1e9:.1f} GB"
            raise UsageError("the vectors do not fit", given=given, expected=f"at most {free / 1e9:.1f} GB")
        generator = torch.Generator().manual_seed(config.seed)
        sides = [_described(rows, generator) for rows in (config.pool, n)]
        yield _case(sides[0], sides[1], config)


def _described(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, Ragged]:
    vectors = torch.nn.functional.normalize(torch.randn(rows, DIMS, generator=generator))
    drawn = torch.rand(rows * KEYWORDS, generator=generator, dtype=torch.float64)
    words = (WORDS**drawn).long() - 1  # log-uniform: the chance of rank r falls as 1 / r
    return vectors, Ragged(words, torch.arange(rows + 1) * KEYWORDS)


def _case(left: tuple[torch.Tensor, Ragged], right: tuple[torch.Tensor, Ragged], config: Config) -> Case:
    n, device = len(right[0]), torch.device(config.device)
    index = join_index(right[0].to(device), Ragged(right[1].values.to(device), right[1].offsets.to(device)))

    def inputs(start: int, count: int) -> tuple[torch.Tensor, Ragged]:
        words = part(left[1], start, count)
        rows = left[0][start : start + count].to(device)
        return rows, Ragged(words.values.to(device), words.offsets.to(device))

    def run(asked: tuple[torch.Tensor, Ragged]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch_threads(config.threads):
            return index.best(*asked, threads=config.threads)

    return Case(
        "join",
        index.implementation,
        {"n": n, "k": 1, "dims": DIMS},
        inputs,
        run,
        lambda result, count: check(result, count, left, right),
        lambda batch: (4 * DIMS + 8 * KEYWORDS) * (n + batch) + 12 * batch,
        lambda batch: (200 << 20) + 100 * batch,
        lambda: [_numpy(left, right)],
    )


def scores_of(rows: slice, left: tuple[torch.Tensor, Ragged], right: tuple[torch.Tensor, Ragged], dtype: Any) -> Any:
    """All scores of some rows of the left: (Jaccard index + cosine) / 2, [rows, n]."""
    words = [_matrix(keywords) for _, keywords in (left, right)]
    return _scores(left[0][rows].numpy().astype(dtype), words[0][rows], right[0].numpy().astype(dtype), words[1])


def _scores(left: Any, left_words: Any, right: Any, right_words: Any) -> Any:
    shared = (left_words @ right_words.T).toarray()
    sizes = [np.asarray(words.sum(1)).ravel() for words in (left_words, right_words)]
    union = np.maximum(sizes[0][:, None] + sizes[1] - shared, 1)
    return (shared / union + left @ right.T) / 2


def _matrix(keywords: Ragged) -> Any:
    """The sets of keywords as a sparse matrix of 0 and 1."""
    from scipy.sparse import csr_matrix

    offsets, words = keywords.offsets.numpy(), keywords.values.numpy()
    matrix = csr_matrix((np.ones(len(words), np.float32), words, offsets), shape=(len(offsets) - 1, WORDS))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def check(result: Any, count: int, left: tuple[torch.Tensor, Ragged], right: tuple[torch.Tensor, Ragged]) -> Checked:
    """A sample of rows has the largest score in f64, at a row that has it."""
    index, score = (torch.as_tensor(a).cpu().numpy() for a in result)
    if index.shape != (count,) or score.shape != (count,):
        return Checked(False, f"the shape is {index.shape} instead of {(count,)}")
    for row in sorted({0, count // 2, count - 1}):
        exact = scores_of(slice(row, row + 1), left, right, np.float64)[0]
        if not 0 <= index[row] < len(exact) or exact[index[row]] < exact.max() - ERROR:
            return Checked(False, f"row {row} has a better match")
        if abs(float(score[row]) - exact.max()) > ERROR:
            return Checked(False, f"the score of row {row} is off by more than {ERROR}")
    return Checked(True)


def _numpy(left: tuple[torch.Tensor, Ragged], right: tuple[torch.Tensor, Ragged]) -> Peer:
    """The whole matrix of scores by numpy and a sparse product, then argmax, a tile of rows at a time."""
    right_words, left_words, vectors = _matrix(right[1]), _matrix(left[1]), right[0].numpy()

    def inputs(start: int, count: int) -> tuple[Any, Any]:
        return left[0][start : start + count].numpy(), left_words[start : start + count]

    def run(asked: tuple[Any, Any]) -> tuple[Any, Any]:
        scores = _scores(*asked, vectors, right_words)
        return scores.argmax(1), scores.max(1)

    return Peer("numpy + scipy", inputs, run, most=MOST_TILED, threads=1)
