"""Fused: the first passages of `ppr` ranked anew by a small model over what several methods say of each; and `auto`."""

from gpu_rag.methods.method import Method

NEEDS = ("passage_vectors", "relation_vectors", "bm25", "entity_vectors", "mentions", "graph")
METHODS = (Method("fused", NEEDS), Method("auto", NEEDS, program="auto"))
