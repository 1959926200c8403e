"""The decision of HopRAG: the out-edge of a passage to follow."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.methods.hoprag.batched import OutEdge, vertex_passage
from gpu_rag.models.ask import Choose
from gpu_rag.program.oracle import Known


def nearest(entry: str, edges: Sequence[OutEdge]) -> list[int]:
    """The nearest out-edge; none after a random walk, which has already followed all edges."""
    return [] if entry == "walk" else [0]


def leads_to_gold(gold: Known, position: int, edges: Sequence[OutEdge]) -> bool:
    """Whether an out-edge ends at a gold passage."""
    return vertex_passage(gold.index, edges[position].target) in gold.passages


HOP = Choose("hop", "gpu_rag.methods.hoprag.prompts:choose", none=True, rule=nearest, helps=leads_to_gold)
