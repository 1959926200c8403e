"""What a step of a trace says, in words, by its name.

A name may end with how something was chosen, "NAME/similarity", or with "/malformed"; words are looked up without it.
"""

from __future__ import annotations

import re

_SAID = {
    # the baselines, and PageRank
    "search_dense": "passages nearest by vector, of {n}",
    "search_bm25": "passages that share rare words, of {n}",
    "search_hybrid": "passages high in both the vector and the word ranking, of {n}",
    "rank_by_graph": "passages reached in the graph from facts near the question, of {n}",
    "seed_facts": "facts near the question, from which the graph was searched, of {n}",
    # HopRAG
    "hop_entry/*": "passages where the walk begins",
    "hop_prune": "passages visited on the walk, and near, of {n}",
    "hop_*": "hop {0}: where it leads, of {n}",
    # HiGraAgent's retriever
    "seeds": "entities to start from, of {n}",
    "higra_rank": "passages high in the ranking by subgraph and similarity, of {n} entities and passages",
    # the dialogue of HiGraAgent
    "clarify": "the model rewrites the question",
    "decompose": "the model takes the question apart",
    "clarified": "the question, rewritten",
    "plan/rules": "plan, by rules over the question's features",
    "plan/model": "plan, by the model",
    "plan/refused": "the model's plan could not be used",
    "ask_librarian": "the Seeker asks the Librarian",
    "librarian": "the Librarian says",
    "librarian/reply": "the model speaks as the Librarian",
    "seeker/action": "the model says what the Seeker does next",
    "seeker/final": "the model answers as the Seeker",
    "seeker/sent_back": "sent back to the Seeker: references without an answer in them",
    "seeker/rules": "the Seeker goes on by rules",
    "seeker/answer": "the Seeker answers",
    "seeker/forced_answer": "no turn or question is left: the Seeker must answer",
    # BubbleRAG
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
    # HybGRAG
    "hybgrag_route": "the model routes: entities and relations",
    "hybgrag_module": "which module",
    "hybgrag_shown": "what the model is shown of {n} types and relations",
    "hybgrag_router/rules": "the rules route in place of the model",
    "hybgrag_candidates": "entities that the question may mean",
    "hybgrag_action_*": "iteration {0}: the router's action, {n} nodes",
    "hybgrag_validator": "the validator on whether the result answers the question",
    "hybgrag_commentor": "the commentor: faults, of {n}",
    "hybgrag_feedback_*": "iteration {0} is rejected",
    "hybgrag_nodes": "passages of the ranked nodes",
    # HydraRAG
    "topics/model": "the model lists topics",
    "topics": "topics, and the nodes that they may be",
    "analysis/model": "the model chains topics and answer",
    "analysis/refused": "the model's chain could not be used",
    "analysis": "what is asked, from the topics to the answer",
    "sources": "kinds of sources that may know it",
    "source_selector": "kinds of sources for the first phase, of {n}",
    "evidence_subgraph": "the subgraph around the topics",
    "graph/topics_alone": "paths from each topic alone",
    "web_results": "web results to open, of {n}",
    "web_pages": "web pages, of {n} results",
    "sentences": "best sentences of {n} documents and pages",
    "text_paths/model": "the model finds paths in sentences",
    "*/paths": "{0} phase: paths, of {n} by cross-score",
    "*/scores": "{0} phase: scores of these paths, of {n} in all",
    "refine": "the model sums the paths up",
    "follow_up": "the model asks a follow-up question",
    "follow_up/question": "the follow-up question",
    "predict": "the model predicts answers",
    "predictions": "predicted answers as further topics",
    "phase": "the phase that ended the search",
    "verified_by": "kinds of sources that {n} paths rest on",
    # several
    "read": "the model reads the evidence and answers",
    "answer": "the model answers",
}
_HOW = {
    "only": "there is no other",
    "similarity": "by similarity",
    "rank": "by the model's log-probabilities",
    "llm": "by the model",
    "fallback": "by similarity, since the model's replies could not be read",
    "malformed": "the reply could not be read",
}
_PATTERNS = [
    (re.compile(re.escape(name).replace(r"\*", "([a-z0-9]+)")), words) for name, words in _SAID.items() if "*" in name
]


def said(verb: str, n_candidates: int) -> str | None:
    """The words for a step, or None where its name has to do.

    >>> said("expand_1_2/similarity", 40)
    'evidence graph 1, hop 2: relations that lead on, of 40, by similarity'
    """
    words = _words(verb, f"{n_candidates:,}")
    if words is not None:
        return words
    name, _, how = verb.rpartition("/")
    words = _words(name, f"{n_candidates:,}") if how in _HOW else None
    return None if words is None else f"{words}, {_HOW[how]}"


def _words(name: str, n: str) -> str | None:
    if name in _SAID:
        return _SAID[name].format(n=n)
    for pattern, words in _PATTERNS:
        match = pattern.fullmatch(name)
        if match:
            return words.format(*match.groups(), n=n)
    return None
