"""The decisions of BubbleRAG that are choices: which relations an evidence graph grows by."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.methods.bubblerag.graph import passages_of
from gpu_rag.models.ask import Choose
from gpu_rag.program.oracle import Known


def stated_by_gold(gold: Known, position: int, relations: Sequence[int]) -> bool:
    """Whether a gold passage states a relation."""
    return not gold.passages.isdisjoint(passages_of(gold.index, [relations[position]]))


EXPAND = Choose("expand", "gpu_rag.methods.bubblerag.prompts:expand", none=True, helps=stated_by_gold)
