"""HiGraAgent: a dialogue of Seeker and Librarian over a two-layer graph of aligned entities and passages."""

from gpu_rag.methods.method import Method

NEEDS = (
    "passage_vectors",
    "bm25",
    "entities",
    "higra_graph",
    "higra_search",
    "higra_entity_vectors",
    "higra_relation_vectors",
)
METHODS = (
    Method("higra-retriever", NEEDS, program="retriever", sections=("alignment",)),
    Method("dual-agent", ("passage_vectors", "bm25"), program="dual_agent"),
    Method("higra-agent", NEEDS, program="agent"),
)
