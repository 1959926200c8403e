"""The section [alignment]: how HiGraAgent's index makes one entity of many names, and links entities and passages."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.settings.ranges import COSINE, COSINE_DISTANCE, COUNT, NATURAL, SHARE, Allowed, Range


@dataclass(frozen=True)
class AlignmentSettings:
    """Refinement of the graph; the defaults are the paper's values.

    coref: who replaces pronouns before extraction: none | fastcoref | llm. tau, min_samples: radius (cosine distance)
    and core size of the clusters of names that may be merged; max_cluster: larger clusters are split. link_radius:
    radius of the clusters whose entities may be related; confidence: least confidence of an inferred relation.
    theta, top_words: a name that occurs so often, or is so common a word, is linked only where it was extracted.
    refine: false leaves out the semantic merge, inferred relations and links by search; the exact merge stays.
    decider: who merges and relates: auto (llm where models.llm is capable) | llm | similarity. min_cosine: least
    cosine of two names that `similarity` merges. *_tokens: room for a reply.
    """

    coref: str = "none"
    tau: float = 0.15
    min_samples: int = 2
    max_cluster: int = 20
    link_radius: float = 0.3
    confidence: float = 0.8
    theta: int = 100
    top_words: int = 1000
    refine: bool = True
    decider: str = "auto"
    min_cosine: float = 0.85
    merge_tokens: int = 512
    link_tokens: int = 1024
    coref_tokens: int = 1024


ALLOWED: dict[str, Allowed] = {
    "coref": ("none", "fastcoref", "llm"),
    "tau": COSINE_DISTANCE,
    "min_samples": COUNT,
    "max_cluster": Range(2),
    "link_radius": COSINE_DISTANCE,
    "confidence": SHARE,
    "theta": COUNT,
    "top_words": NATURAL,
    "decider": ("auto", "llm", "similarity"),
    "min_cosine": COSINE,
    "merge_tokens": COUNT,
    "link_tokens": COUNT,
    "coref_tokens": COUNT,
}
