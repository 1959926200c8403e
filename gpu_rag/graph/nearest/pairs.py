"""Close pairs of rows: all of them, or most of them without comparing all pairs (`near_pairs` picks).

Many rows on a CPU are compared only if hashed projections make them candidates, which are then scored exactly. Whether
a pair is a candidate depends only on its two rows and on the size class of N, never on order, device or other rows, up
to the cap on very large buckets. For unit rows x, y at the angle t, a signed projection is equal for both with
probability p = 1 - t / pi (Charikar, "Similarity estimation techniques from rounding algorithms", 2002), so
    P(candidate) = 1 - (1 - p^k)^L    for L tables of k bits each.
Rows are rounded to integers and projections are -1 or 1: every sum is exact in f32, and bits agree on every machine.
With such projections, rows of a few large components are equal more often than p: more are found, for more candidates.
A second hash of SKETCH bits removes most candidates before their vectors are read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.dots import check_unit_rows, exact_dots, products, products_slack
from gpu_rag.lazy import torch

EXACT_ROWS = 150_000  # up to this number, and always on a GPU, all rows are compared with each other
TILE = {"cpu": 2048, "cuda": 8192}  # rows and columns compared at a time
FEW = 0.2  # share of new rows; above, comparing all rows, each pair once, is faster
RECALL = 0.9  # recall of pairs at the threshold; closer pairs are found more often
BUCKET = 12  # mean rows of a bucket
MAX_TABLES = 128
TOGETHER = 16  # tables whose codes are in memory at once
CAP = 256  # a row is compared with at most this number of following rows of its bucket
SKETCH = 256  # bits
TABLE_COST = 115.0  # cost of a row in one table, in exact comparisons of two rows
CLOSE_COST = 0.0016  # the same for each other row, because candidates that are near grow by the square; times the root
# of the threshold's angle, measured at .8 and .99: fewer pass the sketch at a higher threshold
_SPREAD = 3.3  # allowed sketch distance of a pair at the threshold, in standard deviations
_GRID = 1024.0  # components are multiples of 1 / _GRID: sums of 16,384 of them are exact in f32
_ROWS = 1 << 12  # rows projected at a time
# These four bound memory or disk, and do not change the result:
BLOCK = 1 << 18  # rows of a table that are compared at a time
KEYS = 1 << 20  # candidates in memory at a time
SPILLED = 32  # candidates on disk, for each row
PAIRS = 1 << 21  # pairs of the rows whose nearest are chosen at a time
SAMPLE = 256  # rows whose exact pairs are compared with those found

_PAIR = np.dtype([("left", np.int32), ("right", np.int32), ("score", np.float32)])
RowPairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ascending pairs of rows, the first the lower one, and their scores f32[P]."""


def plan(n: int, threshold: float) -> tuple[int, int]:
    """(bits, tables) for n rows: buckets of BUCKET rows on average, and RECALL at the threshold."""
    bits = min(max(math.ceil(math.log2(max(n, 2) / BUCKET)), 4), 30)
    equal = (1 - math.acos(threshold) / math.pi) ** bits
    return bits, min(math.ceil(math.log(1 - RECALL) / math.log1p(-min(max(equal, 1e-9), 1 - 1e-9))), MAX_TABLES)


def comparisons(n: float, threshold: float) -> float:
    """Predicted cost of finding the close pairs of one of n rows on a CPU, in exact comparisons of two rows."""
    close_cost = CLOSE_COST * math.sqrt(math.acos(threshold)) * n
    return n if n <= EXACT_ROWS else plan(int(n), threshold)[1] * (TABLE_COST + close_cost)


