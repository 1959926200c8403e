"""Candidates for a join of many rows on a CPU: right rows that share keywords and bits of hashed projections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import torch

from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.nearest.pairs import distinct, projection_codes
from gpu_rag.graph.ragged import check_ragged, expand, row_of_value
from gpu_rag.types import Ragged

DRAWS = 4  # draws of projections
BITS = 32  # bits per code
BUCKET = 32  # a list of at most so many right rows is one bucket, a longer one has buckets of about half of it
CAP = 256  # right rows of a bucket that are candidates
WORDS = 4  # the rarest words of a left row are looked up, and their sets
_SEED = 1 << 16  # seed of the projections
_ROWS = 1 << 16  # rows whose sets are hashed at a time, and words that show how they are spread
_KEYS = 1 << 22  # keys sorted at a time: bounds memory, does not change the result


class WordBuckets:
    """Right rows in buckets of equal projections, for each keyword and for each whole set of keywords.

    A left row looks up the WORDS rarest of its keywords and every set of these. A pair is a candidate if the right row
    has such a keyword, or exactly such a set, and if in one of DRAWS codes of BITS projections the first b bits agree.
    b grows with the length of the list of the keyword or set, and is 0 up to BUCKET rows. So a pair depends on its two
    rows and on how common its keywords are, never on order, up to CAP rows of a bucket. The same bits on every machine.
    """

    def __init__(self, vectors: torch.Tensor, keywords: Ragged, folder: Path):
        """vectors: f16/f32[N, D] on the CPU, unit rows, D <= 16384; keywords: N ascending lists of i32/i64 from 0 to
        2^31 - 1. The sorted keys are in mapped files of `folder` without names, 12 DRAWS bytes for each keyword and
        row; memory: 12 bytes for each of these, and 4 DRAWS a row. Raises BadInput."""
        _check(vectors, keywords)
        self.n = len(vectors)
        words, row = _words_of(keywords)
        codes = projection_codes(vectors, DRAWS, BITS, _SEED)
        with ExitStack() as stack:
            files = [[stack.enter_context(TemporaryFile(dir=folder)) for _ in ("keys", "rows")] for _ in codes]
            for first, last in _parts(words):
                part = np.flatnonzero((words >= first) & (words < last))
                for code, (key_file, row_file) in zip(codes, files):
                    keys = (words[part].astype(np.uint64) << BITS) | code[row[part]]
                    order = np.argsort(keys, kind="stable")
                    key_file.write(keys[order].data)
                    row_file.write(row[part[order]].data)
            # (keys u64 ascending, rows i32) of each draw
            self._orders = [(_mapped(keys, np.uint64), _mapped(rows, np.int32)) for keys, rows in files]

    def pairs(self, vectors: torch.Tensor, keywords: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        """The candidates (i, j) of left rows, i64[P] each, ascending, each once. Arguments as for the right rows."""
        _check(vectors, keywords)
        row, word = self._rarest(row_of_value(keywords).numpy(), keywords.values.numpy().astype(np.uint64))
        row, word = _with_sets(row, word, len(vectors))
        free = (BITS - np.minimum(np.frexp((self._counts(word) - 1) // BUCKET)[1], BITS)).astype(np.uint64)
        pair_keys = [np.zeros(0, np.int64)]
        for draw, (code, (keys, rows)) in enumerate(zip(projection_codes(vectors, DRAWS, BITS, _SEED), self._orders)):
            lookups = np.flatnonzero((free < BITS) | (draw == 0))  # a list with one bucket has it in every draw
            first_key = ((word[lookups] << BITS) | code[row[lookups]]) >> free[lookups] << free[lookups]
            last_key = first_key | ((np.uint64(1) << free[lookups]) - np.uint64(1))
            first = np.searchsorted(keys, first_key)
            last = np.minimum(np.searchsorted(keys, last_key, side="right"), first + CAP)
            for entry, place in expand(torch.from_numpy(first), torch.from_numpy(last)):
                pair_keys.append(row[lookups][entry.numpy()] * self.n + rows[place.numpy()])
        i, j = np.divmod(distinct(np.concatenate(pair_keys)), max(self.n, 1))
        return torch.from_numpy(i), torch.from_numpy(j)

    def _counts(self, word: np.ndarray) -> np.ndarray:
        """The number of right rows with each word."""
        keys, codes = self._orders[0][0], np.uint64((1 << BITS) - 1)
        return np.searchsorted(keys, (word << BITS) | codes, side="right") - np.searchsorted(keys, word << BITS)

    def _rarest(self, row: np.ndarray, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The WORDS rarest known words of each row, ties to the lower word; by row."""
        count = self._counts(word)
        order = np.lexsort((word, count, row))
        order = order[count[order] > 0]
        row, word = row[order], word[order]
        kept = np.arange(len(row)) - np.searchsorted(row, row) < WORDS
        return row[kept], word[kept]


