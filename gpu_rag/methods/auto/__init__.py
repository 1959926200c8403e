"""`auto`: the default method."""

from gpu_rag.methods.method import Method

NEEDS = ("passage_vectors", "relation_vectors", "bm25", "entity_vectors", "mentions", "graph")
METHODS = (Method("auto", NEEDS, inexact=("pagerank", "neighbours"), order=85),)
