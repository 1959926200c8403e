"""A join of two sides in one call, as the tests compare it."""

import torch

from gpu_rag.graph.join import join_index
from gpu_rag.types import Ragged


def hybrid_argmax(
    left: torch.Tensor, left_keywords: Ragged, right: torch.Tensor, right_keywords: Ragged, *,
    exclude: tuple[torch.Tensor, torch.Tensor] | None = None, implementation: str = "auto", threads: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Index and score of the best right row for each left row. exclude: the groups of both sides."""
    groups = exclude or (None, None)
    index = join_index(right, right_keywords, groups=groups[1], implementation=implementation)
    return index.best(left, left_keywords, groups=groups[0], threads=threads)
