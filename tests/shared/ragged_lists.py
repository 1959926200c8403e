"""Lists of lists as the graph ops take them."""

from collections.abc import Sequence
from typing import Any

import torch

from gpu_rag.types import Ragged


def ragged(lists: Sequence[Sequence[Any]], dtype: torch.dtype = torch.int64) -> Ragged:
    """A list a question, none to many values each."""
    offsets = torch.tensor([0, *(len(row) for row in lists)], dtype=torch.int64).cumsum(0)
    return Ragged(torch.tensor([value for row in lists for value in row], dtype=dtype), offsets)


def listed(lists: Ragged) -> list[list[Any]]:
    """The lists as Python has them."""
    offsets = lists.offsets.tolist()
    return [lists.values[a:b].tolist() for a, b in zip(offsets, offsets[1:])]
