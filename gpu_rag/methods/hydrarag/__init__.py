"""HydraRAG (Tan et al. 2025): paths through all topics of a question, from graphs, documents and the web."""

from gpu_rag.methods.method import Method

NEEDS = ("passage_vectors", "kb", "kb_name_vectors", "kb_relation_vectors", "kb_edge_vectors", "kb_web")
METHODS = (
    Method(
        "hydrarag", NEEDS, explain="explain:WORDS", profiles={"hydrarag-paper": "profiles/hydrarag-paper.toml"},
        inexact=("neighbours",), made_for="kg", auto=9, order=95,
    ),
    Method("hydrarag-e", NEEDS, program="program_e", inexact=("neighbours",), order=95),
)  # fmt: skip
