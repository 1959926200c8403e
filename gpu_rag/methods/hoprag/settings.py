"""The section [hops]: settings for building HopRAG's graph of pseudo-questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import NATURAL


@dataclass(frozen=True)
class HopSettings(Declared):
    """Vertices, questions and edges of the graph."""

    granularity: Annotated[Literal["passage", "sentence"], "unit of text that a vertex stands for"] = "passage"
    simulate: Annotated[
        Literal["auto", "llm", "templates"],
        "how questions are written; auto: by the LLM if it is capable, else by templates",
    ] = "auto"
    edge_budget: Annotated[float, NATURAL, "number of edges kept, as a multiple of n log2 n for n vertices"] = 1.0
    exact_limit: Annotated[
        int, NATURAL, "above this many in- or out-questions, a CPU matches edges among candidates only"
    ] = 200_000

    tokens: ClassVar[int] = 256  # maximum tokens of a reply with questions
