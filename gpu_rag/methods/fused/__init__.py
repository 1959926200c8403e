"""Fused: the first passages of `ppr`, reranked by a small model over features from several methods."""

from gpu_rag.methods.method import Method

NEEDS = (
    "passage_vectors", "relation_vectors", "bm25", "title_names", "entity_names", "entity_vectors", "mentions", "graph",
    "relation_graph",
)  # fmt: skip
METHODS = (
    Method(
        "fused", NEEDS, uses=("ppr", "bubblerag"), explain="explain:WORDS",
        tune={"auto": "tune:tune_auto", "fused": "tune:tune_fused"}, inexact=("pagerank", "neighbours"), auto=90,
        order=80,
    ),
)  # fmt: skip
