"""Operators of a question on the things that its relations lead to: not, or, how many, before 1990, the first.

A question with several topics is cut into clauses, one for each topic, at "and", "or", "but", "that", a comma and the
like, at the end of a sentence, and before a negated auxiliary. A negation belongs to the topics of its clause. A clause
without words of its own ("or Bob") repeats the clause before it. Numbers and dates are compared only if the question
says how.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from gpu_rag.text.rules.decomposition.phrases import AUX, COPULAS, QUESTION_WORDS
from gpu_rag.text.rules.extraction.lexicon import MONTHS, PREPOSITIONS, SUBJECT_PRONOUNS, is_verb
from gpu_rag.text.rules.relations import ASKS_FOR, stem_of, units_of, words_of
from gpu_rag.text.sentences import word_set
from gpu_rag.text.tokens import STOP_WORDS

Compare = Literal["equal", "unequal", "less", "most", "more", "least"]
Aggregate = Literal["", "count", "first", "last"]

_NOT = frozenset({"not", "never", "no", "none", "neither", "nor", "without"})
_NOBODY = frozenset({"nobody", "nothing", "noone"})  # the rules understand them only as topics
_NONE = re.compile(r"(?:no|none|nobody|nothing|noone)\b", re.IGNORECASE)  # begins a topic such as "no band"
_EXCEPT = frozenset({"except", "exclude", "excluding", "omit", "omitting", "besides"})
_CUTS = word_set(", ; and or but that who which whom nor without yet while whereas") | _EXCEPT
_NEGATION = re.compile(r"(\w)n['’]t\b", re.IGNORECASE)
_TOKEN = re.compile(r"#\d+|[^\W_]+(?:[.,\-/][^\W_]+)*(?:['’][^\W_]+)*|[,;]|['’]s\b")
_END = re.compile(r"[.:;!?]+(?=\s)")  # the end of a sentence, or of its first part
_COUNT = (("how", "many"), ("the", "number", "of"), ("number", "of"), ("count", "the"))
_PHRASES: dict[Compare, str] = {
    "less": "before, earlier than, prior to, less than, fewer than, under, below, lower than, smaller than",
    "most": "until, at most, up to, no more than, no later than",
    "more": "after, later than, more than, over, above, greater than, higher than, larger than, longer than",
    "least": "since, at least, no less than, no fewer than",
    "equal": "in, exactly, during",
}
_COMPARES: dict[tuple[str, ...], Compare] = {
    tuple(phrase.split()): compare for compare, phrases in _PHRASES.items() for phrase in phrases.split(", ")
}
_WIDEST = 3
_FIRST = word_set("first earliest earlier oldest older smallest smaller lowest lower cheapest cheaper shortest shorter")
_FIRST |= word_set("fewest fewer least less")
_LAST = word_set("last latest later newest newer youngest younger largest larger highest higher biggest bigger longest")
_LAST |= word_set("longer most more greatest greater heaviest heavier tallest taller")
TIMES = word_set("first earliest earlier oldest older last latest later newest newer youngest younger")
COUNTED = word_set("fewest fewer least less most more")  # may compare the numbers of edges of two things
_OF_TWO = frozenset({word for word in _FIRST | _LAST if word.endswith("er")} | {"more", "less"})
_NUMBER = re.compile(r"\d[\d.,]*(?:-\d\d){0,2}")
_PLAIN = STOP_WORDS | AUX | _CUTS | {"both", "either"}
_OUT = {
    ("other", "than"), ("apart", "from"), ("not", "counting"), ("leave", "out"), ("leaving", "out"),
    ("setting", "aside"), ("if", "not"),
}  # fmt: skip
_BEHIND = frozenset({"aside", "excepted", "excluded"})  # behind the topics that are left out
_BESIDE_VALUES = AUX | word_set("a an the of its their his her with and that which who ,")
_JOINS = frozenset({"and", "or", ","})
_PERMITS = word_set(
    "safe safely suitable allowed permitted tolerated compatible acceptable harmless"
)  # the opposite of "contraindicated"
FORBIDDEN = "contraindicated"
_DO = frozenset({"do", "does", "did"})
_SPEAKERS = frozenset({"i", "we", "you"})
_BETWEEN = PREPOSITIONS | word_set("i you he she it we they one")  # words between an auxiliary and its negation
TOPIC, NOT, EXCEPT, CUT, WORD = range(5)
_Words = list[tuple[str, int]]  # words with their kinds


@dataclass(frozen=True)
class Clause:
    """The part of a question about one topic. text: with "#" in place of the topic and without other topics; negated:
    whether it rules out what it leads to; left_out: whether it rules out the topic itself ("except Ann"); itself:
    whether the topic may be the answer ("which is older, Ann or Bob")."""

    text: str
    negated: bool = False
    left_out: bool = False
    itself: bool = False


@dataclass(frozen=True)
class Comparison:
    """A comparison with a number or a date. words: words of the question before it, which may name the relation."""

    compare: Compare
    value: str
    words: str


@dataclass(frozen=True)
class Operators:
    """The operators of a question. clauses: one for each topic, in order; either: whether one clause is enough; turns:
    whether words such as "should not" reverse one of several clauses; order: the word of `aggregate`; words: the words
    of the question without topics; unread: words whose part in the question is not understood."""

    clauses: tuple[Clause, ...]
    either: bool = False
    turns: bool = False
    aggregate: Aggregate = ""
    order: str = ""
    words: str = ""
    comparisons: tuple[Comparison, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the question has no operator, so that its relations say all."""
        rules_out = any(clause.negated or clause.left_out or clause.itself for clause in self.clauses)
        return not (rules_out or self.either or self.turns or self.aggregate or self.comparisons or self.unread)


