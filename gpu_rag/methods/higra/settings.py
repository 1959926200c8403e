"""The section [alignment]: settings for merging names into entities, and for linking entities and passages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COSINE, COSINE_DISTANCE, COUNT, NATURAL, SHARE, Range


@dataclass(frozen=True)
class AlignmentSettings(Declared):
    """Refinement of the graph. The defaults are the paper's values, except `windows` and `aliases`."""

    tau: Annotated[float, COSINE_DISTANCE, "radius, a cosine distance, of the clusters of names that may be one"] = 0.15
    windows: Annotated[
        Literal["neighbours", "clusters"],
        "what a model sees together: windows that overlap, so that all near pairs are in one; or the paper's clusters",
    ] = "neighbours"
    min_samples: Annotated[int, COUNT, "core size of a cluster"] = 2
    max_cluster: Annotated[
        int, Range(2), "most entities in a window; larger clusters are split; nor do more names than that become one"
    ] = 20
    aliases: Annotated[
        Literal["unambiguous", "all"],
        "aliases that make one of two entities: those that stand for one alone, or all (the paper's)",
    ] = "unambiguous"
    link_radius: Annotated[float, COSINE_DISTANCE, "radius of the clusters whose entities a model may relate"] = 0.3
    confidence: Annotated[float, SHARE, "least confidence of an inferred relation"] = 0.8
    theta: Annotated[int, COUNT, "a name that occurs so often is linked only where it was extracted"] = 100
    top_words: Annotated[int, NATURAL, "the same for a name that is among so many commonest words"] = 1000
    refine: Annotated[bool, "false: the exact merge alone; nothing else is merged, related or searched"] = True
    decider: Annotated[
        Literal["auto", "llm", "similarity"], "who merges and relates; auto: the LLM where it is capable"
    ] = "auto"
    min_cosine: Annotated[float, COSINE, "least cosine of two names that `similarity` merges"] = 0.85
