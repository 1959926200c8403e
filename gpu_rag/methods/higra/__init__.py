"""HiGraAgent: a dialogue of Seeker and Librarian over a two-layer graph of aligned entities and passages."""

from gpu_rag.methods.method import Method

NEEDS = (
    "passage_vectors",
    "bm25",
    "title_names",
    "entities",
    "higra_graph",
    "higra_search",
    "higra_entity_vectors",
    "higra_relation_vectors",
)
METHODS = (
    Method(
        "higra-retriever", NEEDS, program="retriever", settings={"alignment": "settings:AlignmentSettings"},
        stages="stages:stages", verify="verify:CHECKS", narrow="narrow:NARROW", explain="explain:WORDS",
        report="report", relations="relations:stated", forget="merges:forget", commands={"merges": "command"},
        profiles={
            "higra-paper": "profiles/higra-paper.toml", "higra-no-refinement": "profiles/higra-no-refinement.toml"
        },
        inexact=("ops", "neighbours"), shown=True, auto=60, order=70,
    ),
    Method(
        "dual-agent", ("passage_vectors", "bm25"), program="dual_agent", inexact=("neighbours",), ranks_as="hybrid",
        order=70,
    ),
    Method(
        "higra-agent", NEEDS, program="agent", inexact=("ops", "neighbours"), ranks_as="higra-retriever", order=70
    ),
)  # fmt: skip