def _with_sets(row: np.ndarray, word: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The words of n rows, at most WORDS each and by row, and then the words of the sets that these make."""
    sizes, place = np.bincount(row, minlength=n), np.arange(len(row)) - np.searchsorted(row, row)
    mixed = np.zeros((n, WORDS), np.uint64)
    mixed[row, place] = _mixed(word)
    rows, words = [row], [word]
    for members in range(1, 1 << WORDS):
        rows.append(np.flatnonzero(sizes >= members.bit_length()))
        chosen = [k for k in range(WORDS) if members >> k & 1]
        words.append(_set_word(mixed[rows[-1]][:, chosen].sum(1, dtype=np.uint64)))
    return np.concatenate(rows), np.concatenate(words)


def _words_of(keywords: Ragged) -> tuple[np.ndarray, np.ndarray]:
    """(words u32, rows i32): all keywords with their rows, and then the word of the whole set of each row."""
    values, offsets, n = keywords.values.numpy(), keywords.offsets.numpy(), keywords.batch
    words = np.empty(len(values) + n, np.uint32)
    words[: len(values)] = values
    for start in range(0, n, _ROWS):
        ends = offsets[start : start + _ROWS + 1]
        mixed = _mixed(values[ends[0] : ends[-1]].astype(np.uint64))
        sums = np.append(np.uint64(0), mixed.cumsum(dtype=np.uint64))[ends - ends[0]]
        words[len(values) + start :][: len(ends) - 1] = _set_word(np.diff(sums))
    rows = np.arange(n, dtype=np.int32)
    return words, np.concatenate([np.repeat(rows, np.diff(offsets)), rows])


def _parts(words: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges [first, last) of words, ascending, that together have all; with some _KEYS entries each."""
    sample = np.sort(words[:: len(words) // _ROWS + 1])
    step = max(len(sample) * _KEYS // max(len(words), 1), 1)
    cuts = np.unique(sample[step::step]).tolist()
    return pairwise([0, *cuts, 1 << 32])


def _mapped(file: IO[bytes], kind: type[np.generic]) -> np.ndarray:
    """The numbers in a file, mapped."""
    file.flush()
    return np.asarray(np.memmap(file, kind, "r")) if file.tell() else np.zeros(0, kind)


def _mixed(word: np.ndarray) -> np.ndarray:
    """A hash of each word, u64; the sum of the hashes of a set stands for the set."""
    word = (word + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return (word ^ (word >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)


def _set_word(sums: np.ndarray) -> np.ndarray:
    """Words above all keywords, from 2^31 on, that stand for sets."""
    return (sums >> np.uint64(33)) | np.uint64(1 << 31)


def _check(vectors: torch.Tensor, keywords: Ragged) -> None:
    check_unit_rows(vectors, "vectors")
    cpu, n = torch.device("cpu"), len(vectors)
    check_ragged(keywords, "keywords", n=2**31, device=cpu, ascending=True, batch=n, of="vectors")
