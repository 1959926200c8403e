"""HopRAG (Liu et al. 2025): retrieve, reason and prune on a passage graph whose edges are pseudo-questions."""

from gpu_rag.methods.method import Method

METHODS = (
    Method(
        "hoprag", ("passage_vectors", "bm25", "entities", "hop_edges", "hop_vertex_vectors"),
        settings={"hops": "settings:HopSettings"}, stages="stages:stages", verify="verify:CHECKS",
        narrow="narrow:NARROW", explain="explain:WORDS", report="report",
        profiles={"hoprag-paper": "profiles/hoprag-paper.toml"}, inexact=("neighbours",), auto=50, order=50,
    ),
)  # fmt: skip
