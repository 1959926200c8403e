"""The side of a relation on which a thing stands: in a question by word order, voice and prepositions; in the name of a
relation by its form.

AGENT does what the verb says ("Ann" of "Ann directed it"), or fills the role ("director", "capital" of France). PATIENT
is the thing that it is done to, or has the role ("it", France). A role and a verb are compared only if the role is
that of an agent (-er, -or, ...) or of a patient (-ee); the sides of other nouns are OWNER and FILLER, for nouns alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpu_rag.text.rules.decomposition.phrases import BASE_VERBS, is_person
from gpu_rag.text.rules.extraction.lexicon import PREPOSITIONS, is_verb
from gpu_rag.text.rules.relations import base_of
from gpu_rag.text.sentences import word_set

AGENT, PATIENT, OPEN = 1, -1, 0
FILLER, OWNER = 2, -2
_BE = word_set("is are was were be been being get gets got")
_DO = word_set("do does did will would can could may might shall should must")
_DONE = _DO | {"has", "have", "had"}
_BEFORE_NOUN = word_set("the a an its his her their whose s of our your")
_INTRANSITIVE = word_set(
    "worked works lived lives played plays served serves resided resides belonged belongs studied studies starred stars"
    " acted acts appeared appears participated competed graduated died moved collaborated collaborates depended depends"
)
_LIGHT = word_set(
    "have has had give gives gave given take takes took taken make makes made exert exerts file files filed"
)
_GIVEN = word_set("have has had get gets got receive receives received")  # their subject is given the thing by someone
_COMPLEMENT = PREPOSITIONS - {"by", "of"}
_WHICH = word_set("which what whom who whose")
_NOT_AGENTS = word_set(
    "father mother brother sister daughter grandfather grandmother stepfather stepmother member partner"
)
_SUPERIORS = word_set("boss bosses rival rivals apprentice apprentices superior superiors subordinate subordinates")
_OF_VERBS = ("ion", "ment", "ing", "use")  # nouns whose "of" means either side
_ARTICLES = word_set("the a an")
_LEAST_SHARED = 3  # letters at the beginning of two forms of one word


class Side(NamedTuple):
    """A side, and the word by which it was read. noun: whether that word is the name of a role; to: the preposition of
    a verb ("opened for"), and subject: whether this is the side of its subject (1) or of the noun after the
    preposition (-1), in any voice."""

    side: int
    word: str
    noun: bool
    to: str = ""
    subject: int = OPEN

    @property
    def oblique(self) -> bool:
        """Whether it is a passive verb with a preposition ("approved for"), whose subject is not the agent."""
        return bool(self.to) and self.side != self.subject

    def turned(self) -> Side:
        """The other side."""
        return self._replace(side=-self.side, subject=-self.subject)


def side_of_head(words: Sequence[str], place: int, width: int) -> Side:
    """The side of the head of a relation's edges, by the words of its name. place, width: place and width of the words
    looked at.

    "acquired", "works for": AGENT; "acquired by", "born in", "director": PATIENT; "capital of": FILLER; "genre": OWNER.
    """
    is_role = not (_is_verb(words[place]) or _has_complement(words, place))
    word, behind = words[place], list(words[place + (width if is_role else 1) :])
    if is_role:
        owner = _owner(words[place + width - 1])
        fills = behind == ["of"] or (behind == ["to"] and is_person(word))  # "was assistant to"
        side = -owner if fills else owner if behind[:1] in ([], ["of"]) else OPEN
    elif behind[:1] == ["by"]:
        side = PATIENT
    elif behind[:1] and behind[0] in _COMPLEMENT:
        side = PATIENT if _is_participle(word) and word not in _INTRANSITIVE else AGENT
    else:
        side = OPEN if behind and behind[0] not in _ARTICLES else AGENT  # "saved the life of"
    to = next((word for word in reversed(words[place + 1 :]) if word in _COMPLEMENT), "")  # "split off from"
    return Side(side, word, is_role, to, 1)


def side_of_topic(words: Sequence[str], place: int, width: int) -> Side:
    """The side on which the topic "#" of a question stands, by the words at a place."""
    if "#" not in words:
        return Side(OPEN, words[place], False)
    topic, word, is_role = words.index("#"), words[place], not reads_as_verb(words, place, width)
    before, behind = list(words[:place]), list(words[place + (width if is_role else 1) :])
    if is_role and (act := _side_of_act(words, topic, place, width)):
        return Side(act, word, False)
    to, subject = _preposition(words, topic, place)
    if is_role:
        owner = _owner(words[place + width - 1])
        if topic < place:
            fills = "as" in before[-3:] or words[0] == "of" or (behind[:1] == ["of"] and before[-1:] != ["s"])
            owns = before[-1:] in (["s"], ["#"])
        else:
            fills, owns = behind[:1] == ["#"] or before[-1:] == ["whose"], behind[:1] == ["of"]
        if not (fills or owns):
            return Side(OPEN, word, True, to, subject)
        return Side(-owner if fills else owner, word, True, to, subject)
    passive = _is_participle(word) and any(token in _BE for token in before[-3:])
    if topic > place:
        if behind[:1] == ["by"]:
            side = AGENT
        elif behind[:1] and behind[0] in _COMPLEMENT and _is_participle(word):
            side = PATIENT if word in _INTRANSITIVE else AGENT
        else:
            side = OPEN if passive else PATIENT
    elif any(token in _DO for token in before[:topic]) or not _is_participle(word):
        side = AGENT
    else:
        side = PATIENT if passive or behind[:1] == ["by"] or words[0] == "by" else AGENT
    return Side(side, word, False, to, subject)


def _side_of_act(words: Sequence[str], topic: int, place: int, width: int) -> int:
    """The side of the topic of an act that a noun names: of "influence" in "who had an influence on #", "whose
    influence can be heard in #" and "in whom can the influence of # be heard"; OPEN for other nouns."""
    if words[place].removesuffix("s").endswith(("er", "or", "ee", "ist", "ian")):
        return OPEN
    light = next((i for i in range(place - 1, max(place - 5, -1), -1) if words[i] in _LIGHT | _GIVEN), -1)
    if light >= 0 and topic not in range(light, place):
        passive = any(word in _BE for word in words[max(light - 3, 0) : light]) and words[light] not in ("has", "have")
        given = words[light] in _GIVEN and "from" in words
        return AGENT if (topic < light) != (passive or given) else PATIENT
    if words[place - 1 : place] == ["whose"] and topic > place and words[place + width : place + width + 1] != ["of"]:
        return PATIENT if words[topic - 1] in _COMPLEMENT else OPEN
    return OPEN


