"""Settings of HopRAG's index: the section `[hops]`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.settings.ranges import COUNT, NATURAL, Allowed


@dataclass(frozen=True)
class HopSettings:
    """How passages become a graph of pseudo-questions.

    granularity: passage | sentence, what a vertex is. simulate: auto (llm when the LLM is capable, else templates) |
    llm | templates, who writes the questions; tokens: of each reply. edge_budget: edges kept, times n log2 n for n
    vertices. exact_limit: with more in- or out-questions edges are matched among candidates only: `candidates` nearest
    in-questions, and those that share rare keywords. neighbours: auto | faiss | torch, who finds the nearest; auto is
    what `graph.neighbours` names, and where that is auto too faiss from 100,000 in-questions on, where its absence is
    an error, else torch.
    """

    granularity: str = "passage"
    simulate: str = "auto"
    tokens: int = 256
    edge_budget: float = 1.0
    exact_limit: int = 200_000
    candidates: int = 32
    neighbours: str = "auto"


ALLOWED: dict[str, Allowed] = {
    "granularity": ("passage", "sentence"),
    "simulate": ("auto", "llm", "templates"),
    "tokens": COUNT,
    "edge_budget": NATURAL,
    "exact_limit": NATURAL,
    "candidates": COUNT,
    "neighbours": ("auto", "faiss", "torch"),
}
