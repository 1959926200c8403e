"""The hybrid join by the kernel `join_top1`: the best pairs by common keywords, and the pairs that share a rare
keyword.

It is exact. H(i, j), the score by common keywords alone, is at most the score S(i, j), and equal to it if the pair
shares no rare keyword. The kernel gives, within an error e, the largest H of a row in every strip of the right side,
and the second largest. A pair with H more than 2 e below the row's largest H can win only if it shares a rare keyword;
such pairs come from inverted lists. So the winner is among these pairs and the best of the strips, and their scores are
computed exactly. Tiles process the remaining rows: rows for which a strip has a second pair within 2 e of the best, and
parts with so many rare pairs that tiles are faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpu_rag_kernels.join import STRIP, Side, error_of, join_top1

from gpu_rag.graph.join.pairs import hybrid_best_of
from gpu_rag.graph.join.torch_path import KeywordSide, split_keywords
from gpu_rag.graph.ragged import expand, part_of, ragged_of_keys, row_of_value, some_lists
from gpu_rag.types import Ragged

Groups = tuple[torch.Tensor, torch.Tensor] | None
Tiles = Callable[[torch.Tensor, Ragged, torch.Tensor, Ragged, Groups], tuple[torch.Tensor, torch.Tensor]]

ALIGNED = 16  # keywords: Triton loads rows of a multiple of this length as vectors, others number by number
PAIRS = 1 << 30  # scores made at a time: a part of the left side with all right rows
RARE = 256  # assumed cost of a rare pair, in pairs of a tile: computed from bytes (20 KB), not measured


def join_by_kernel(
    left: torch.Tensor, left_keywords: Ragged, right: torch.Tensor, right_keywords: Ragged, exclude: Groups,
    tiles: Tiles, implementation: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Best f64[Nl] and index i64[Nl] of checked inputs. tiles: the join for the rows that the kernel leaves undecided.

    Additional memory: 2 KB a row of both sides for the common keywords, and 16 bytes a rare pair of a part.
    """
    split = split_keywords(left_keywords, right_keywords)
    words = _distinct(left_keywords, right_keywords)
    sides = [
        Side(vectors, _head(side, split.n_common), side.size, exclude[k].long() if exclude else None)
        for k, (vectors, side) in enumerate(((left, split.left), (right, split.right)))
    ]
    rare = torch.sort(split.right.rare.values.long(), stable=True)
    owner = row_of_value(split.right.rare)[rare.indices]
    best = torch.full(left.shape[:1], -torch.inf, dtype=torch.float64, device=left.device)
    index = torch.full(left.shape[:1], -1, dtype=torch.int64, device=left.device)
    undecided = torch.zeros_like(index, dtype=torch.bool)
    step = max(1, PAIRS // max(1, right.shape[0]))
    for i0 in range(0, left.shape[0], step):
        part = slice(i0, min(i0 + step, left.shape[0]))
        wanted = part_of(split.left.rare, part.start, part.stop)
        first = torch.searchsorted(rare.values, wanted.values.long())
        last = torch.searchsorted(rare.values, wanted.values.long(), right=True)
        if int((last - first).sum()) * RARE > (part.stop - part.start) * right.shape[0]:
            undecided[part] = True
            continue
        certain, i, j = _best_of_strips(sides[0].rows(part.start, part.stop), sides[1], implementation)
        undecided[part] = ~certain
        of_value = row_of_value(wanted)
        pairs = [(i, j), *((of_value[entry], owner[place]) for entry, place in expand(first, last))]
        i, j = (torch.cat(ends) for ends in zip(*pairs, strict=True))
        kept = certain[i]
        if exclude is not None:
            kept &= exclude[0][part][i] != exclude[1][j]
        index[part], best[part] = hybrid_best_of(
            left[part], part_of(words[0], part.start, part.stop), right, words[1], i[kept], j[kept]
        )
    rows = undecided.nonzero()[:, 0]
    if rows.numel():
        groups = None if exclude is None else (exclude[0][rows], exclude[1])
        best[rows], index[rows] = tiles(left[rows], some_lists(left_keywords, rows), right, right_keywords, groups)
    return best, index


def _best_of_strips(left: Side, right: Side, implementation: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whether each left row is certain, bool[Nl], and the (left, right) pairs by common keywords that may win."""
    strips = join_top1(left, right, strip=STRIP, implementation=implementation)
    if not right.n:
        none = torch.zeros(0, dtype=torch.int64, device=left.size.device)
        return left.size >= 0, none, none
    reach = (strips.best.amax(1) - 2 * error_of(left.vectors.shape[1]))[:, None]
    certain = ~((strips.second >= reach) & (strips.second > -torch.inf)).any(1)
    i, s = ((strips.best >= reach) & (strips.best > -torch.inf)).nonzero().T
    return certain, i, strips.index[i, s].long()


def _head(side: KeywordSide, n_common: int) -> torch.Tensor:
    """The common keywords of each row, f16[N, C] of 0 and 1. C is a multiple of 16, for loads of 16 bytes."""
    width = -(-n_common // ALIGNED) * ALIGNED
    head = torch.zeros(side.size.shape[0], width, dtype=torch.float16, device=side.size.device)
    head[row_of_value(side.common), side.common.values.long()] = 1
    return head


def _distinct(left: Ragged, right: Ragged) -> tuple[Ragged, Ragged]:
    """The same keywords renumbered from 0, each list ascending, each keyword once."""
    _, number = torch.unique(torch.cat([left.values.long(), right.values.long()]), return_inverse=True)
    n = int(number.max()) + 1 if number.numel() else 1
    of_side = number[: left.values.shape[0]], number[left.values.shape[0] :]
    keys = [torch.unique(row_of_value(s) * n + k) for s, k in zip((left, right), of_side, strict=True)]
    return ragged_of_keys(keys[0], left.batch, n), ragged_of_keys(keys[1], right.batch, n)
