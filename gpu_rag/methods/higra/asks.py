"""The decision of HiGraRetriever: which entities to start from."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.methods.higra.graph import passages_of_entities
from gpu_rag.models.ask import Choose
from gpu_rag.program.oracle import Known


def of_gold(gold: Known, position: int, candidates: Sequence[int]) -> bool:
    """Whether a gold passage has an entity."""
    return not gold.passages.isdisjoint(passages_of_entities(gold.index).get(candidates[position], ()))


SEEDS = Choose("seeds", "gpu_rag.methods.higra.prompts:seeds", none=True, helps=of_gold)
