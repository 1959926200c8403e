"""HopRAG (Liu et al. 2025): retrieve, reason and prune on a passage graph whose edges are pseudo-questions."""

from gpu_rag.methods.method import Method

METHODS = (
    Method("hoprag", ("passage_vectors", "bm25", "entities", "hop_edges", "hop_vertex_vectors"), sections=("hops",)),
)
