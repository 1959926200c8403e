"""HybGRAG: retrieval from a semi-structured knowledge base by a router, two modules and a critic."""

from gpu_rag.methods.method import Method

METHODS = (
    Method(
        "hybgrag", ("passage_vectors", "kb", "kb_name_vectors", "kb_relation_vectors", "kb_texts", "kb_text_vectors"),
        explain="explain:WORDS", tune={"hybgrag": "tune:tune"},
        profiles={"hybgrag-paper": "profiles/hybgrag-paper.toml"}, inexact=("neighbours",), made_for="skb", auto=10,
        order=90,
    ),
    Method("hybgrag-crag", ("passage_vectors",), program="program_crag", inexact=("neighbours",), order=90),
)  # fmt: skip
