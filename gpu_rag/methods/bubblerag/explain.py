"""Wording of BubbleRAG's trace steps, by name; see `gpu_rag.cli.trace_text`."""

WORDS = {
    "pre_retrieval": "passages nearest to the question, before the graph is asked, of {n}",
    "enough": "whether these passages suffice",
    "keywords": "keywords",
    "specialise": "keywords that are tied to others",
    "relax": "keywords in other words",
    "groups": "groups of anchors with their weights",
    "trees/score": "evidence graphs: of {n} trees those of highest score",
    "trees/first": "evidence graphs: the first of {n} trees",
    "trees/alone": "no bubbles met: anchors alone, of {n}",
    "expand_*_*": "evidence graph {0}, hop {1}: relations that lead on, of {n}",
    "bubble_passages": "passages of the evidence graphs and nearest ones, of {n}",
}