def is_compared(before: str, name: str) -> bool:
    """Whether a name is a number or date with which the words before it compare ("after", 1990)."""
    words = before.casefold().split()
    ends = (_COMPARES.get(tuple(words[-n:]), "equal") for n in range(1, _WIDEST + 1))
    return _NUMBER.fullmatch(name) is not None and any(compare != "equal" for compare in ends)


def statements_in(text: str) -> list[tuple[int, int]]:
    """The statements beside a question, as characters with their full stop or colon: "I cannot sleep.", "It must be
    safe in asthma." They have a verb behind their first word, and neither begin nor end as a question.
    """
    stops = [match.span() for match in re.finditer(_END, f"{text} ")]
    statements = []
    for start, (stop, end) in zip([0, *(end for _, end in stops)], [*stops, (len(text), len(text))]):
        words = words_of(text[start:stop])
        if not words or words[0] in AUX | ASKS_FOR | QUESTION_WORDS or "?" in text[stop:end]:
            continue
        main = takewhile(lambda word: word != "that", words[1:])  # not the verb of "a drug that he may take"
        has_verb = QUESTION_WORDS.isdisjoint(words) and any(is_verb(word, "") for word in main)
        if has_verb or words[0] in SUBJECT_PRONOUNS | _SPEAKERS:  # "I may not take what asthma forbids."
            statements.append((start, min(end, len(text))))
    return statements


