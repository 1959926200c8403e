"""Candidates for a join of many rows on a CPU: pairs of rows that share a keyword."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpu_rag.graph.nearest.pairs import projection_codes
from gpu_rag.graph.ragged import check_ragged, expand, row_of_value
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

RATIO = 64  # a keyword of L left and R right rows is common if L R > RATIO (L + R): then a join is faster than pairs
LEFT_ROWS = 1 << 14  # left rows joined at a time
BUCKET = 1 << 15  # right rows of a common keyword that are all compared; more are compared in buckets of at most half
DRAWS = 4  # draws of projections for these buckets
BLOCK = 1 << 30  # pairs of a block of common keywords; no result depends on it
CODED = 1 << 16  # rows whose codes are computed at a time
_SEED = 1 << 16  # seed of the projections


class Part(NamedTuple):
    """A part of a common keyword: its left rows `first` to `last`, of these the ones with `code` in a draw if it has
    buckets."""

    word: int
    draw: int
    code: int
    first: int
    last: int


class SharedKeywords:
    """The keywords that left and right rows share, and with them the pairs that are worth comparing.

    Every pair that shares a keyword of at most BUCKET right rows is a candidate. Right rows of a more common one are in
    buckets of about BUCKET / 4 to BUCKET / 2 by the signs of hashed projections, and a pair is a candidate if in one of
    DRAWS draws both rows are in the same bucket. So a pair depends on its two rows and on how common their keywords
    are, never on order. The same pairs on every machine.
    """

    def __init__(self, left: Ragged, right: Ragged, bits: np.ndarray | None = None):
        """left, right: ascending lists i32/i64 of keywords below W, each once, on the CPU. bits: the `bucket_bits` of
        these sides, by default, or of larger ones that the rows are from. Memory: 12 bytes for each keyword of each
        row, twice that while it is made, and 40 W. Raises BadInput."""
        for lists, name in ((left, "left keywords"), (right, "right keywords")):
            check_ragged(lists, name, n=2**31, device=torch.device("cpu"), ascending=True)
        self._left = left
        self._bits = bucket_bits(left, right) if bits is None else bits
        (self._left_rows, self._left_ends), (self._right_rows, self._right_ends) = (
            _by_word(s, len(self._bits)) for s in (left, right)
        )
        n_left, n_right = np.diff(self._left_ends), np.diff(self._right_ends)
        self.is_common = _are_common(n_left, n_right) | ((self._bits > 0) & (n_left * n_right > 0))
        times = np.where(self._bits > 0, DRAWS, 1)
        self.n_common = int((n_left * times)[self.is_common].sum())
        self._coded: tuple[int, np.ndarray, np.ndarray] | None = None  # the last word with buckets, codes of its rows

    def rare_pairs(self, first: int, last: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The candidates (i, j) of the left rows first..last that share a keyword that is not common, in pieces of
        bounded length: i64[P] each, i ascending and counted from `first`. A pair may be there more than once."""
        ends = self._left.offsets[first : last + 1]
        words = self._left.values[int(ends[0]) : int(ends[-1])].numpy()
        row = row_of_value(Ragged(torch.from_numpy(words), ends - ends[0])).numpy()
        is_rare = ~self.is_common[words]
        words, row = words[is_rare], row[is_rare]
        for entry, place in expand(
            torch.from_numpy(self._right_ends[words]), torch.from_numpy(self._right_ends[words + 1])
        ):
            yield torch.from_numpy(row[entry.numpy()]), torch.from_numpy(self._right_rows[place.numpy()]).long()

    def common_blocks(self) -> Iterator[list[Part]]:
        """The common keywords in blocks of about BLOCK pairs. n_common is the sum of the left rows of all parts."""
        block, n_pairs = list[Part](), 0
        for word in np.flatnonzero(self.is_common).tolist():
            n_left, n_right = (int(np.diff(ends[word : word + 2])[0]) for ends in (self._left_ends, self._right_ends))
            n_codes = 1 << int(self._bits[word])
            if n_codes > 1:
                parts = [Part(word, draw, code, 0, n_left) for draw in range(DRAWS) for code in range(n_codes)]
            else:
                parts = [Part(word, 0, 0, *ends) for ends in pairwise([*range(0, n_left, LEFT_ROWS), n_left])]
            for part in parts:
                block.append(part)
                n_pairs += (part.last - part.first) * n_right // n_codes**2
                if n_pairs >= BLOCK:
                    yield block
                    block, n_pairs = [], 0
        if block:
            yield block

    def rows_of(self, part: Part, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows (i, j), i64 and ascending, of the left and right side that are compared, each with each, for a part.
        left, right: f16/f32[N, D] on the CPU, the vectors of all rows, unit rows, D <= 16384."""
        i = self._left_rows[self._left_ends[part.word] : self._left_ends[part.word + 1]][part.first : part.last]
        j = self._right_rows[self._right_ends[part.word] : self._right_ends[part.word + 1]]
        if bits := int(self._bits[part.word]):
            if self._coded is None or self._coded[0] != part.word:
                self._coded = part.word, _codes(left, i, bits), _codes(right, j, bits)
            i, j = (rows[codes[part.draw] == part.code] for rows, codes in zip((i, j), self._coded[1:]))
        return torch.from_numpy(i).long(), torch.from_numpy(j).long()


def _codes(vectors: torch.Tensor, rows: np.ndarray, bits: int) -> np.ndarray:
    """The codes of some rows, u32[DRAWS, n]; few vectors are copied at a time."""
    parts = np.split(rows, range(CODED, len(rows), CODED))
    return np.concatenate([projection_codes(vectors[torch.from_numpy(p).long()], DRAWS, bits, _SEED) for p in parts], 1)


def bucket_bits(left: Ragged, right: Ragged) -> np.ndarray:
    """i64[W]: the number of projections whose signs divide the right rows of each keyword; 0: all are compared."""
    n = 1 + max((int(lists.values.max()) for lists in (left, right) if lists.values.numel()), default=-1)
    n_left, n_right = (np.bincount(lists.values.numpy(), minlength=n) for lists in (left, right))
    bits = np.frexp((n_right - 1) // BUCKET)[1] + 1
    return np.where(_are_common(n_left, n_right) & (n_right > BUCKET), bits, 0)


def _are_common(n_left: np.ndarray, n_right: np.ndarray) -> np.ndarray:
    return n_left * n_right > RATIO * (n_left + n_right)  # type: ignore[no-any-return]


def _by_word(lists: Ragged, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows i32[T], ends i64[n + 1]): the rows that have each word below n, ascending."""
    values = lists.values.numpy()
    ends = np.append(0, np.bincount(values, minlength=n).cumsum())
    return row_of_value(lists).int().numpy()[np.argsort(values, kind="stable")], ends