def near_pairs(
    base: torch.Tensor,
    threshold: float,
    *,
    groups: np.ndarray | None = None,
    kept: RowPairs | None = None,
    is_new: np.ndarray | None = None,
    k: int | None = None,
    dtype: Any = np.float32,
    advance: Callable[[int], None] = lambda rows: None,
    folder: Path | None = None,
) -> tuple[RowPairs, tuple[int, int] | None]:
    """All pairs of rows of one group whose dot product, rounded to `dtype`, is at least `threshold`; and None. Above
    EXACT_ROWS rows on a CPU: most pairs, see `close_pairs`, and their `sampled_recall`.

    base: f16/f32[N, D], rows of length 1 or 0. groups: u64[N], default one group. kept: the pairs of an earlier run of
    all rows that are not is_new, bool[N]; then only pairs of new rows are searched, unless there are many. k: pairs of
    rows that have k better partners each may be missing (`among_nearest` chooses the same); it bounds memory. dtype:
    f32 or f64; candidates have f32. advance: called with rows that are done, N in all. Ascending; the same on every
    device. Raises BadInput.
    """
    n, groups = len(base), np.zeros(len(base), np.uint64) if groups is None else groups
    if base.device.type == "cpu" and n > EXACT_ROWS:
        close = close_pairs(base, groups, threshold, advance, folder)
        return close, sampled_recall(base, groups, *close[:2], threshold)
    check_unit_rows(base, "base")
    if kept is None or is_new is None or is_new.mean() >= FEW:
        kept, is_new = None, np.ones(n, bool)
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    may_pair = sizes[group] > 1
    rows, is_old, size = np.flatnonzero(is_new & may_pair), ~is_new & may_pair, TILE.get(base.device.type, 2048)
    advance(n - len(rows))
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, dtype)
    near, found = kept or nothing, list[RowPairs]()
    for part in np.array_split(rows, range(size, len(rows), size)) if len(rows) else ():
        starts = (j for j in range(0, n, size) if j + size > part[0] or is_old[j : j + size].any())
        for a, b in _nearly_close(base, part, starts, size, threshold):
            once = (group[a] == group[b]) & ((a < b) | is_old[b])
            a, b = a[once], b[once]
            i, j = (torch.from_numpy(side).to(base.device) for side in (a, b))
            score = exact_dots(base, i, base, j).cpu().numpy().astype(dtype)
            is_close = score >= dtype(threshold)
            found.append((np.minimum(a, b)[is_close], np.maximum(a, b)[is_close], score[is_close]))
        if k is not None and sum(len(score) for *_, score in found) > PAIRS:
            near = joined([near, *found])
            best = np.concatenate([*among_nearest(near[0], near[1], near[2], k)])
            near, found = tuple(column[best] for column in near), []  # type: ignore[assignment]
        advance(len(part))
    return joined([near, *found]), None