def operators_of(
    text: str,
    spans: Sequence[tuple[int, int]],
    known: frozenset[str] = frozenset(),
    valued: frozenset[str] = frozenset(),
    labels: frozenset[str] = frozenset(),
) -> Operators:
    """The operators of a question. spans: characters of its topics, in order, apart; known: groups of the relations
    that a question may ask for, so that one of their phrases, such as "should not be given", is no negation; valued:
    stems of relations that lead to numbers or dates, which a comparison names ("the largest workforce"); labels: pairs
    of neighbouring words in names of relations, such as "largest customer", which are no comparison.

    >>> found = operators_of("Which films of Ann were not written by Bob?", [(15, 18), (39, 42)])
    >>> [(clause.text, clause.negated) for clause in found.clauses]
    [('which films of #', False), ('were written by #', True)]
    """
    for place, (start, end) in reversed(list(enumerate(spans))):
        text = f"{text[:start]} {'not ' * bool(_NONE.match(text[start:end]))}#{place} {text[end:]}"
    text = re.sub(_END, ";", text)
    text = re.sub(r"\bcan(?:not|n['’]t)\b", "can not", text, flags=re.IGNORECASE)
    words = [word.casefold() for word in _TOKEN.findall(_NEGATION.sub(r"\1 not", text))]
    words = _excepted(words)
    others = " ".join(word for word in words if word[0] != "#")
    offered = _offered(words)
    aggregate, order, words = _aggregated(words, valued, offered, labels)
    comparisons, words = _compared(words, valued)
    words = [word for word, behind in zip(words, [*words[1:], ""]) if word != "the" or behind[:1] != "#"]
    if aggregate and offered:
        return Operators((Clause("#", itself=True),) * len(spans), True, False, aggregate, order, others)
    clauses, negations = _clauses(_kinds(words, known))
    unread = [*(word for word in words if word in _NOBODY), *negations]
    ordered = tuple(clauses.get(place, Clause("#")) for place in range(len(spans)))
    either = "or" in words and len(spans) > 1
    turns = len(spans) > 1 and any(unit.marked and unit.groups & known for unit in units_of(others))
    return Operators(ordered, either, turns, aggregate, order, others, comparisons, tuple(dict.fromkeys(unread)))


def _excepted(words: list[str]) -> list[str]:
    """The words with "except" before topics instead of "excluded" behind them ("Ann and Bob excluded")."""
    place = next((i for i, word in enumerate(words) if word in _BEHIND and words[max(i - 1, 0)][0] == "#"), 0)
    start = place
    while start and (words[start - 1][0] == "#" or words[start - 1] in ("and", "or")):
        start -= 1
    return [*words[:start], "except", *words[start:place], *words[place + 1 :]] if place else words


def _clauses(kinds: _Words) -> tuple[dict[int, Clause], list[str]]:
    """({number of a topic: its clause}, negations that belong to no topic)."""
    kinds, left_out = _without(kinds)
    clauses = {int(topic[1:]): Clause("#", left_out=True) for topic in left_out}
    unread, before, ruled_out = list[str](), _Words(), False
    for part in _parts(kinds):
        topics = [word for word, kind in part if kind == TOPIC]
        negations = [word for word, kind in part if kind in (NOT, EXCEPT)]
        if not topics:
            unread += negations
            continue
        pairs = [pair for pair in part if pair[1] not in (NOT, EXCEPT)]
        content = any(kind != TOPIC and word not in _PLAIN for word, kind in pairs)
        rules_out = len(negations) % 2 == 1
        if before and not content and not _has_topic(part):  # "or Bob": as the clause before it
            pairs = [(topics[0], TOPIC) if kind == TOPIC else (word, kind) for word, kind in before]
            rules_out = rules_out or ruled_out
        for topic in topics:
            line = ("#" if word == topic else word for word, kind in pairs if kind != TOPIC or word == topic)
            clauses[int(topic[1:])] = Clause(" ".join(line).strip(" ,;"), rules_out)
        before, ruled_out = pairs, rules_out
    return clauses, unread


def _has_topic(part: _Words) -> bool:
    """Whether a clause says that a person has its topic: "who has asthma", "but I have asthma"."""
    before = [word for word, _ in takewhile(lambda pair: pair[1] != TOPIC, part)]
    return not {"has", "have", "had"}.isdisjoint(before) and all(kind != NOT for _, kind in part)


