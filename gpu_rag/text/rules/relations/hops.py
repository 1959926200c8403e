"""Count the relations that a question names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.decomposition.phrases import AUX, BASE_VERBS, COPULAS, QUESTION_WORDS, is_person
from gpu_rag.text.rules.extraction.lexicon import is_verb

_WORD = re.compile(r"\w+")
_PARTS = re.compile(r"'s\b|\w+|#")
_EMPTY_BEFORE_OF = frozenset({"name", "names", "place", "date", "cause", "kind", "kinds", "type", "types", "form"})
_NAMING = frozenset({"listed", "called", "named", "known", "titled"})
_BEFORE_NOUN = frozenset({"the", "a", "an", "'s"})
_EDGE = ("", "", "")  # so that every word has three neighbours


def relation_words(relations: Iterable[str]) -> frozenset[str]:
    """The words of relation names, with and without a final s."""
    words = {word for relation in relations for word in _WORD.findall(relation.casefold())}
    return frozenset(words | {word.removesuffix("s") for word in words})


def n_relations(question: str, topics: Sequence[str], common: frozenset[str] = frozenset()) -> int:
    """The number of relations that a question names, without its topics; at least 1. common: words of relation names.

    It counts: verbs that are no auxiliaries; "of" and the possessive 's, except in "name of", "place of" and the like;
    "whose"; a role or a relation's plural before "in" or "for" ("actors in"); a role after a topic ("Jaws actors"); and
    a property of the things that the rest describes ("what genres are the films").

    >>> n_relations("who acted in the movies directed by the director of Jaws", ["jaws"])
    3
    """
    flat = normalise_name(question)
    for topic in topics:
        name = "[ _]+".join(map(re.escape, normalise_name(topic.replace("_", " ")).split()))
        flat = re.sub(rf"(?<!\w){name}(?!\w)", " # ", flat) if name else flat
    words = [*_EDGE, *_PARTS.findall(flat), *_EDGE]
    places = range(len(_EDGE), len(words) - len(_EDGE))
    number = sum(_says_relation(words, i, common) or _is_asked(words, i, common) for i in places)
    return max(1, number)


def _says_relation(words: Sequence[str], i: int, common: frozenset[str]) -> bool:
    word, before, after = words[i], words[i - 1], words[i + 1]
    if word == "of":
        return before not in _EMPTY_BEFORE_OF
    if word == "'s":
        return before not in QUESTION_WORDS  # "who's"
    if word == "whose":
        return True
    if word in AUX or word in _NAMING:
        return False
    if _is_role(word) and before == "#":
        return True
    if word.endswith("s") and after in ("in", "for") and (_is_role(word) or word[:-1] in common):
        return True
    return before not in _BEFORE_NOUN and _is_verb(word, before)


def _is_verb(word: str, before: str) -> bool:
    return word in BASE_VERBS or is_verb(word, before)


def _is_role(word: str) -> bool:
    return is_person(word) or (word.endswith("s") and is_person(word[:-1]))


def _is_asked(words: Sequence[str], i: int, common: frozenset[str]) -> bool:
    """Whether a word is asked of other things ("what genres are the films"), not of itself ("what city is")."""
    word, before = words[i], words[i - 1]
    if before not in ("what", "which"):
        return False
    if word.endswith("s") and words[i + 1] in ("are", "were") and words[i + 2] == "the":
        return True
    return word in common and words[i + 1] in COPULAS and tuple(words[i + 2 : i + 4]) == ("#", "'s")
