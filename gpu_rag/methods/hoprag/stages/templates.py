"""Pseudo-questions from triples, without a model: questions that a passage answers, and questions that it leaves
open."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction.lexicon import ADVERBS, COPULAS, DETERMINERS, MONTHS, PREPOSITIONS, is_verb
from gpu_rag.text.rules.extraction.tokens import MARK, NAME, NUMBER, tokenise
from gpu_rag.text.tokens import STOP_WORDS

TEMPLATES_VERSION = 2  # raise when equal triples give other questions, so that dependent stages become stale
Triple = tuple[str, str, str]
MAX_PART_CHARS = 300  # a longer part is a sentence that an extractor returned whole
_IS_A = frozenset({"is", "was", "are", "were", "is a", "is an", "was a", "was an", "occupation", "instance of", "type"})
_MAX_TYPE_WORDS = 3
_NO_TYPE = ADVERBS | {"one", "part", "member", "former", "known", "second", "third"}  # as the last word


def answered_questions(triples: Iterable[Triple]) -> list[str]:
    """Incoming questions: for each triple (A, R, B) one about its object and one about its subject, in order, no
    duplicates.

    The words follow the form of R: "is part of" asks "What is A part of?" and "What is part of B?", "located in" "What
    is A located in?", "crosses" "What does A cross?", "won" "What has A won?", and a noun such as "date of birth" "What
    is the date of birth of A?" and "Whose date of birth is B?". Triples with an empty part, or one above 300
    characters, give none.

    >>> answered_questions([("Halden Bridge", "crosses", "Ves")])
    ['What does Halden Bridge cross?', 'What crosses Ves?']
    """
    questions: list[str] = []
    for subject, relation, object_ in triples:
        s, r, o = (" ".join(part.replace("_", " ").split()) for part in (subject, relation, object_))
        if all(normalise_name(part) and len(part) <= MAX_PART_CHARS for part in (s, r, o)):
            questions.extend(_both(s, r, o))
    return list(dict.fromkeys(questions))


def _both(s: str, r: str, o: str) -> tuple[str, str]:
    """(question about the object, question about the subject)."""
    words = r.split()
    k = next((i for i, word in enumerate(words) if word.casefold() not in ADVERBS), 0)
    verb = words[k].casefold()
    if verb in COPULAS:
        return f"What {words[k]} {' '.join([s, *words[:k], *words[k + 1 :]])}?", f"What {r} {o}?"
    ends_in_place = words[-1].casefold() in PREPOSITIONS
    if is_verb(verb, "") or ends_in_place:
        if verb.endswith("s") and (len(words) > 1 or not ends_in_place):
            return f"What does {' '.join([s, *words[:k], _base(words[k]), *words[k + 1 :]])}?", f"What {r} {o}?"
        if ends_in_place:
            return f"What is {s} {r}?", f"What is {r} {o}?"
        return f"What has {s} {r}?", f"What {r} {o}?"
    return f"What is the {r} of {s}?", f"Whose {r} is {o}?"


def _base(verb: str) -> str:
    """A verb without the ending of the third person: crosses -> cross, carries -> carry, has -> have."""
    if verb.casefold() == "has":
        return "have"
    if verb.endswith("ies") and len(verb) > 4:
        return f"{verb[:-3]}y"
    return verb[:-2] if verb.endswith(("sses", "shes", "ches", "xes", "oes")) else verb[:-1]


def raised_questions(
    names: Iterable[str], triples: Iterable[Triple], types: Mapping[str, str], kinds: Container[str] = ()
) -> list[str]:
    """Outgoing questions: "What about B, the T?" for each name B that is not a subject of the triples. The form has no
    content word of its own, which would be a keyword of all of them.

    names: names of the passage, in order; of names equal under `normalise_name` the first counts. Dates and numbers
    give no question. types: the type words of a normalised name, where known. kinds: names that are the type
    of something ("rapper"); they give no question either.

    >>> raised_questions(["Halden Bridge", "Ves"], [("Halden Bridge", "crosses", "Ves")], {"ves": "river"})
    ['What about Ves, the river?']
    """
    done = {normalise_name(subject) for subject, _, _ in triples}
    questions: list[str] = []
    for name in names:
        key, written = normalise_name(name), " ".join(name.split())
        if not key or key in done or key in kinds or len(written) > MAX_PART_CHARS or not _says_something(written):
            continue
        done.add(key)
        questions.append(f"What about {written}{f', the {types[key]}' if key in types else ''}?")
    return questions


def _says_something(name: str) -> bool:
    """Whether a word of the name is not a number, month, or stop word."""
    tokens = tokenise(name, 0, len(name))
    return any(t.kind not in (NUMBER, MARK) and t.low not in MONTHS and t.low not in STOP_WORDS for t in tokens)


def types_of_triples(triples: Iterable[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """(normalised subject, type words) of each triple that gives a type ("is", "occupation", ...).

    The type is the first words of the object in small letters, up to a preposition, verb or name, at most three.

    >>> list(types_of_triples([("Kerling", "is", "a small town on the river Ves"), ("Kerling", "lies on", "Ves")]))
    [('kerling', 'small town')]
    """
    for subject, relation, object_ in triples:
        if states_type(relation) and (key := normalise_name(subject)) and (kind := _kind(object_)):
            yield key, kind


def states_type(relation: str) -> bool:
    """Whether triples with this relation give a type."""
    return relation.casefold() in _IS_A


def usable_types(known: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(name, type) pairs that an extractor wrote, normalised; without empty names and with short types only."""
    for name, words in known:
        if (key := normalise_name(name)) and (kind := normalise_name(words)) and len(kind) <= MAX_PART_CHARS:
            yield key, kind


def _kind(text: str) -> str:
    """The common noun phrase of a text: "a former radio station in Kerling" -> "former radio station"; "" if there is
    none."""
    tokens = tokenise(text, 0, min(len(text), MAX_PART_CHARS))
    words: list[str] = []
    for i, token in enumerate(tokens):
        if i == 0 and token.low in DETERMINERS:
            continue
        before = words[-1] if words else ""
        ends = token.kind in (NAME, NUMBER, MARK) or token.low in PREPOSITIONS or token.low in STOP_WORDS
        if ends or is_verb(token.low, before) or len(words) == _MAX_TYPE_WORDS:
            break
        words.append(token.low)
    return " ".join(words) if words and words[-1] not in _NO_TYPE else ""
