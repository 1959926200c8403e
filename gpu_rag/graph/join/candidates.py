"""Candidates for each row's partner, where comparing every pair is too dear: rows that share a rare word."""

from __future__ import annotations

import torch

from gpu_rag.graph.ragged import check_ascending, check_ragged, expand, row_of_value, small_values
from gpu_rag.types import Ragged


def rare_word_pairs(left: Ragged, right: Ragged, words: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (i, j), i64[P] each, of lists that share one of the `words` rarest words of list i.

    Rare by the number of right lists that hold a word; ties by the lower word; words in more than `longest` lists, and
    in none, are passed over. left, right: Ragged of i32/i64, each list ascending. By (i, word, j); a pair that shares
    two words comes twice. Memory: O(words * longest) a left list.
    """
    for lists, name in ((left, "left words"), (right, "right words")):
        check_ragged(lists, name, device=left.values.device)
        check_ascending(lists, name)
    left, right = small_values(left, right)
    n = 1 + max((int(side.values.max()) for side in (left, right) if side.values.numel()), default=0)
    counts = torch.bincount(right.values.long(), minlength=n)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    holders = row_of_value(right)[torch.argsort(right.values, stable=True)]
    word, row = left.values.long(), row_of_value(left)
    usable = (counts[word] > 0) & (counts[word] <= longest)
    word, row = word[usable], row[usable]
    order = torch.argsort(row * (longest + 1) + counts[word], stable=True)  # words of a list are ascending: ties
    word, row = word[order], row[order]
    rank = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    word, row = word[rank < words], row[rank < words]
    pieces = [(row[entry], holders[place]) for entry, place in expand(starts[word], starts[word + 1])]
    if not pieces:
        return row.new_zeros(0), row.new_zeros(0)
    return torch.cat([i for i, _ in pieces]), torch.cat([j for _, j in pieces])
