"""Close pairs of rows without comparing all pairs: candidates by hashed projections, then exact scores.

Whether a pair is a candidate depends only on its two rows and on the size class of N, never on order, device or other
rows, up to the cap on very large buckets. For unit rows x, y at the angle t, a signed projection is equal for both with
probability p = 1 - t / pi (Charikar, "Similarity estimation techniques from rounding algorithms", 2002), so
    P(candidate) = 1 - (1 - p^k)^L    for L tables of k bits each.
Rows are rounded to integers and projections are -1 or 1: every sum is exact in f32, and bits agree on every machine.
A second hash of SKETCH bits removes most candidates before their vectors are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.dots import check_unit_rows, exact_dots
from gpu_rag.lazy import torch

EXACT_ROWS = 150_000  # up to this number, and always on a GPU, the callers compare all rows with each other
RECALL = 0.9  # recall of pairs at the threshold; closer pairs are found more often
BUCKET = 12  # mean rows of a bucket
MAX_TABLES = 128
TOGETHER = 16  # tables whose codes are in memory at once
CAP = 256  # a row is compared with at most this number of following rows of its bucket
SKETCH = 256  # bits
TABLE_COST = 115.0  # cost of a row in one table, in exact comparisons of two rows
CLOSE_COST = 0.145  # the same for each other row, because close pairs grow by the square
_SPREAD = 3.3  # allowed sketch distance of a pair at the threshold, in standard deviations
_GRID = 1024.0  # components are multiples of 1 / _GRID: sums of 16,384 of them are exact in f32
_ROWS = 1 << 12  # rows projected at a time
# These four bound memory or disk, and do not change the result:
BLOCK = 1 << 18  # rows of a table that are compared at a time
KEYS = 1 << 21  # candidates in memory at a time
SPILLED = 64  # candidates on disk, for each row
PAIRS = 1 << 21  # pairs of the rows whose nearest are chosen at a time
SAMPLE = 256  # rows whose exact pairs are compared with those found

RowPairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ascending pairs of rows, the first the lower one, and their scores f32[P]."""


def plan(n: int, threshold: float) -> tuple[int, int]:
    """(bits, tables) for n rows: buckets of BUCKET rows on average, and RECALL at the threshold."""
    bits = min(max(math.ceil(math.log2(max(n, 2) / BUCKET)), 4), 30)
    equal = (1 - math.acos(threshold) / math.pi) ** bits
    return bits, min(math.ceil(math.log(1 - RECALL) / math.log1p(-min(equal, 1 - 1e-9))), MAX_TABLES)


def comparisons(n: float, threshold: float) -> float:
    """Predicted cost of finding the close pairs of one of n rows on a CPU, in exact comparisons of two rows."""
    return n if n <= EXACT_ROWS else TABLE_COST * plan(int(n), threshold)[1] + CLOSE_COST * n


