"""What stands in for a capable model in HydraRAG: topics, depth and order by rules over the question's words.

Topics are names of nodes that stand in the question, and its names by capitals and quotes. A name made of common words
alone in small letters ("director", "film genre") is dropped: words of the graph's own relations, nouns of roles, verbs,
stop words; so is one word in small letters beside a longer name ("movies"). Where nothing else is left they stay.
The answer stands behind the only topic, or between the first topic and the second. D_predict is the number of relations
that the question names (`n_relations`), with several topics one less. Sub-questions are the plan of `text.decompose`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpu_rag.methods.hydrarag_params import MOST_TOPICS
from gpu_rag.methods.hydrarag_state import ANSWER, Chain
from gpu_rag.text.decompose import plan_by_rules
from gpu_rag.text.decompose_words import AUX, BASE_VERBS, FUNCTION_WORDS, QUESTION_WORDS, is_person, is_relational
from gpu_rag.text.names import names
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.patterns_verbs import is_verb
from gpu_rag.text.tokens import STOP_WORDS

_WORD = re.compile(r"\w+")
_PARTS = re.compile(r"'s\b|\w+|#")
_SHARED = frozenset({"share", "shares", "shared", "same"})
_EMPTY_BEFORE_OF = frozenset(
    {"name", "names", "place", "date", "cause", "kind", "kinds", "type", "types", "form", "same"}
)
_NOUN_BEHIND = frozenset({"year", "years", "date", "dates"})  # "release years"
_FUNCTION = FUNCTION_WORDS | QUESTION_WORDS | AUX | STOP_WORDS


def relation_words(relations: Iterable[str]) -> frozenset[str]:
    """The words of relations, also without a plural s."""
    words = {word for relation in relations for word in _WORD.findall(relation.casefold())}
    return frozenset(words | {word.removesuffix("s") for word in words})


def mentions_by_rules(question: str, known: Sequence[str], common: frozenset[str]) -> list[str]:
    """The topics that a question names, in its order, at most MOST_TOPICS (the longest).

    known: names of nodes that stand in it, normalised; common: words of relations.
    """
    flat = normalise_name(question.replace("_", " "))
    spans: list[tuple[int, int]] = []
    by_length = sorted({*known, *names(question)}, key=lambda name: (-len(name), name))
    strong = [name for name in by_length if _is_written_as_name(name, question) or not is_common(name, common)]
    sure = [name for name in strong if " " in name or _is_written_as_name(name, question)]
    for name in sure or strong or by_length:
        found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", flat)
        if found and all(found.end() <= lo or found.start() >= hi for lo, hi in spans):
            spans.append(found.span())
    return [flat[lo:hi] for lo, hi in sorted(spans[:MOST_TOPICS])]


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


def chain_by_rules(question: str, topics: Sequence[str], deepest: int) -> Chain:
    """The skyline indicator by rules. Between the answer and its topics stand "?" for every further step."""
    steps = n_relations(question, topics)
    depth = min(max(1, steps if len(topics) < 2 else steps - 1), deepest)
    entities = [*topics[:1], *["?"] * (depth - 1), ANSWER, *topics[1:]]
    return Chain(tuple(entities), tuple("related to" for _ in entities[1:]))


def n_relations(question: str, topics: Sequence[str]) -> int:
    """How many relations a question names, at least 1; its topics are taken out before.

    Counted are verbs that are no auxiliaries; "of" and the possessive 's, but for "name of", "place of" and the like;
    "whose"; a plural role before "in" or "for" ("actors in"); and "share" or "same", which stand for two.

    >>> n_relations("who acted in the movies directed by the director of Jaws", ["jaws"])
    3
    """
    flat = normalise_name(question.replace("_", " "))
    for topic in topics:
        flat = re.sub(rf"(?<!\w){re.escape(topic.casefold())}(?!\w)", " # ", flat)
    words = ["", *_PARTS.findall(flat), ""]
    found = sum(_says_relation(*words[i - 1 : i + 2]) for i in range(1, len(words) - 1))
    return max(1, found + 2 * any(word in _SHARED for word in words))


def _says_relation(before: str, word: str, after: str) -> bool:
    if word == "of":
        return before not in _EMPTY_BEFORE_OF
    if word in ("'s", "whose"):
        return True
    if word in AUX or word in _SHARED or after in _NOUN_BEHIND:
        return False
    if word in BASE_VERBS or is_verb(word, before):
        return True
    return word.endswith("s") and is_person(word[:-1]) and after in ("in", "for")


def subquestions_by_rules(question: str) -> tuple[str, ...]:
    """The steps of the plan."""
    return tuple(step.question for step in plan_by_rules(question).steps)
