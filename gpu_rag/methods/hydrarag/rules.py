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
    COPULAS,
    FUNCTION_WORDS,
    QUESTION_WORDS,
    is_person,
    is_relational,
)
from gpu_rag.text.rules.extraction.lexicon import is_verb
from gpu_rag.text.tokens import STOP_WORDS

_WORD = re.compile(r"\w+")
_WORDS_OF_NAMES = re.compile(r"[\w'.&-]*\w")
_AS_ONE = re.compile(r"\w+_\w+")  # "More_Than_Ever"
_PARTS = re.compile(r"'s\b|\w+|#")
_SHARED = frozenset({"share", "shares", "shared", "same"})
_EMPTY_BEFORE_OF = frozenset(
    {"name", "names", "place", "date", "cause", "kind", "kinds", "type", "types", "form", "same"}
)
_NOUN_BEHIND = frozenset({"year", "years", "date", "dates"})  # "release years"
_NAMING = frozenset({"listed", "called", "named", "known", "titled"})
_COMPANY = frozenset({"co", "together"})  # "co-wrote with", "starred together with"
_BEFORE_NOUN = frozenset({"the", "a", "an", "'s"})
_EDGE = ("", "", "")  # so that every word has three neighbours
_FUNCTION = FUNCTION_WORDS | QUESTION_WORDS | AUX | STOP_WORDS


def relation_words(relations: Iterable[str]) -> frozenset[str]:
    """The words of relations, also without a plural s."""
    words = {word for relation in relations for word in _WORD.findall(relation.casefold())}
    return frozenset(words | {word.removesuffix("s") for word in words})


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


def n_relations(question: str, topics: Sequence[str], common: frozenset[str] = frozenset()) -> int:
    """The number of relations that a question names, at least 1, without its topics. common: words of relations.

    Counted are verbs that are no auxiliaries; "of" and the possessive 's, but for "name of", "place of" and the like;
    "whose"; a role or a relation's plural before "in" or "for" ("actors in"), a role behind a topic ("Jaws actors") or
    behind "for the"; what is asked of the things that the rest describes ("what genres are the films", "in which
    genres"). "share" and "same" stand for two relations, "co-" and "together" for one beside their verb.

    >>> n_relations("who acted in the movies directed by the director of Jaws", ["jaws"])
    3
    """
    flat = normalise_name(question)
    for topic in topics:
        name = "[ _]+".join(map(re.escape, normalise_name(topic.replace("_", " ")).split()))
        flat = re.sub(rf"(?<!\w){name}(?!\w)", " # ", flat) if name else flat
    words = [*_EDGE, *_PARTS.findall(flat), *_EDGE]
    places = range(len(_EDGE), len(words) - len(_EDGE))
    found = sum(_says_relation(words, i, common) or _is_asked(words, i, common) for i in places)
    return max(1, found + 2 * any(w in _SHARED for w in words) + any(w in _COMPANY for w in words))


def _says_relation(words: Sequence[str], i: int, common: frozenset[str]) -> bool:
    word, before, after = words[i], words[i - 1], words[i + 1]
    if word == "of":
        return before not in _EMPTY_BEFORE_OF and words[i - 2] != "same"
    if word == "'s":
        return before not in QUESTION_WORDS  # "who's"
    if word == "whose":
        return True
    if word in AUX or word in _SHARED or word in _NAMING or word in _NOUN_BEHIND:
        return False
    if _is_role(word) and (before == "#" or (words[i - 2], before) == ("for", "the")):
        return True
    if word.endswith("s") and after in ("in", "for") and (_is_role(word) or word[:-1] in common):
        return True
    if after in _NOUN_BEHIND:  # "release dates of" is counted by its "of"
        return words[i + 2] != "of" and _is_verb(word, "")
    by_the_same = tuple(words[i + 1 : i + 4]) == ("by", "the", "same")
    return before not in _BEFORE_NOUN and not by_the_same and _is_verb(word, before)


def _is_verb(word: str, before: str) -> bool:
    return word in BASE_VERBS or is_verb(word, before)


def _is_role(word: str) -> bool:
    return is_person(word) or (word.endswith("s") and is_person(word[:-1]))


def _is_asked(words: Sequence[str], i: int, common: frozenset[str]) -> bool:
    """Whether a word is a property asked of other things: "what genres are the films ..", "what gender is X's father",
    ".. were in which genres". Not where it names the thing itself: "what city is the capital of X"."""
    word, before = words[i], words[i - 1]
    if before not in ("what", "which"):
        return False
    if words[i - 2] == "in" and words[i - 3] in COPULAS:
        return True
    if word.endswith("s") and words[i + 1] in ("are", "were") and words[i + 2] == "the":
        return True
    return word in common and words[i + 1] in COPULAS and tuple(words[i + 2 : i + 4]) == ("#", "'s")
