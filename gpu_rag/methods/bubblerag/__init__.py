"""BubbleRAG (Pan et al. 2026): small trees that connect the concepts of a question, found by growing bubbles."""

from gpu_rag.methods.method import Method

METHODS = (
    Method(
        "bubblerag",
        (
            "passage_vectors", "bm25", "title_names", "entity_names", "entity_vectors", "relation_vectors",
            "relation_graph",
        ),
        explain="explain:WORDS", profiles={"bubblerag-paper": "profiles/bubblerag-paper.toml"},
        inexact=("neighbours",), shown=True, auto=70, order=60,
    ),
)  # fmt: skip
