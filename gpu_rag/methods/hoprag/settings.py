"""The section [hops]: settings for building HopRAG's graph of pseudo-questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import NATURAL


@dataclass(frozen=True)
class HopSettings(Declared):
    """Vertices, questions and edges of the graph."""

    granularity: Annotated[Literal["passage", "sentence"], "what a vertex is"] = "passage"
    simulate: Annotated[
        Literal["auto", "llm", "templates"],
        "who writes the questions; auto: the LLM where it is capable, else templates",
    ] = "auto"
    edge_budget: Annotated[float, NATURAL, "edges kept, times n log2 n for n vertices"] = 1.0
    exact_limit: Annotated[int, NATURAL, "with more in- or out-questions, edges are matched among candidates only"] = (
        200_000
    )
    neighbours: Annotated[
        Literal["auto", "faiss", "torch"],
        "who finds candidates; auto: as `graph.neighbours`, where that is auto too faiss from 100,000 in-questions on",
    ] = "auto"

    tokens: ClassVar[int] = 256  # per reply with questions
    candidates: ClassVar[int] = 32  # nearest in-questions per out-question, beside those that share rare keywords
