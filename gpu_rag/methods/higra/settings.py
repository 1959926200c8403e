"""The section [alignment]: settings for merging names into entities, and for linking entities and passages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COSINE, COSINE_DISTANCE, COUNT, NATURAL, SHARE, Range


@dataclass(frozen=True)
class AlignmentSettings(Declared):
    """Refinement of the graph. The defaults are the paper's values, except `windows` and `aliases`."""

    tau: Annotated[float, COSINE_DISTANCE, "radius (cosine distance) of clusters of entities that may be merged"] = 0.15
    windows: Annotated[
        Literal["neighbours", "clusters"],
        "entities that a model sees together: overlapping windows that cover all near pairs, or the paper's clusters",
    ] = "neighbours"
    min_samples: Annotated[
        int, COUNT, "minimum number of neighbours of a core point, itself included, as in DBSCAN"
    ] = 2
    max_cluster: Annotated[
        int, Range(2), "maximum number of entities in a window, and of names merged by it; larger clusters are split"
    ] = 20
    aliases: Annotated[
        Literal["unambiguous", "all"],
        "aliases that merge two entities: only unambiguous ones, or all (the paper's choice)",
    ] = "unambiguous"
    link_radius: Annotated[
        float, COSINE_DISTANCE, "radius (cosine distance) of clusters whose entities a model may relate"
    ] = 0.3
    confidence: Annotated[float, SHARE, "minimum confidence of an inferred relation"] = 0.8
    theta: Annotated[int, COUNT, "names that occur at least this often are linked only where they were extracted"] = 100
    top_words: Annotated[
        int, NATURAL, "names among this many most frequent words are linked only where they were extracted"
    ] = 1000
    refine: Annotated[bool, "false: only the exact merge; no further merging, relations or links"] = True
    decider: Annotated[
        Literal["auto", "llm", "similarity"], "what merges and relates entities; auto: the LLM if it is capable"
    ] = "auto"
    min_cosine: Annotated[float, COSINE, "minimum cosine of two names that `similarity` merges"] = 0.85