def _preposition(words: Sequence[str], topic: int, place: int) -> tuple[str, int]:
    """(the preposition of a verb, 1 if the topic is its subject, else -1): behind the verb, or before "which", "whom".

    ("for", 1) of "for which band did # open", and of "which band did # open for"; ("for", -1) of "who opened for #".
    """
    if topic > place:
        return (words[topic - 1], -1) if words[topic - 1] in _COMPLEMENT else ("", OPEN)
    fronted = words[0] if len(words) > 1 and words[1] in _WHICH else ""
    near = (fronted, words[-1], *words[place + 1 : place + 2])
    return next(((word, 1) for word in near if word in _COMPLEMENT), ("", OPEN))


def agree(side: Side, label: Side) -> bool:
    """Whether the side of a question may be the side of a label. Sides are compared for forms of one word, for two
    roles, and for a verb and a person who does it. Verbs with the same preposition are compared by their subject. If
    the question has a verb, a label in -s and a label of the same word are read as verbs too."""
    if not _share_stem(base_of(side.word), base_of(label.word)):
        return _agree_of_two_words(side, label)
    if side.to and side.to == label.to:
        return side.subject == label.subject
    if label.noun and not (side.noun or side.to) and (label.word.endswith("s") or label.word == side.word):
        return side.side in (OPEN, label.subject)
    return _equal_or_incomparable(side, label)


def _share_stem(a: str, b: str) -> bool:
    """Whether two words may be forms of one word, by the letters at their beginnings."""
    shortest = min(len(a), len(b))
    shared = next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), shortest)
    return shared >= max(_LEAST_SHARED, shortest - 3)


def _agree_of_two_words(side: Side, label: Side) -> bool:
    """`agree` for words that are not forms of one word."""
    if side.noun == label.noun:
        if not side.noun and side.to and label.to:
            return side.subject == label.subject  # "borrowed from" and "owes to"
        compared = side.noun or (side.side and not side.oblique and not label.oblique)
        return not compared or _equal_or_incomparable(side, label)
    noun = side.word if side.noun else label.word
    leads = is_person(noun.removesuffix("s")) or noun in _SUPERIORS  # a boss leads
    if label.noun and abs(label.side) == FILLER and side.to and not leads:
        return side.subject * label.side <= 0  # a river that flows into a sea has its mouth there
    return not leads or side.side * label.side >= 0


def _equal_or_incomparable(side: Side, label: Side) -> bool:
    """Whether two sides are the same, or of different kinds: agent and patient, filler and owner, open."""
    return side.side == label.side or abs(side.side) != abs(label.side)


def _owner(noun: str) -> int:
    """The side of the owner of a role."""
    single = noun.removesuffix("s")
    if single.endswith(_OF_VERBS):
        return OPEN
    if single.endswith("ee"):
        return AGENT
    acts = single.endswith(("er", "or", "ist", "ian")) and single not in _NOT_AGENTS and is_person(single)
    return PATIENT if acts else OWNER


def _is_verb(word: str) -> bool:
    bases = {word, word.removesuffix("s"), word.removesuffix("es")}
    return is_verb(word, "") or bool(bases & BASE_VERBS)


def _has_complement(words: Sequence[str], place: int) -> bool:
    """Whether a form in -s is a verb by the preposition behind it: "reports to"."""
    return words[place].endswith("s") and words[place + 1 : place + 2] == ["to"]


def _is_predicate(words: Sequence[str], place: int) -> bool:
    """Whether a word is an adjective said of a thing: "is # subordinate to", "is subordinate to #"."""
    before = [word for word in words[max(place - 2, 0) : place] if word != "#"]
    return words[place + 1 : place + 2] == ["to"] and before[-1:] != [] and before[-1] in _BE


def _is_participle(word: str) -> bool:
    return word.endswith("ed") or (is_verb(word, "") and not word.endswith(("s", "ing")))


def reads_as_verb(words: Sequence[str], place: int, width: int) -> bool:
    word, before = words[place], words[place - 1] if place else ""
    if word in PREPOSITIONS:  # "who came after #"
        return True
    if before in _BEFORE_NOUN or words[place + width : place + width + 1] == ["of"]:
        return False
    if _is_verb(word) or _has_complement(words, place) or _is_predicate(words, place):
        return True
    if before == "#" and not _DONE.isdisjoint(words[: place - 1]):  # "whom did # mentor"
        return True
    return not is_person(word.removesuffix("s")) and any(token in _DO for token in words[:place])
