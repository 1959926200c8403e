"""Candidates for a join of many rows on a CPU: right rows that share a keyword and bits of hashed projections."""

from __future__ import annotations

import numpy as np
import torch

from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.nearest.pairs import distinct, projection_codes
from gpu_rag.graph.ragged import check_ragged, expand, row_of_value
from gpu_rag.types import Ragged

DRAWS = 4  # of projections
BITS = 32  # of a code
BUCKET = 32  # a word of at most so many right rows has one bucket, a word of more has buckets of about half of it
CAP = 256  # right rows of a bucket that are candidates
WORDS = 4  # the rarest words of a left row are looked up
_SEED = 1 << 16  # of the projections


class WordBuckets:
    """Right rows in buckets of one keyword and of equal projections.

    A pair is a candidate if both rows have a keyword, among the WORDS rarest of the left one, and if in one of DRAWS
    codes of BITS projections the first b bits agree. b grows with the number of right rows with the word, so that a
    bucket stays small, and is 0 up to BUCKET rows. So a pair depends on its two rows and on how common its words are,
    never on order, up to CAP rows of a bucket. Signs of projections have the same bits on every machine.
    """

    def __init__(self, vectors: torch.Tensor, keywords: Ragged):
        """vectors: f16/f32[N, D] on the CPU, unit rows, D <= 16384; keywords: N ascending lists of i32/i64 from 0 to
        2^31 - 1. Memory: 12 DRAWS + 40 bytes a keyword. Raises BadInput."""
        _check(vectors, keywords)
        words, row = keywords.values.numpy().astype(np.uint64), row_of_value(keywords).int().numpy()
        self.n = len(vectors)
        self._counts = np.append(np.bincount(keywords.values.numpy()), 0)  # the last is of unknown words
        self._orders: list[tuple[np.ndarray, np.ndarray]] = []  # (keys u64[T] ascending, rows i32[T]) of each draw
        for code in projection_codes(vectors, DRAWS, BITS, _SEED):
            keys = (words << BITS) | code[row]
            order = np.argsort(keys, kind="stable")
            self._orders.append((keys[order], row[order]))

    def pairs(self, vectors: torch.Tensor, keywords: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        """The candidates (i, j) of left rows, i64[P] each, ascending, each once. Arguments as for the right rows."""
        _check(vectors, keywords)
        word, row = np.minimum(keywords.values.numpy(), len(self._counts) - 1), row_of_value(keywords).numpy()
        count = self._counts[word]
        order = np.lexsort((word, count, row))
        order = order[count[order] > 0]
        row = row[order]
        order = order[np.arange(len(row)) - np.searchsorted(row, row) < WORDS]
        row, word, count = row_of_value(keywords).numpy()[order], word[order].astype(np.uint64), count[order]
        free = (BITS - np.minimum(np.frexp((count - 1) // BUCKET)[1], BITS)).astype(np.uint64)  # last bits of the code
        found = [np.zeros(0, np.int64)]
        for draw, (code, (keys, rows)) in enumerate(zip(projection_codes(vectors, DRAWS, BITS, _SEED), self._orders)):
            some = np.flatnonzero((free < BITS) | (draw == 0))  # a word with one bucket has it in every draw
            first_key = ((word[some] << BITS) | code[row[some]]) >> free[some] << free[some]
            first = np.searchsorted(keys, first_key)
            last = np.minimum(np.searchsorted(keys, first_key + (np.uint64(1) << free[some])), first + CAP)
            for entry, place in expand(torch.from_numpy(first), torch.from_numpy(last)):
                found.append(row[some][entry.numpy()] * self.n + rows[place.numpy()])
        i, j = np.divmod(distinct(np.concatenate(found)), max(self.n, 1))
        return torch.from_numpy(i), torch.from_numpy(j)


def _check(vectors: torch.Tensor, keywords: Ragged) -> None:
    check_unit_rows(vectors, "vectors")
    cpu, n = torch.device("cpu"), len(vectors)
    check_ragged(keywords, "keywords", n=2**31, device=cpu, ascending=True, batch=n, of="vectors")
