"""Pairs of rows with keywords and vectors: candidates that share a rare word, exact scores, best partners."""

from __future__ import annotations

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import check_form
from gpu_rag.graph.common.dots import exact_dots
from gpu_rag.graph.ragged import check_ragged, expand, keys_of, small_values
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

_PAIRS = 1 << 19  # pairs whose keywords are compared at a time: limits memory, not the result


def hybrid_scores(
    left: torch.Tensor, left_keywords: Ragged, right: torch.Tensor, right_keywords: Ragged,
    i: torch.Tensor, j: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The score of `JoinIndex.best` of each pair (i[p], j[p]), before it is rounded to f32: f64[P].

    left, right: f16 or f32[Nl or Nr, D], unit rows. left_keywords, right_keywords: Ragged of i32/i64, each list
    ascending, each keyword once. i, j: i64[P]. Exact: the same bits on any device and in any batch. Raises BadInput.
    """
    _check_pairs(left, left_keywords, right, right_keywords, i, j)
    return (jaccard_of_pairs(left_keywords, right_keywords, i, j) + exact_dots(left, i, right, j)) / 2


def hybrid_best_of(
    left: torch.Tensor, left_keywords: Ragged, right: torch.Tensor, right_keywords: Ragged,
    i: torch.Tensor, j: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The best of the given candidates of each left row: index i64[Nl] and score f64[Nl].

    Arguments as in `hybrid_scores`; of equal scores the lowest j, for any order of the pairs. A row without a pair gets
    -1 and -inf.
    """
    scores = hybrid_scores(left, left_keywords, right, right_keywords, i, j)
    best = torch.full(left.shape[:1], -torch.inf, dtype=torch.float64, device=left.device)
    best = best.scatter_reduce(0, i, scores, "amax")
    wins = scores == best[i]
    index = torch.full(left.shape[:1], -1, dtype=torch.int64, device=left.device)
    index[i[wins]] = right.shape[0]
    return index.scatter_reduce(0, i[wins], j[wins], "amin"), best


def jaccard_of_pairs(left: Ragged, right: Ragged, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """Shared / united keywords of left list i[p] and right list j[p], 0 for two empty lists: f64[P]."""
    left, right = small_values(left, right)
    n = 1 + max((int(side.values.max()) for side in (left, right) if side.values.numel()), default=0)
    keys = keys_of(right, n)
    parts = [
        jaccard_by_keys(left, right, keys, n, i[p : p + _PAIRS], j[p : p + _PAIRS]) for p in range(0, len(i), _PAIRS)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=i.device)


def jaccard_by_keys(
    left: Ragged, right: Ragged, keys: torch.Tensor, n: int, i: torch.Tensor, j: torch.Tensor
) -> torch.Tensor:
    """`jaccard_of_pairs` of left keywords below n; keys: i64[Tr], list * n + keyword of the right side, ascending."""
    shared = torch.zeros(i.shape, dtype=torch.float64, device=i.device)
    for pair, place in expand(left.offsets[i], left.offsets[i + 1]):
        wanted = j[pair] * n + left.values[place]
        position = torch.searchsorted(keys, wanted).clamp_(max=max(keys.shape[0] - 1, 0))
        is_shared = keys[position] == wanted if keys.numel() else torch.zeros_like(wanted, dtype=torch.bool)
        shared.index_add_(0, pair, is_shared.double())
    united = left.offsets.diff()[i] + right.offsets.diff()[j] - shared
    return shared / united.clamp_(min=1)


def _check_pairs(
    left: torch.Tensor, left_keywords: Ragged, right: torch.Tensor, right_keywords: Ragged,
    i: torch.Tensor, j: torch.Tensor,
) -> None:  # fmt: skip
    for vectors, lists, rows, name in ((left, left_keywords, i, "left"), (right, right_keywords, j, "right")):
        batch = vectors.shape[0]
        check_ragged(lists, f"{name} keywords", device=vectors.device, ascending=True, batch=batch, owners="vectors")
        check_form(rows, "pairs are not rows", ["i64"], i.shape)
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < lists.batch:
            given = f"{int(rows.min())} to {int(rows.max())} of {lists.batch} {name} rows"
            raise BadInput("a row of a pair is out of range", given=given)
