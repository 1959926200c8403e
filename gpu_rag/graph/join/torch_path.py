"""`JoinIndex.best` in torch, on any device: tiles of approximate scores with exact keyword overlaps.

The keywords of both sides are made distinct, and split into common keywords, stored as columns of 0 and 1, and rare
keywords, stored as lists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_rag.graph.common.dots import exact_dots, products, products_slack, takes_f16
from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.ragged import expand, part_of, ragged_of_keys, row_of_value
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

ROWS, COLUMNS = 1024, 4096  # per tile
MAX_COMMON = 1024  # maximum keywords stored as columns of 0 and 1


@dataclass(frozen=True)
class KeywordSide:
    """The keywords of N rows. size: i32[N], distinct keywords; common: Ragged of columns [0, C); rare: Ragged of
    numbers [0, R). Keywords that only one side has are counted in `size` only: they are in no overlap."""

    size: torch.Tensor
    common: Ragged
    rare: Ragged


@dataclass(frozen=True)
class KeywordSplit:
    """Both sides, with the number of common keywords."""

    left: KeywordSide
    right: KeywordSide
    n_common: int


def split_keywords(left: Ragged, right: Ragged) -> KeywordSplit:
    """Split checked keyword lists (any integers, any order, repeats allowed).

    The common keywords are the at most MAX_COMMON keywords that the most pairs share.
    """
    sizes = [_distinct_counts(side) for side in (left, right)]
    right = _only(right, left.values)  # no other keyword is in any overlap
    left = _only(left, right.values)
    _, number = torch.unique(torch.cat([left.values.long(), right.values.long()]), return_inverse=True)
    n_keywords = int(number.max()) + 1 if number.numel() else 0
    of_left, of_right = number[: left.values.shape[0]], number[left.values.shape[0] :]
    keys = [_distinct(row_of_value(s) * n_keywords + k) for s, k in ((left, of_left), (right, of_right))]
    counts = [torch.bincount(k % n_keywords, minlength=n_keywords) if n_keywords else k for k in keys]
    n_pairs = counts[0] * counts[1]
    common_first = torch.argsort(n_pairs, descending=True, stable=True)
    n_shared = int((n_pairs > 0).sum())
    n_common = min(n_shared, MAX_COMMON)
    place = torch.empty_like(common_first)
    place[common_first] = torch.arange(n_keywords, device=place.device)
    sides = [_side(k, size, place, n_common, n_shared) for k, size in zip(keys, sizes, strict=True)]
    return KeywordSplit(sides[0], sides[1], n_common)


def _distinct(keys: torch.Tensor) -> torch.Tensor:
    """The distinct keys, ascending. On the CPU numpy sorts them, because its integer sort is many times as fast."""
    if keys.device.type != "cpu":
        return torch.unique(keys)
    ascending = np.sort(keys.numpy())
    return torch.from_numpy(ascending[np.diff(ascending, prepend=ascending[:1] - 1) != 0])


def _distinct_counts(lists: Ragged) -> torch.Tensor:
    """The number of distinct keywords of each row: i32[N]."""
    row, values = row_of_value(lists), lists.values.long()
    if bool(((row[1:] != row[:-1]) | (values[1:] > values[:-1])).all()):
        return lists.offsets.diff().int()
    low, high = int(values.min()), int(values.max())
    width = high - low + 1
    if width * lists.batch >= 2**62:
        values, low = torch.unique(values, return_inverse=True)[1], 0
        width = int(values.max()) + 1
    return torch.bincount(_distinct(row * width + (values - low)) // width, minlength=lists.batch).int()


def _only(lists: Ragged, wanted: torch.Tensor) -> Ragged:
    """The lists reduced to the keywords in `wanted`."""
    values = lists.values
    if values.device.type == "cpu":
        kept = torch.from_numpy(np.isin(values.numpy(), wanted.numpy()))  # numpy uses a table if the numbers are close
    else:
        kept = torch.isin(values, wanted)
    return Ragged(values[kept], offsets_of(kept)[lists.offsets])


def _side(keys: torch.Tensor, size: torch.Tensor, place: torch.Tensor, n_common: int, n_shared: int) -> KeywordSide:
    """One side. keys: row * n_keywords + keyword, each once; place: i64[n_keywords], rank by number of pairs."""
    n_keywords = max(place.shape[0], 1)
    row, rank = keys // n_keywords, place[keys % n_keywords]
    n_rows = size.shape[0]
    common, rare = rank < n_common, (rank >= n_common) & (rank < n_shared)
    n_rare = max(n_shared - n_common, 1)
    return KeywordSide(
        size,
        ragged_of_keys(_distinct(row[common] * max(n_common, 1) + rank[common]), n_rows, n_common),
        ragged_of_keys(_distinct(row[rare] * n_rare + rank[rare] - n_common), n_rows, n_rare),
    )


def join_by_torch(
    left: torch.Tensor, left_keywords: Ragged, right: torch.Tensor, right_keywords: Ragged,
    exclude: tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Best f64[Nl] and index i64[Nl], on any device."""
    split = split_keywords(left_keywords, right_keywords)
    best = torch.full(left.shape[:1], -torch.inf, dtype=torch.float64, device=left.device)
    index = torch.full(left.shape[:1], -1, dtype=torch.int64, device=left.device)
    slack = products_slack(right)  # it covers the f32 sum with a share
    for j0 in range(0, right.shape[0], COLUMNS):
        j1 = min(j0 + COLUMNS, right.shape[0])
        columns = right[j0:j1] if takes_f16(right) else right[j0:j1].float()
        for i0 in range(0, left.shape[0], ROWS):
            i1 = min(i0 + ROWS, left.shape[0])
            shared = _overlaps(_rows(split.left, i0, i1), _rows(split.right, j0, j1), split.n_common)
            union = split.left.size[i0:i1, None] + split.right.size[None, j0:j1] - shared
            union = union.clamp_(min=1)  # two empty sets: 0 / 1
            scores = products(left[i0:i1], columns) + shared / union
            if exclude is not None:
                scores[exclude[0][i0:i1, None] == exclude[1][None, j0:j1]] = -torch.inf
            reach = torch.maximum(2 * best[i0:i1] - slack, scores.amax(1).double() - 2 * slack)
            row, column = ((scores >= reach[:, None]) & (scores > -torch.inf)).nonzero().T
            dots = exact_dots(left, row + i0, right, column + j0)
            exact = (shared[row, column].double() / union[row, column].double() + dots) / 2
            _keep_best(best[i0:i1], index[i0:i1], row, column + j0, exact)
    return best, index


