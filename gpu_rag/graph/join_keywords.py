"""Keyword sets of the two sides of a join: made distinct, and split into the common keywords and the rest."""

from __future__ import annotations

from dataclasses import dataclass

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


def split_keywords(left: Ragged, right: Ragged, share: float) -> KeywordSplit:
    """Splits checked keyword lists (any integers, any order, repeats allowed).

    Common are the keywords that most pairs share, at least `share` of all pairs and at most MOST_COMMON keywords.
    """
    _, number = torch.unique(torch.cat([left.values.long(), right.values.long()]), return_inverse=True)
    n_keywords = int(number.max()) + 1 if number.numel() else 0
    of_left, of_right = number[: left.values.shape[0]], number[left.values.shape[0] :]
    keys = [torch.unique(row_of_value(s) * n_keywords + k) for s, k in ((left, of_left), (right, of_right))]
    counts = [torch.bincount(k % n_keywords, minlength=n_keywords) if n_keywords else k for k in keys]
    n_pairs = counts[0] * counts[1]
    common_first = torch.argsort(n_pairs, descending=True, stable=True)
    n_shared = int((n_pairs > 0).sum())
    often = int((n_pairs >= max(share * left.batch * right.batch, 1)).sum())
    n_common = min(often, MOST_COMMON)
    place = torch.empty_like(common_first)
    place[common_first] = torch.arange(n_keywords, device=place.device)
    sides = [_side(k, s.batch, place, n_common, n_shared) for k, s in zip(keys, (left, right), strict=True)]
    return KeywordSplit(sides[0], sides[1], n_common, n_shared - n_common)


def _side(keys: torch.Tensor, n_rows: int, place: torch.Tensor, n_common: int, n_shared: int) -> KeywordSide:
    """One side. keys: row * n_keywords + keyword, each once; place: i64[n_keywords], by falling commonness."""
    n_keywords = max(place.shape[0], 1)
    row, at = keys // n_keywords, place[keys % n_keywords]
    size = torch.bincount(row, minlength=n_rows).int()
    common, rare = at < n_common, (at >= n_common) & (at < n_shared)
    n_rare = max(n_shared - n_common, 1)
    return KeywordSide(
        size,
        ragged_of_keys((row[common] * max(n_common, 1) + at[common]).sort().values, n_rows, n_common),
        ragged_of_keys((row[rare] * n_rare + at[rare] - n_common).sort().values, n_rows, n_rare),
    )


def part_of(lists: Ragged, first: int, last: int) -> Ragged:
    """Lists first..last."""
    offsets = lists.offsets[first : last + 1]
    values = lists.values[int(offsets[0]) : int(offsets[-1])]
    return Ragged(values, offsets - offsets[0])
