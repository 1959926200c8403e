"""Personalized PageRank over entities and passages, seeded by facts near the question."""

from gpu_rag.methods.method import Method

METHODS = (
    Method(
        "ppr",
        (
            "passage_vectors", "relation_vectors", "bm25", "title_names", "entity_names", "graph",
            "relation_graph",  # read by `fused` and `bubblerag`, which every index of `ppr` serves
        ),
        inexact=("pagerank", "neighbours"),
        default=True, compared=True, shown=True, auto=80, order=40,
    ),
)  # fmt: skip
