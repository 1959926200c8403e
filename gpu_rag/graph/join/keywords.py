"""Keyword sets of the two sides of a join: made distinct, and split into the common keywords and the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.ragged import ragged_of_keys, row_of_value
from gpu_rag.types import Ragged

MOST_COMMON = 1024  # keywords at most that are columns of 0 and 1


@dataclass(frozen=True)
class KeywordSide:
    """The keywords of N rows. size: i32[N], distinct keywords; common: Ragged of columns [0, C); rare: Ragged of
    numbers [0, R). Keywords that only one side has count in `size` alone: they are in no overlap."""

    size: torch.Tensor
    common: Ragged
    rare: Ragged


@dataclass(frozen=True)
class KeywordSplit:
    """Both sides, with the number of common and of rare keywords."""

    left: KeywordSide
    right: KeywordSide
    n_common: int
    n_rare: int


def split_keywords(left: Ragged, right: Ragged) -> KeywordSplit:
    """Splits checked keyword lists (any integers, any order, repeats allowed).

    Common are the keywords that most pairs share, at most MOST_COMMON of them.
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
    n_common = min(n_shared, MOST_COMMON)
    place = torch.empty_like(common_first)
    place[common_first] = torch.arange(n_keywords, device=place.device)
    sides = [_side(k, size, place, n_common, n_shared) for k, size in zip(keys, sizes, strict=True)]
    return KeywordSplit(sides[0], sides[1], n_common, n_shared - n_common)


def _distinct(keys: torch.Tensor) -> torch.Tensor:
    """Ascending, each once: on the CPU by numpy, whose sort of integers is many times as fast."""
    if keys.device.type != "cpu":
        return torch.unique(keys)
    held = np.sort(keys.numpy())
    return torch.from_numpy(held[np.diff(held, prepend=held[:1] - 1) != 0])


def _distinct_counts(lists: Ragged) -> torch.Tensor:
    """i32[N]: how many different keywords each row has."""
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
    """The lists without the keywords that are not among `wanted`."""
    values = lists.values
    if values.device.type == "cpu":
        kept = torch.from_numpy(np.isin(values.numpy(), wanted.numpy()))  # a table where the numbers are close
    else:
        kept = torch.isin(values, wanted)
    before = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
    return Ragged(values[kept], before[lists.offsets])


def _side(keys: torch.Tensor, size: torch.Tensor, place: torch.Tensor, n_common: int, n_shared: int) -> KeywordSide:
    """One side. keys: row * n_keywords + keyword, each once; place: i64[n_keywords], by falling commonness."""
    n_keywords = max(place.shape[0], 1)
    row, at = keys // n_keywords, place[keys % n_keywords]
    n_rows = size.shape[0]
    common, rare = at < n_common, (at >= n_common) & (at < n_shared)
    n_rare = max(n_shared - n_common, 1)
    return KeywordSide(
        size,
        ragged_of_keys(_distinct(row[common] * max(n_common, 1) + at[common]), n_rows, n_common),
        ragged_of_keys(_distinct(row[rare] * n_rare + at[rare] - n_common), n_rows, n_rare),
    )


def part_of(lists: Ragged, first: int, last: int) -> Ragged:
    """Lists first..last."""
    offsets = lists.offsets[first : last + 1]
    values = lists.values[int(offsets[0]) : int(offsets[-1])]
    return Ragged(values, offsets - offsets[0])