def close_pairs(
    base: torch.Tensor,
    groups: np.ndarray,
    threshold: float,
    advance: Callable[[int], None] = lambda rows: None,
    folder: Path | None = None,
) -> RowPairs:
    """Most pairs of rows of one group with a dot product of at least `threshold`; the module describes the recall.

    base: f16/f32[N, D] on the CPU, rows of length 1 or 0, D <= 16384. groups: u64[N]. threshold: 0 < threshold <= 1.
    advance: called with the share of each table that is done, N in all. folder: for files without a name; by default
    the system's. Returns left i32[P] < right i32[P], ascending, and the exact products f32[P], mapped from such files.
    Memory: 4 TOGETHER + 80 bytes a row and 60 KEYS bytes. Disk: 8 SPILLED bytes a row and 24 bytes a pair.
    Raises BadInput.

    >>> rows = torch.tensor([[1.0, 0.0], [0.8, 0.6], [1.0, 0.0], [1.0, 0.0]])
    >>> left, right, score = close_pairs(rows, np.array([0, 0, 0, 1], np.uint64), 0.9)
    >>> list(zip(left.tolist(), right.tolist(), score.tolist()))
    [(0, 2, 1.0)]
    """
    check_unit_rows(base, "base")
    if not 0 < threshold <= 1 or base.shape[1] > 1 << 14 or groups.shape != (len(base),):
        given = f"threshold {threshold}, {tuple(base.shape)}, groups {groups.shape}"
        raise BadInput(
            "close pairs of these rows", given=given, expected="0 < threshold <= 1, D <= 16384, a group a row"
        )
    bits, tables = plan(len(base), threshold)
    words = np.ascontiguousarray(projection_codes(base, SKETCH // 32, 32, seed=0).T).view(np.uint64)
    limit = _most_differing(threshold)

    def candidates() -> Iterator[np.ndarray]:
        for first in range(0, tables, TOGETHER):
            codes = projection_codes(base, min(TOGETHER, tables - first), bits, seed=1 + first)
            for number, code in enumerate(codes, first):
                yield from (_key(*pair, len(base)) for pair in _candidates(code, groups, words, limit))
                advance(len(base) * (number + 1) // tables - len(base) * number // tables)

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    known = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)
    with ExitStack() as stack:
        runs, n = list[IO[bytes]](), 0
        for part in _distinct_parts(candidates()):
            runs.append(stack.enter_context(TemporaryFile(dir=folder)))
            runs[-1].write(part.data)
            n += len(part)
            if n >= SPILLED * len(base):
                known = _joined(known, runs, base, threshold, folder)
                stack.close()
                runs, n = [], 0
        return _joined(known, runs, base, threshold, folder) if runs else known


def _joined(
    known: RowPairs, runs: Sequence[IO[bytes]], base: torch.Tensor, threshold: float, folder: Path | None
) -> RowPairs:
    """The known close pairs and those among candidates, about KEYS of them at a time. runs: files of ascending i64."""
    n, stride = len(base), max(KEYS >> 8, 1)
    for run in runs:
        run.flush()
    sample = np.concatenate([np.array(np.memmap(run, np.int64, "r")[::stride]) for run in runs])
    edges = np.unique([*np.sort(sample)[:: KEYS // stride][1:] // n, n])  # each part ends before one of these rows
    sizes = [np.diff(np.searchsorted(np.memmap(run, np.int64, "r"), edges * n), prepend=0) for run in runs]
    for run in runs:
        run.seek(0)
    ends = np.searchsorted(known[0], edges.astype(np.int32))
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile(dir=folder)) for _ in known]
        for low, high, *counts in zip([0, *ends], ends, *sizes):
            left, right, score = (column[low:high] for column in known)
            old = _key(left, right, n)
            new = distinct(np.concatenate([np.fromfile(run, np.int64, size) for run, size in zip(runs, counts)]))
            new = new[np.append(old, -1)[np.searchsorted(old, new)] != new]  # of a close pair most tables tell
            i, j = (torch.from_numpy(rows) for rows in np.divmod(new, n))
            product = exact_dots(base, i, base, j).float().numpy()
            close = product >= np.float32(threshold)
            place = np.searchsorted(old, new[close])
            left, right = np.divmod(np.insert(old, place, new[close]), n)
            columns = left.astype(np.int32), right.astype(np.int32), np.insert(score, place, product[close])
            for file, column in zip(files, columns):
                file.write(column.data)
        for file in files:
            file.flush()
        mapped = (np.memmap(file, x.dtype, "r") if file.tell() else x for file, x in zip(files, known))
        left, right, score = mapped
    return left, right, score


def sampled_recall(
    base: torch.Tensor, groups: np.ndarray, left: np.ndarray, right: np.ndarray, threshold: float
) -> tuple[int, int]:
    """(n exact pairs, n of these among the pairs (left, right)) of SAMPLE rows, within their groups and with a dot
    product of at least `threshold`. Arguments as in `close_pairs`."""
    n, rows = len(base), torch.linspace(0, max(len(base) - 1, 0), min(SAMPLE, len(base)), dtype=torch.float64).long()
    sample, keys = base[rows].float(), np.zeros(0, np.int64)
    for start in range(0, n, _ROWS):
        part = base[start : start + _ROWS].float()
        i, j = (sample @ part.T >= threshold - 1e-3).nonzero().T
        i, j = rows[i], j + start
        paired = torch.from_numpy(groups[i.numpy()] == groups[j.numpy()]) & (i != j)
        i, j = i[paired], j[paired]
        close = exact_dots(base, i, base, j) >= threshold
        keys = distinct(np.concatenate([keys, _key(i[close].numpy(), j[close].numpy(), n)]))
    parts = (slice(start, start + PAIRS) for start in range(0, len(left), PAIRS))
    return len(keys), sum(int(np.isin(keys, _key(left[part], right[part], n)).sum()) for part in parts)


def among_nearest(left: np.ndarray, right: np.ndarray, score: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """The ascending numbers, in parts, of the pairs in which one row is among the k best partners of the other, by
    (-score, row).

    left, right: i32/i64[P], distinct pairs; score: f32/f64[P]. Memory: 40 bytes a row and 80 PAIRS bytes.
    """
    parts = [slice(start, start + PAIRS) for start in range(0, max(len(left), 1), PAIRS)]
    n = 1 + max(int(side[part].max(initial=-1)) for part in parts for side in (left, right))
    n_pairs = np.zeros(n, np.int64)
    for side, part in ((side, part) for part in parts for side in (left, right)):
        n_pairs += np.bincount(side[part], minlength=n)
    is_crowded = n_pairs > k
    least, last = np.full(n, -np.inf, score.dtype), np.zeros(n, left.dtype)  # score and partner of a row's k-th pair
    ends = np.cumsum(np.where(is_crowded, n_pairs, 0))
    size = max(PAIRS, n >> 2)
    cuts = np.searchsorted(ends, np.arange(size, ends[-1] if n else 0, size))
    for low, high in pairwise([0, *np.unique(cuts), n]):
        wanted = np.zeros(n, bool)
        wanted[low:high] = is_crowded[low:high]
        chosen = list[tuple[np.ndarray, ...]]()
        for own, other, part in ((*sides, part) for part in parts for sides in ((left, right), (right, left))):
            places = part.start + np.flatnonzero(wanted[own[part]])
            chosen.append((own[places], other[places], score[places]))
        row, partner, value = (np.concatenate(columns) for columns in zip(*chosen))
        order = np.lexsort((partner, -value, row))
        kth = order[np.flatnonzero(np.diff(row[order], prepend=-1)) + k - 1]
        least[row[kth]], last[row[kth]] = value[kth], partner[kth]
    for part in parts:
        a, b, value = left[part], right[part], score[part]
        is_near = ((value > least[x]) | (value == least[x]) & (y <= last[x]) for x, y in ((a, b), (b, a)))
        yield part.start + np.flatnonzero(np.logical_or(*is_near))


def _most_differing(threshold: float) -> int:
    """The largest number of sketch bits in which a pair at the threshold differs, but for few exceptions."""
    share = math.acos(threshold) / math.pi
    return math.floor(SKETCH * share + _SPREAD * math.sqrt(SKETCH * share * (1 - share)))


def distinct(keys: np.ndarray) -> np.ndarray:
    """The distinct keys, ascending; sorts `keys` in place. `np.unique` takes four times as long."""
    keys.sort()
    return keys[np.diff(keys, prepend=-1) > 0]


def _key(left: np.ndarray, right: np.ndarray, n: int) -> np.ndarray:
    """One number for each pair of n rows, i64; pairs in either direction have the same."""
    return np.minimum(left, right).astype(np.int64) * n + np.maximum(left, right)


def projection_codes(base: torch.Tensor, n_codes: int, bits: int, seed: int) -> np.ndarray:
    """Codes of each row, each of the signs of `bits` <= 32 random projections: u32[n_codes, N]. The same bits on every
    machine.

    base: f16/f32[N, D] on the CPU, unit rows, D <= 16384.
    """
    n, dims = base.shape
    signs = np.random.default_rng(seed).integers(0, 2, (dims, n_codes * bits)) * 2 - 1
    projections = torch.from_numpy(signs.astype(np.float32))
    place = np.uint32(1) << np.arange(bits, dtype=np.uint32)
    codes = np.zeros((n_codes, n), np.uint32)
    for start in range(0, n, _ROWS):
        rows = (base[start : start + _ROWS].float() * _GRID).round()
        positive = (rows @ projections > 0).numpy().reshape(len(rows), n_codes, bits)
        codes[:, start : start + len(rows)] = (positive * place).sum(2, dtype=np.uint32).T
    return codes


def _candidates(
    code: np.ndarray, groups: np.ndarray, words: np.ndarray, limit: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of rows of one bucket, at most CAP rows apart in it, whose sketches `words`, u64[N, W], differ in at most
    `limit` bits."""
    order = np.lexsort((words[:, 0], groups, code)).astype(np.int32)
    code, group = code[order], groups[order]
    ends = np.flatnonzero(np.append((code[1:] != code[:-1]) | (group[1:] != group[:-1]), True)).astype(np.int32)
    end = np.repeat(ends, np.diff(ends, prepend=-1))
    for first in range(0, len(order), BLOCK):
        rows, last = order[first : first + BLOCK + CAP], end[first : first + BLOCK] - first
        columns, places = np.ascontiguousarray(words[rows].T), np.arange(len(last), dtype=np.int32)
        for step in range(1, CAP + 1):
            places = places[places + step <= last[places]]
            if not places.size:
                break
            differing = sum((np.bitwise_count(word[places] ^ word[places + step]) for word in columns), np.int16(0))
            near = places[differing <= limit]
            yield rows[near], rows[near + step]


def _distinct_parts(parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The keys in parts of about KEYS, each part ascending and without repeats."""
    waiting, n = list[np.ndarray](), 0
    for keys in parts:
        waiting.append(keys)
        n += len(keys)
        if n >= KEYS:
            yield distinct(np.concatenate(waiting))
            waiting, n = [], 0
    if n:
        yield distinct(np.concatenate(waiting))
