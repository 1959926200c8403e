"""`hybrid_argmax` on the CPU: products by torch, overlaps and scores scanned by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpu_rag.graph.backend import run_parts
from gpu_rag.graph.cluster_numba import raw_components, raw_scores
from gpu_rag.graph.dots import Filter, filter_for
from gpu_rag.graph.dots_kernels import BITS, JoinSide, JoinTile, join_tile
from gpu_rag.graph.join import ARITHMETIC, COLUMNS, ROWS, SHARE
from gpu_rag.graph.join_keywords import KeywordSide, part_of, split_keywords
from gpu_rag.graph.ragged import row_of_value
from gpu_rag.types import Ragged

Array = np.ndarray[Any, Any]
FEW = 256  # rows of the left: for no more, products in f32 cost less than measuring the error of bf16 on the right


def join_by_numba(
    left: torch.Tensor, left_keywords: Ragged, right: torch.Tensor, right_keywords: Ragged,
    exclude: tuple[torch.Tensor, torch.Tensor] | None, threads: int, fast: Filter | None = None, share: float = SHARE,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Best f64[Nl] and index i64[Nl] of checked inputs."""
    if left.dtype != right.dtype:
        left, right = left.float(), right.float()
    split = split_keywords(left_keywords, right_keywords, share)
    fast = fast or filter_for(left, right, dtype=torch.float32 if left.shape[0] <= FEW else None)
    slack = fast.slack + ARITHMETIC
    groups = exclude or (torch.zeros(0, dtype=torch.int64),) * 2
    sides = _side(left, split.left, groups[0]), _side(right, _unlisted(split.right), groups[1])
    best = np.full(left.shape[0], -np.inf)
    index = np.full(left.shape[0], -1, np.int64)
    for j0 in range(0, right.shape[0], COLUMNS):
        j1 = min(j0 + COLUMNS, right.shape[0])
        columns = right[j0:j1].to(fast.dtype)
        tile = _tile(split.right, j0, j1, split.n_common, split.n_rare)

        def join(i0: int, columns: torch.Tensor = columns, tile: JoinTile = tile) -> None:
            scores = fast.product(left[i0 : i0 + ROWS].to(fast.dtype), columns)
            join_tile(raw_scores(scores), i0, sides[0], sides[1], tile, slack, best, index)

        run_parts(join, range(0, left.shape[0], ROWS), threads)
    return torch.from_numpy(best), torch.from_numpy(index)


def _unlisted(side: KeywordSide) -> KeywordSide:
    """Sizes alone: the kernel reads the keywords of the right from the tile."""
    none = Ragged(side.rare.values[:0], torch.zeros_like(side.rare.offsets))
    return KeywordSide(side.size, none, none)


def _side(vectors: torch.Tensor, keywords: KeywordSide, group: torch.Tensor) -> JoinSide:
    """What the kernel reads of one side."""
    row, column = row_of_value(keywords.common).numpy(), keywords.common.values.numpy()
    n_words = int(column.max()) // BITS + 1 if len(column) else 1
    words, at = np.unique(row * n_words + column // BITS, return_inverse=True)
    word = np.zeros(len(words), np.uint32)
    np.bitwise_or.at(word, at, np.uint32(1) << (column % BITS).astype(np.uint32))
    return JoinSide(
        raw=raw_components(vectors),
        size=keywords.size.numpy(),
        group=group.long().numpy(),
        rare_offsets=keywords.rare.offsets.numpy(),
        rare=keywords.rare.values.numpy(),
        words_offsets=np.searchsorted(words, np.arange(vectors.shape[0] + 1) * n_words),
        word_at=(words % n_words).astype(np.int32),
        word=word,
    )


def _tile(keywords: KeywordSide, j0: int, j1: int, n_common: int, n_rare: int) -> JoinTile:
    """Inverted lists and masks of the columns j0..j1."""
    common, rare = part_of(keywords.common, j0, j1), part_of(keywords.rare, j0, j1)
    masks = np.zeros((-(-n_common // BITS), j1 - j0), np.uint32)
    column = common.values.numpy()
    bit = np.uint32(1) << (column % BITS).astype(np.uint32)
    np.bitwise_or.at(masks, (column // BITS, row_of_value(common).numpy()), bit)
    order = np.argsort(rare.values.numpy(), kind="stable")
    offsets = np.zeros(n_rare + 1, np.int64)
    offsets[1:] = np.cumsum(np.bincount(rare.values.numpy(), minlength=n_rare))
    return JoinTile(j0, offsets, row_of_value(rare).numpy()[order].astype(np.int32), masks)
