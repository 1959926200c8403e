"""`auto`: the default method."""

from gpu_rag.methods.method import Method

NEEDS = (
    "passage_vectors", "relation_vectors", "bm25", "title_names", "entity_names", "entity_vectors", "mentions", "graph",
    "relation_graph",
)  # fmt: skip
METHODS = (Method("auto", NEEDS, inexact=("pagerank", "neighbours"), order=85),)
