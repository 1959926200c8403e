"""The case `join`: the best of n rows for each of B others, by shared keywords and cosine.

The n vectors and their keywords are prepared before the clock starts, by `join_index` and by the peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import Case, Checked, Config, check_sample
from gpu_rag.bench.inputs import check_memory, moved, part, seeded, unit_rows
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.join import join_index
from gpu_rag.types import Ragged

DIMS = 384
KEYWORDS = 6  # per vector
WORDS = 20_000  # distinct words; the probability of rank r falls as 1 / r
MOST_RIGHT = 100_000  # vectors to choose from: the time grows with B times n
ERROR = 1e-5  # error of a score in f32

Side = tuple[torch.Tensor, Ragged]  # vectors, and the keywords of each


def cases(config: Config) -> Iterator[Case]:
    """Random unit vectors with Zipf-distributed keywords, at most 100,000 on the right."""
    for n in sorted({min(n, MOST_RIGHT) for n in config.sizes}):
        check_memory(f"{n:,} vectors", 3 * 4 * n * DIMS, config)
        generator = seeded(config)
        yield _case(_described(config.pool, generator), _described(n, generator), config)


def _described(rows: int, generator: torch.Generator) -> Side:
    vectors = unit_rows(rows, DIMS, generator)
    uniform = torch.rand(rows * KEYWORDS, generator=generator, dtype=torch.float64)
    words = (WORDS**uniform).long() - 1  # log-uniform: the probability of rank r falls as 1 / r
    return vectors, Ragged(words, torch.arange(rows + 1) * KEYWORDS)


def _case(left: Side, right: Side, config: Config) -> Case:
    n, device = len(right[0]), torch.device(config.device)
    index = join_index(right[0].to(device), moved(right[1], device))
    return Case(
        op="join",
        implementation=index.implementation,
        labels={"n": n, "k": 1, "dims": DIMS},
        inputs=lambda *span: (part(left[0], *span).to(device), moved(part(left[1], *span), device)),
        run=lambda given: index.best(*given, threads=config.threads),
        check=lambda result, count: check(result, count, left, right),
        bytes_of=lambda batch: (4 * DIMS + 8 * KEYWORDS) * (n + batch) + 12 * batch,
        memory_of=lambda batch: (200 << 20) + 100 * batch,
        peers=lambda: [peer_file("join").by_numpy(left, right)],
    )


def _scores(left: Any, left_words: Any, right: Any, right_words: Any) -> Any:
    """All scores: (Jaccard index + cosine) / 2, [left rows, n]."""
    shared = (left_words @ right_words.T).toarray()
    sizes = [np.asarray(words.sum(1)).ravel() for words in (left_words, right_words)]
    union = np.maximum(sizes[0][:, None] + sizes[1] - shared, 1)
    return (shared / union + left @ right.T) / 2


def _matrix(keywords: Ragged) -> Any:
    """The keyword sets as a sparse matrix of 0 and 1."""
    from scipy.sparse import csr_matrix

    offsets, words = keywords.offsets.numpy(), keywords.values.numpy()
    matrix = csr_matrix((np.ones(len(words), np.float32), words, offsets), shape=(len(offsets) - 1, WORDS))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def check(result: Any, count: int, left: Side, right: Side) -> Checked:
    """Check that a sample of rows has the largest f64 score, at a row with that score."""
    index, score = (torch.as_tensor(a).cpu().numpy() for a in result)
    if index.shape != (count,) or score.shape != (count,):
        return Checked(f"the shape is {index.shape} instead of {(count,)}")
    vectors, words = right[0].numpy().astype(np.float64), _matrix(right[1])

    def reason(row: int) -> str:
        own = left[0][row : row + 1].numpy().astype(np.float64), _matrix(part(left[1], row, 1))
        exact = _scores(*own, vectors, words)[0]
        if not 0 <= index[row] < len(exact) or exact[index[row]] < exact.max() - ERROR:
            return f"row {row} has a better match"
        right = abs(float(score[row]) - exact.max()) <= ERROR
        return "" if right else f"the score of row {row} is off by more than {ERROR}"

    return check_sample(count, reason)
