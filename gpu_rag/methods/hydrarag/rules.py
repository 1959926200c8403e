"""Rules in place of a capable model in HydraRAG: topics, depth and order by rules over the question's words.

Topics are names of nodes that stand in the question, and its names by capitals, quotes and "_". A name of common words
alone in small letters ("director", "film genre") is dropped: words of the graph's own relations, nouns of roles, verbs,
stop words; so is one word in small letters beside a longer name ("movies"). Where none is left, the runs of other words
are names that nodes may have in other writing ("john f kennedy"); where there are no such words either, they stay.
The answer stands behind the only topic, or between the first topic and the second. D_predict is the number of relations
that the question names (`n_relations`), with several topics one less. Sub-questions are the plan of `text.decompose`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from gpu_rag.methods.hydrarag.state import ANSWER, MOST_TOPICS, Chain
from gpu_rag.text.keywords import names
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.decomposition.phrases import (
    AUX,
    BASE_VERBS,
    FUNCTION_WORDS,
    QUESTION_WORDS,
    is_person,
    is_relational,
)
from gpu_rag.text.rules.extraction.lexicon import is_verb
from gpu_rag.text.rules.relations.hops import n_relations
from gpu_rag.text.tokens import STOP_WORDS

_WORD = re.compile(r"\w+")
_WORDS_OF_NAMES = re.compile(r"[\w'.&-]*\w")
_AS_ONE = re.compile(r"\w+_\w+")  # "More_Than_Ever"
_FUNCTION = FUNCTION_WORDS | QUESTION_WORDS | AUX | STOP_WORDS


def mentions_by_rules(question: str, known: Sequence[str], common: frozenset[str]) -> list[str]:
    """The topics that a question names, in its order, at most MOST_TOPICS (the longest).

    known: names of nodes that stand in it, normalised; common: words of relations.
    """
    as_one = [normalise_name(word.replace("_", " ")) for word in _AS_ONE.findall(question) if word != word.lower()]
    question = question.replace("_", " ")
    flat = normalise_name(question)
    spans: list[tuple[int, int]] = []
    by_length = _longest_first({*known, *names(question), *as_one} - {""})
    strong = [name for name in by_length if _is_written_as_name(name, question) or not is_common(name, common)]
    sure = [name for name in strong if " " in name or _is_written_as_name(name, question)]
    for name in sure or strong or _longest_first(_runs(flat, common)) or by_length:
        found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", flat)
        if found and all(found.end() <= lo or found.start() >= hi for lo, hi in spans):
            spans.append(found.span())
    return [flat[lo:hi] for lo, hi in sorted(spans[:MOST_TOPICS])]


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=lambda name: (-len(name), name))


def _runs(flat: str, common: frozenset[str]) -> list[str]:
    """The longest runs of words that say no relation: what a question in small letters may name."""
    words = _WORDS_OF_NAMES.findall(flat)
    runs = (list(run) for plain, run in groupby(words, key=lambda word: not is_common(word, common)) if plain)
    return [name for run in runs if (name := " ".join(run)) in flat and any(len(word) > 2 for word in run)]


def _is_written_as_name(name: str, question: str) -> bool:
    """Whether a name has a capital letter in the question, other than the first letter of all."""
    found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", question, re.IGNORECASE)
    return found is not None and any(c.isupper() for c in found.group()[found.start() == 0 :])


def is_common(name: str, common: frozenset[str]) -> bool:
    """Whether a name says nothing but common words."""
    return all(_is_common(word, common) for word in _WORD.findall(name))


def _is_common(word: str, common: frozenset[str]) -> bool:
    single = word.removesuffix("s")
    if word in _FUNCTION or word in common or single in common:
        return True
    return any(is_relational(w) or is_person(w) or w in BASE_VERBS or is_verb(w, "") for w in (word, single))


def chain_by_rules(question: str, topics: Sequence[str], deepest: int, common: frozenset[str] = frozenset()) -> Chain:
    """The skyline indicator by rules. Between the answer and its topics stand "?" for every further step."""
    steps = n_relations(question, topics, common)
    depth = min(max(1, steps if len(topics) < 2 else steps - 1), deepest)
    entities = [*topics[:1], *["?"] * (depth - 1), ANSWER, *topics[1:]]
    return Chain(tuple(entities), tuple("related to" for _ in entities[1:]))