def _keep_best(
    best: torch.Tensor, index: torch.Tensor, row: torch.Tensor, column: torch.Tensor, score: torch.Tensor
) -> None:
    """Update best and index in place with candidates whose columns are above all earlier columns."""
    old = best.clone()
    best.scatter_reduce_(0, row, score, "amax")
    wins = (score == best[row]) & (score > old[row])
    index[row[wins]] = torch.iinfo(torch.int64).max
    index.scatter_reduce_(0, row[wins], column[wins], "amin")


def _rows(side: KeywordSide, first: int, last: int) -> KeywordSide:
    return KeywordSide(side.size[first:last], part_of(side.common, first, last), part_of(side.rare, first, last))


def _overlaps(left: KeywordSide, right: KeywordSide, n_common: int) -> torch.Tensor:
    """The number of keywords that each pair shares, f32[rows, columns]: whole numbers, so sums are exact."""
    ones = [torch.zeros(side.size.shape[0], n_common, device=side.size.device) for side in (left, right)]
    for matrix, side in zip(ones, (left, right), strict=True):
        matrix[row_of_value(side.common), side.common.values.long()] = 1.0
    shared = ones[0] @ ones[1].T
    listed, order = torch.sort(right.rare.values.long(), stable=True)
    rows = row_of_value(right.rare)[order]
    wanted, owner = left.rare.values.long(), row_of_value(left.rare)
    first, last = torch.searchsorted(listed, wanted), torch.searchsorted(listed, wanted, right=True)
    for entry, place in expand(first, last):
        pair = owner[entry] * shared.shape[1] + rows[place]
        shared.view(-1).index_add_(0, pair, torch.ones_like(pair, dtype=shared.dtype))
    return shared
