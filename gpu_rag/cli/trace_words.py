"""Steps of a trace in words, by name. Words for the steps of one method lie in its folder, in `explain.py`.

A name may end with how something was chosen, "NAME/similarity", or with "/malformed"; words are looked up without it.
"""

from __future__ import annotations

import re
from functools import cache

from gpu_rag.methods.registry import parts

WORDS = {
    "search_dense": "passages nearest by vector, of {n}",
    "search_bm25": "passages that share rare words, of {n}",
    "search_hybrid": "passages high in both the vector and the word ranking, of {n}",
    "rank_by_graph": "passages reached in the graph from facts near the question, of {n}",
    "seed_facts": "facts near the question, from which the graph was searched, of {n}",
    "read": "the model reads the evidence and answers",
    "answer": "the model answers",
}
HOW = {
    "only": "there is no other",
    "similarity": "by similarity",
    "rank": "by the model's log-probabilities",
    "llm": "by the model",
    "fallback": "by similarity, since the model's replies could not be read",
    "malformed": "the reply could not be read",
}


@cache
def _words_of_all() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """Words by name, and by pattern where a name has a star."""
    words = WORDS.copy()
    for module in parts("explain"):
        words.update(module.WORDS)
    stars = {name: re.compile(re.escape(name).replace(r"\*", "([a-z0-9]+)")) for name in words if "*" in name}
    return words, [(pattern, words[name]) for name, pattern in stars.items()]


def said(verb: str, n_candidates: int) -> str | None:
    """The words for a step, or None where its name has to do.

    >>> said("expand_1_2/similarity", 40)
    'evidence graph 1, hop 2: relations that lead on, of 40, by similarity'
    """
    words = _words(verb, f"{n_candidates:,}")
    if words is not None:
        return words
    name, _, how = verb.rpartition("/")
    words = _words(name, f"{n_candidates:,}") if how in HOW else None
    return None if words is None else f"{words}, {HOW[how]}"


def _words(name: str, n: str) -> str | None:
    words, patterns = _words_of_all()
    if name in words:
        return words[name].format(n=n)
    found = ((pattern.fullmatch(name), text) for pattern, text in patterns)
    return next((text.format(*match.groups(), n=n) for match, text in found if match), None)