def _kinds(words: Sequence[str], known: frozenset[str]) -> _Words:
    """The words with their kinds. A "not" inside a phrase for a known relation ("should not be given") is a word."""
    units = [unit for unit in units_of(" ".join(map(_bare, words))) if unit.groups & known]
    spoken = {i for unit in units for i in range(unit.at, unit.at + unit.width)}
    kinds = _Words()
    for i, word in enumerate(words):
        if word in _PERMITS and i not in spoken and FORBIDDEN in known:
            kinds.append(("not", NOT))
            word, kind = FORBIDDEN, CUT
        elif word[0] == "#":
            kind = TOPIC
        elif word in _DO and i:
            kind = CUT
        elif i in spoken or words[i + 1 : i + 2] == ["only"]:
            kind = WORD
        elif word in _EXCEPT or tuple(words[i : i + 2]) in _OUT:
            kind = EXCEPT
        else:
            kind = NOT if word in _NOT else CUT if word in _CUTS else WORD
        kinds.append((word, kind))
    return kinds


def _without(words: _Words) -> tuple[_Words, list[str]]:
    """(the words without phrases such as "except Ann" and "is not Ann", the topics in these phrases)."""
    kept, left_out, i = _Words(), list[str](), 0
    while i < len(words):
        behind = words[i + 1 : i + 2] if words[i][0] in _EXCEPT else words[i + 2 : i + 3]
        is_not = words[i][1] == NOT and i > 0 and words[i - 1][0] in COPULAS
        behind = words[i + 1 : i + 2] if is_not else behind
        if (words[i][1] == EXCEPT or is_not) and behind and behind[0][1] == TOPIC:
            left_out.append(behind[0][0])
            i += 2 if is_not or words[i][0] in _EXCEPT else 3
            joins = {"or", "nor"} if is_not else _JOINS
            while words[i : i + 1] and words[i][0] in joins and words[i + 1 : i + 2]:  # "and Bob"
                if words[i + 1][1] != TOPIC:
                    break
                left_out.append(words[i + 1][0])
                i += 2
        else:
            kept.append(words[i])
            i += 1
    return kept, left_out


def _bare(word: str) -> str:
    """The word, or "#" for a token that is not exactly one word, so that places of words and of units agree."""
    return word if len(words_of(word)) == 1 and word[0] != "#" else "#"


def _parts(words: _Words) -> list[_Words]:
    """The clauses. A cut counts only if topics stand on both sides of it, and none makes a clause without a topic,
    unless there is one topic and the clause has a negation of its own."""
    cuts = list[int]()

    def ends(i: int) -> bool:
        return i == len(words) or words[i][0] in _CUTS

    for i, (word, kind) in enumerate(words):
        if word in _DO and [kind for _, kind in words[i + 1 : i + 2]] == [NOT] and ends(i + 2):
            continue  # "that Ann did not"
        if kind in (CUT, EXCEPT) or word in ("without", "nor"):
            begins = i
            while begins and (
                words[begins - 1][0] in AUX or words[begins - 1][1] == NOT
            ):  # "are not contraindicated in"
                begins -= 1
            cuts.append(begins)
        elif kind == NOT and i and not ends(i + 1):  # as in "that Ann did not"
            begins = i - 2 if words[i - 1][0] in _BETWEEN else i - 1  # "are in no band", "would you not"
            need_be = words[begins][0] == "need" and words[i + 1][0] == "be"
            cuts += [begins] if begins >= 0 and (need_be or words[begins][0] in AUX) else []
    parts, start = list[_Words](), 0
    for end in [*sorted(set(cuts)), len(words)]:
        part = words[start:end]
        if any(kind == TOPIC for _, kind in part):
            parts.append(part)
            start = end
    if start < len(words):
        rest = words[start:]
        if len(parts) > 1 or (parts and not any(kind in (NOT, EXCEPT) for _, kind in rest)):
            parts[-1] = parts[-1] + rest
        else:
            parts.append(rest)
    return parts