def _nearly_close(
    base: torch.Tensor, rows: np.ndarray, starts: Iterable[int], size: int, threshold: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of `rows` and of `size` rows from each start, i64[P] each, whose fast product may be of `threshold`."""
    left = base[torch.from_numpy(rows).to(base.device)]
    if pick_implementation(base.device, op="near_pairs") == "numba":
        from gpu_rag.graph.common.low_precision import fastest_dtype, low_precision_rows, products_of

        dtype = fastest_dtype()
        fast = low_precision_rows(left, dtype)
        tiles = ((j, *products_of(low_precision_rows(base[j : j + size], dtype), fast)) for j in starts)
    else:
        tiles = ((j, products(base[j : j + size], left), products_slack(left)) for j in starts)
    for start, scores, slack in tiles:
        hits = (scores >= threshold - slack).flatten()  # NumPy finds the few True faster than torch
        found = np.flatnonzero(hits.numpy()) if hits.device.type == "cpu" else hits.nonzero()[:, 0].cpu().numpy()
        b, a = np.divmod(found, len(rows))
        yield rows[a], b + start


def joined(parts: Iterable[RowPairs]) -> RowPairs:
    """The distinct pairs of all parts, ascending; a pair has one score."""
    left, right, score = (np.concatenate(columns) for columns in zip(*parts))
    key = left.astype(np.int64) << 32 | right
    order = np.argsort(key, kind="stable")  # fast if most are sorted
    first = order[np.flatnonzero(np.diff(key[order], prepend=-1))]
    return left[first], right[first], score[first]


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
        expected = "0 < threshold <= 1, D <= 16384, a group a row"
        raise BadInput("these rows cannot be compared", given=given, expected=expected)
    bits, tables = plan(len(base), threshold)
    words = np.ascontiguousarray(projection_codes(base, SKETCH // 32, 32, seed=0).T).view(np.uint64)
    limit = _most_differing(threshold)

    def candidates() -> Iterator[np.ndarray]:
        for first in range(0, tables, TOGETHER):
            codes = projection_codes(base, min(TOGETHER, tables - first), bits, seed=1 + first)
            for number, code in enumerate(codes, first):
                yield from (_key(*pair, len(base)) for pair in _candidates(code, groups, words, limit))
                advance(len(base) * (number + 1) // tables - len(base) * number // tables)
            del codes, code  # before the next ones are made

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    known = np.zeros(0, _PAIR)
    for runs in _rounds(candidates(), SPILLED * len(base), folder):
        known = _spooled(_joined(known, runs, base, threshold), _PAIR, folder)
        runs.clear()  # their files go before the next ones are made
    return known["left"], known["right"], known["score"]


def _rounds(candidates: Iterable[np.ndarray], size: int, folder: Path | None) -> Iterator[list[np.ndarray]]:
    """About `size` candidates at a time, in mapped files of about KEYS, each ascending and without repeats."""
    waiting, n, runs = list[np.ndarray](), 0, list[np.ndarray]()
    for keys in chain(candidates, (None,)):  # None: the end
        waiting += [] if keys is None else [keys]
        n += 0 if keys is None else len(keys)
        if n >= KEYS or (n and keys is None):
            runs.append(_spooled([distinct(np.concatenate(waiting))], np.dtype(np.int64), folder))
            waiting, n = [], 0
        if runs and (keys is None or sum(map(len, runs)) >= size):
            yield runs
            runs = []


def _spooled(parts: Iterable[np.ndarray], dtype: np.dtype[Any], folder: Path | None) -> np.ndarray:
    """The parts as one array, mapped from a file without a name."""
    with TemporaryFile(dir=folder) as file:
        for part in parts:
            file.write(part.view(np.uint8).data)
        file.flush()
        return np.memmap(file, dtype, "r") if file.tell() else np.zeros(0, dtype)


def _joined(known: np.ndarray, runs: list[np.ndarray], base: torch.Tensor, threshold: float) -> Iterator[np.ndarray]:
    """The known close pairs and those among candidates, as ascending parts. runs: ascending keys of candidates."""
    n, stride = len(base), max(KEYS >> 8, 1)
    some = known[::stride]
    sample = np.concatenate([_key(some["left"], some["right"], n), *(run[::stride] for run in runs)])
    edges = np.unique([0, *np.sort(sample)[:: KEYS // stride] // n, n])  # rows between which lie about KEYS of both
    cuts = [np.searchsorted(run, edges * n) for run in runs]
    ends = [bisect_left(known["left"], row) for row in edges]
    for k in range(len(edges) - 1):
        old = known[ends[k] : ends[k + 1]]
        key = _key(old["left"], old["right"], n)
        new = distinct(np.concatenate([run[cut[k] : cut[k + 1]] for run, cut in zip(runs, cuts)]))
        new = new[np.append(key, -1)[np.searchsorted(key, new)] != new]  # a close pair is a candidate in most tables
        i, j = (torch.from_numpy(rows) for rows in np.divmod(new, n))
        score = exact_dots(base, i, base, j).float().numpy()
        is_close = score >= np.float32(threshold)
        new, score = new[is_close], score[is_close]
        made = np.empty(len(new), _PAIR)
        made["left"], made["right"], made["score"] = *np.divmod(new, n), score
        yield np.insert(old, np.searchsorted(key, new), made)


def sampled_recall(
    base: torch.Tensor, groups: np.ndarray, left: np.ndarray, right: np.ndarray, threshold: float
) -> tuple[int, int]:
    """(n exact pairs, n of these among the pairs (left, right)) of SAMPLE rows, within their groups and with a dot
    product of at least `threshold`. Arguments as in `close_pairs`."""
    n, keys = len(base), np.zeros(0, np.int64)
    rows = torch.linspace(0, max(n - 1, 0), min(SAMPLE, n), dtype=torch.float64).long().numpy()
    for a, b in _nearly_close(base, rows, range(0, n, _ROWS), _ROWS, threshold):
        paired = (groups[a] == groups[b]) & (a != b)
        a, b = a[paired], b[paired]
        close = (exact_dots(base, torch.from_numpy(a), base, torch.from_numpy(b)) >= threshold).numpy()
        keys = distinct(np.concatenate([keys, _key(a[close], b[close], n)]))
    parts = (slice(start, start + PAIRS) for start in range(0, len(left), PAIRS))
    return len(keys), sum(int(np.isin(keys, _key(left[part], right[part], n)).sum()) for part in parts)


def among_nearest(left: np.ndarray, right: np.ndarray, score: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """The ascending numbers, in parts, of the pairs in which one row is among the k best partners of the other, by
    (-score, row).

    left, right: i32/i64[P], distinct pairs; score: f32/f64[P]. Memory: 40 bytes a row and 80 PAIRS bytes.
    """
    parts = [slice(start, start + PAIRS) for start in range(0, max(len(left), 1), PAIRS)]

    def both_ways(part: slice) -> tuple[np.ndarray, ...]:
        a, b = left[part], right[part]
        return np.concatenate([a, b]), np.concatenate([b, a]), np.tile(score[part], 2)

    n = 1 + max(int(side[part].max(initial=-1)) for part in parts for side in (left, right))
    n_pairs = sum((np.bincount(both_ways(part)[0], minlength=n) for part in parts), np.zeros(n, np.int64))
    is_crowded = n_pairs > k
    least, last = np.full(n, -np.inf, score.dtype), np.zeros(n, left.dtype)  # score and partner of a row's k-th pair
    ends = np.cumsum(np.where(is_crowded, n_pairs, 0))
    size = max(PAIRS, n >> 2)
    cuts = np.searchsorted(ends, np.arange(size, ends[-1] if n else 0, size))
    for low, high in pairwise([0, *np.unique(cuts), n]):
        wanted = np.zeros(n, bool)
        wanted[low:high] = is_crowded[low:high]
        chosen = ([column[wanted[own]] for column in (own, *others)] for own, *others in map(both_ways, parts))
        row, partner, value = (np.concatenate(columns) for columns in zip(*chosen))
        order = np.lexsort((partner, -value, row))
        kth = order[np.flatnonzero(np.diff(row[order], prepend=-1)) + k - 1]
        least[row[kth]], last[row[kth]] = value[kth], partner[kth]
    for part in parts:
        own, partner, value = both_ways(part)
        is_near = (value > least[own]) | (value == least[own]) & (partner <= last[own])
        yield part.start + np.flatnonzero(is_near.reshape(2, -1).any(0))


def _most_differing(threshold: float) -> int:
    """The largest number of sketch bits in which a pair at the threshold differs, but for few exceptions."""
    share = math.acos(threshold) / math.pi
    return math.floor(SKETCH * share + _SPREAD * math.sqrt(SKETCH * share * (1 - share)))


def distinct(keys: np.ndarray) -> np.ndarray:
    """The distinct keys, ascending; sorts `keys` in place. `np.unique` takes four times as long."""
    keys.sort()
    return keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]  # faster than np.diff


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
