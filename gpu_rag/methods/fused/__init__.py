"""Fused: the first passages of `ppr` ranked anew by a small model over what several methods say of each; and `auto`."""

from gpu_rag.methods.method import Method

NEEDS = ("passage_vectors", "relation_vectors", "bm25", "entity_vectors", "mentions", "graph")
USES = ("ppr", "bubblerag")
INEXACT = ("pagerank", "neighbours")
METHODS = (
    Method(
        "fused", NEEDS, USES, explain="explain:WORDS", tune={"auto": "tune:tune_auto", "fused": "tune:tune_fused"},
        inexact=INEXACT, auto=90, order=80,
    ),
    Method("auto", NEEDS, USES, program="auto", inexact=INEXACT, order=80),
)  # fmt: skip