def _offered(words: Sequence[str]) -> bool:
    """Whether a question offers topics of which one is the answer: "Ann or Bob" after a comma or a comparative."""
    words = [word for word in words if word not in ("the", "a", "an")]
    ors = (i for i in range(1, len(words) - 1) if words[i] == "or" and words[i - 1][0] == words[i + 1][0] == "#")
    place = next(ors, 0)  # the place of the "or"
    compares = any(word in _OF_TWO and words[i + 1 : i + 2] != ["than"] for i, word in enumerate(words[:place]))
    return bool(place) and (compares or words[place - 2] == ",")


def _aggregated(
    words: list[str], valued: frozenset[str], offered: bool, labels: frozenset[str]
) -> tuple[Aggregate, str, list[str]]:
    """(aggregate, its word, the words without it). valued, labels: see `operators_of`; offered: see `_offered`."""
    for phrase in _COUNT:
        for i in range(len(words)):
            if tuple(words[i : i + len(phrase)]) == phrase:
                return "count", " ".join(phrase), [*words[:i], "which", *words[i + len(phrase) :]]
    for i, word in enumerate(words):
        compares = words[max(i - 1, 0)] == "at" or words[i + 1 : i + 2] == ["than"]
        compares = compares or " ".join(words[i : i + 2]) in labels
        if word in _FIRST | _LAST and not compares and (offered or word not in _OF_TWO):
            behind = i + 1
            while behind < len(words) and stem_of(words[behind]) in valued:  # "the largest workforce"
                behind += 1
            kept = [*words[:i], *words[behind:]]
            if i == len(kept):  # "was founded first", "which has the largest workforce"
                kept = _without_values(kept, valued)
            return ("first" if word in _FIRST else "last"), word, kept
    return "", "", words


def _without_values(words: list[str], valued: frozenset[str]) -> list[str]:
    """The words without a final phrase that names the compared value: "had their premiere", "were founded"."""
    end, verbs = len(words), 0
    while end > 1:
        word = words[end - 1]
        verbs += is_verb(word, "") and stem_of(word) not in valued
        if word[0] == "#" or verbs > 1 or not (word in _BESIDE_VALUES or stem_of(word) in valued or is_verb(word, "")):
            break
        end -= 1
    return words[:end]


def _compared(words: list[str], valued: frozenset[str]) -> tuple[tuple[Comparison, ...], list[str]]:
    """The comparisons, and the words without them."""
    pairs, kept, i = list[Comparison](), list[str](), 0
    while i < len(words):
        width = next((n for n in range(_WIDEST, 0, -1) if tuple(words[i : i + n]) in _COMPARES), 0)
        value = _value(words[i + width :]) if width else []
        between = words[i] == "between" and _value(words[i + 1 :])
        if between and words[i + 1 + len(between)] == "and" and (other := _value(words[i + 2 + len(between) :])):
            last = " ".join(kept[-3:])
            pairs += [Comparison("least", " ".join(between), last), Comparison("most", " ".join(other), last)]
            i += 2 + len(between) + len(other)
            kept = _without_values(kept, valued)
        elif value:
            compare, i = _COMPARES[tuple(words[i : i + width])], i + width + len(value)
            noun = [word for word in words[i : i + 1] if word[0] != "#" and word not in _PLAIN]  # "100 employees"
            pairs.append(Comparison(compare, " ".join(value), " ".join(noun or kept[-3:])))
            kept, i = _without_values(kept, valued), i + len(noun)
        else:
            kept.append(words[i])
            i += 1
    return tuple(pairs), kept


def _value(words: Sequence[str]) -> list[str]:
    """The words of a number or date at the beginning: "1990", "3 May 1904", "2001-05-04"."""
    date = [word for word in words[:3] if word in MONTHS or _NUMBER.fullmatch(word)]
    size = next((n for n in (3, 2, 1) if list(words[:n]) == date[:n] and len(date) >= n), 0)
    return list(words[:size]) if any(_NUMBER.fullmatch(word) for word in words[:size]) else []
