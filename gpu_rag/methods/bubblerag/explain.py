"""BubbleRAG's steps of a trace in words, by name; see `gpu_rag.cli.trace_text`."""

WORDS = {
    "pre_retrieval": "passages nearest to the question, before the graph is asked, of {n}",
    "enough": "whether these passages suffice",
    "keywords/rules": "keywords, by rules",
    "keywords/model": "keywords, by the model",
    "bubblerag_keywords": "the model lists keywords",
    "bubblerag_specialise": "the model ties keywords to one another",
    "specialised": "keywords that were tied to others",
    "bubblerag_relax": "the model words keywords as the passages do",
    "relaxed": "keywords in other words",
    "bubblerag_groups": "the model groups anchors",
    "groups/rules": "groups of anchors with their weights, by rules out of {n} candidates",
    "groups/model": "groups of anchors with their weights, by the model out of {n} candidates",
    "trees/score": "evidence graphs: of {n} trees those of highest score",
    "trees/first": "evidence graphs: the first of {n} trees",
    "trees/alone": "no bubbles met: anchors alone, of {n}",
    "expand_*_*": "evidence graph {0}, hop {1}: relations that lead on, of {n}",
    "bubble_passages": "passages of the evidence graphs and nearest ones, of {n}",
}
