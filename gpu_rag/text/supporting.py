"""Find the sentences that support an answer to a question, by words, names and positions, without a model.

A sentence supports a short answer if it holds

- the answer, which is of the type that the question asks for (a person, a date, a number) and adds something to the
  question's words;
- the names in the question. They may also be in the title of the passage, before a sentence that begins with a
  pronoun or an article, or in the sentence before one with another pronoun;
- the verbs and ordinals of the question, and two thirds of its words. A word counts in any form, and so does a word of
  the same group in `rules/relations/phrases.toml`. Half of the words are enough if no sentence has the others; a verb
  may be absent if no other name, date or number could be the answer;

and if no other name, date or number in it is nearer to these words, or alone in the clause of the verbs. Commas and
conjunctions count as distance.

The sentences of one path support an answer together: they share these words, and the sentence with the answer has none
of the question's names, but a name that joins it to another sentence. Without a path, see `stepwise`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

from msgspec.structs import replace

from gpu_rag.text.dates import numeric_dates
from gpu_rag.text.figures import MONTHS, NUMERAL, SCALES, UNITS, one_form
from gpu_rag.text.rules.extraction.entities import find_mentions_in
from gpu_rag.text.rules.extraction.lexicon import (
    AUXILIARIES,
    DETERMINERS,
    POSSESSIVES,
    PREPOSITIONS,
    PRONOUNS,
    SUBJECT_PRONOUNS,
    is_verb,
)
from gpu_rag.text.rules.extraction.relations import is_adjective
from gpu_rag.text.rules.extraction.tokens import (
    AMOUNT,
    DATE,
    MARK,
    NAME,
    NUMBER,
    Mention,
    Token,
    passage_words,
    tokenise,
)
from gpu_rag.text.rules.relations import Unit, says, says_inverse, units_of
from gpu_rag.text.sentences import split_sentences, word_set
from gpu_rag.text.tokens import STOP_WORDS, tokenize

_ASKS = re.compile(
    r"\b(?:(?P<person>who|whom|whose)|(?P<date>when|(?:what|which) (?:year|date|day|month|century)|"
    r"what(?= (?:is|was) (?:\S+ ){1,3}date\b))|"
    r"(?P<number>how (?:many|much|long|high|deep|large|big|wide|far|old|tall|heavy|fast|often)|at what (?:time|age)|"
    r"what (?:number|percentage|share|height|length|age|population|price))|"
    r"(?P<place>where|what(?= (?:is|was) (?:\S+ ){1,3}place\b))|"
    r"(?P<other>what|which|how|why))\b",
    re.IGNORECASE,
)
_EMPTY = word_set("place year date day month century time people person man woman number name kind")
_POSITION_VERBS = word_set(
    "lie lies lay stand stands stood live lives lived located situated placed found"
)  # verbs that a sentence may leave out
BOUNDARIES = word_set(", ; : ( ) – — and but while who which whom whose where when after before although though")
_REFERS = PRONOUNS | POSSESSIVES | {"both"}
_RELATIVES = word_set("who which whose")
_JOINS = word_set("and or to until")  # "in 1898 and 1903", "from 710 to 745": the first alone is not an answer
NEGATIONS = word_set("not no never none nor neither without rather instead against")
_TIMES = "monday tuesday wednesday thursday friday saturday sunday spring summer autumn winter morning evening night"
_TIME_TERMS = frozenset(tokenize(" ".join((*MONTHS, _TIMES))))
_DERIVED = word_set("r er or ist ment ion")  # endings of agents and actions: "make", "maker"
_GROUPS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_BASE = {form: forms[0] for forms in map(str.split, _GROUPS["forms"].split(",")) for form in forms[1:]}
_ORDINAL_ENDINGS = ("st", "nd", "rd", "th")
_EXCLUDING = {  # a name behind these words has another type
    "person": frozenset({"in", "at"}), "place": frozenset({"by"}), "number": frozenset({"the"}),
}  # fmt: skip
_OF_THE = re.compile(r"\bof the\b")  # a name on each side
_SUBORDINATORS = word_set("when where before after while although though because that")
_OBJECTS = word_set("him her it them his its their")
_ORDINALS = frozenset(tokenize("first second third fourth fifth sixth seventh eighth ninth tenth last next"))
SUFFIX = re.compile(r"\s*\([^()]*\)\s*\Z")  # of a title: "(film)"
_FIGURE, _YEAR = re.compile(r"\d"), re.compile(r"1\d{3}|20\d{2}")
_BOUNDARY = 6  # words that a boundary counts as
_MAX_WORDS, _MAX_TOKENS = 12, 200  # limits of an answer and of a sentence; longer ones are ignored

Place = tuple[int, int]  # tokens first:last of a sentence


@dataclass(frozen=True)
class Span:
    """A sentence start:end of the text of passage number `passage`, and the answer in it (None in the other sentences
    of a path), in characters of the text."""

    passage: int
    start: int
    end: int
    answer: tuple[int, int] | None


class Sentence:
    """A sentence of a passage: its tokens, and a term for each ("" for a stop word). sentences: those of the
    passage, of which `number` come before it."""

    def __init__(self, title: str, text: str, start: int, end: int, sentences: Sequence[Sentence], number: int):
        self.start, self.end, self.title, self.text = start, end, title, text
        self._sentences, self._number = sentences, number
        self._places: dict[Unit, list[int]] = {}
        self.tokens = _tokens(text, start, end)
        self.terms = _terms_of(self.tokens)
        steps = (_BOUNDARY if token.low in BOUNDARIES else token.kind != MARK for token in self.tokens)
        self._steps = list(accumulate(steps, initial=0))
        self.mentions: list[Mention] = find_mentions_in(text, self.tokens, passage_words("", [], [self.tokens]))
        lows = [*(token.low for token in self.tokens), ""]
        self.verb = next((i for i in range(1, len(self.tokens)) if _is_finite(*lows[i - 1 : i + 2])), -1)
        named = next((mention.first for mention in self.mentions if mention.first <= 1), -1)
        self.subject = 0 if lows[0] in SUBJECT_PRONOUNS else named
        self.apposition = self._apposition(lows)
        self.has_pronoun = not _OBJECTS.isdisjoint(lows)
        self.is_pronominal, self.is_definite = lows[0] in _REFERS, lows[0] in DETERMINERS

    def _apposition(self, lows: Sequence[str]) -> tuple[int, int]:
        """The commas around an apposition to the name that begins the sentence, before its verb; (0, 0) for none."""
        end = next((mention.last for mention in self.mentions if mention.first == self.subject), 0)
        if not end or lows[end] != ",":
            return 0, 0
        commas = (i for i in range(end + 1, len(self.tokens)) if lows[i] == ",")
        closing = next((i for i in commas if lows[i + 1] in AUXILIARIES or is_verb(lows[i + 1], "")), 0)
        return (end, closing) if closing else (0, 0)

    @property
    def before(self) -> str:
        return self.text[: self.start]

    @property
    def earlier(self) -> Sequence[Sentence]:
        return self._sentences[: self._number]

    @cached_property
    def terms_before(self) -> list[str]:
        return [term for sentence in self.earlier for term in sentence.terms]

    @cached_property
    def units(self) -> list[tuple[int, Unit]]:
        """(token, unit of its word). Two dates in brackets, with a dash, are a birth and a death."""
        units = [(i, unit[0]) for i, token in enumerate(self.tokens) if (unit := _units(token.low))]
        for birth, death in pairwise(mention for mention in self.mentions if mention.kind == DATE):
            texts = [token.text for token in self.tokens]
            between, behind = texts[birth.last : death.first], texts[death.last :]
            is_open = texts[max(0, birth.first - 1)] in "(;" and "(" in texts[: birth.first]
            if is_open and ")" in behind and ")" not in between and not {"-", "–", "—"}.isdisjoint(between):
                units += [(birth.first - 1, _units("born")[0]), (death.last, _units("died")[0])]
        return units

    def places(self, word: Unit) -> list[int]:
        """Tokens that say the same as a word of a question. "daughter of" says the same as "father"."""
        if word not in self._places:
            followed = [*(token.low for token in self.tokens[1:]), "", ""]
            self._places[word] = [
                i for i, u in self.units if _same(word, u) or (followed[i] == "of" and says_inverse(word, u))
            ]
        return self._places[word]

    def refers(self, asked: Question) -> bool:
        """Whether it begins with "the" and a noun of the question, so that the text before may say more of it: "the
        rent is"."""
        places = {i for word, _ in asked.words for i in self.places(word)}
        return self.tokens[0].low == "the" and any(i in places and not 0 <= self.verb <= i for i in (1, 2))

    def is_parted(self, i: int, place: Place) -> bool:
        """Whether a semicolon stands between token i and a place."""
        first, last = sorted((i, place[0]))
        return any(token.low == ";" for token in self.tokens[first:last])

    def distance(self, i: int, place: Place) -> int:
        """The number of words between token i and a place, plus one; 0 inside it. A boundary counts as six."""
        first, last = place
        if first <= i < last:
            return 0
        if i == self.verb and first == self.subject:  # subject and verb belong together, whatever stands between them
            return 1
        behind = [token.low for token in self.tokens[last : last + 3]]
        if i == last + 1 and behind[0] == "," and is_verb(behind[1], "") and behind[-1] not in PREPOSITIONS:
            return 1  # "his widow, NAME, published"
        opening, closing = self.apposition
        if last == opening and i > closing:  # "NAME, a painter from Ves, had advised"
            last = closing + 1
        return 1 + (self._steps[i] - self._steps[last] if i >= last else self._steps[first] - self._steps[i + 1])


class Question:
    """A question: the type of its answer, the terms of its names, and its other words with whether each is a verb.

    optional: words that need not stand in a sentence, but attract the answer, such as "long" of "how long"."""

    def __init__(self, text: str):
        tokens = tokenise(text, 0, len(text))
        asks = _ASKS.search(text)
        self.kind = (asks.lastgroup or "other") if asks else "other"
        start, end = asks.span() if asks else (0, 0)
        self.terms = _terms(text)
        mentions = find_mentions_in(text, tokens, passage_words("", [], [tokens]))
        parts = (part for m in mentions for part in _OF_THE.split(text[tokens[m.first].start : tokens[m.last - 1].end]))
        self.names = [terms for part in parts if (terms := list(sequence_of(part)))]
        inside = {i for mention in mentions for i in range(mention.first, mention.last)}
        self.words: list[tuple[Unit, bool]] = []
        self.relations = {u for t, after in pairwise(tokens) if after.low == "of" for u in _units(t.low)[:1]}
        self.optional: list[Unit] = (
            list(_units(text[start:end].split()[-1].casefold())) if self.kind == "number" else []
        )
        behind = [token.low for token in tokens if token.start >= end][:1]
        self.is_negated = any(token.low == "not" for token in tokens)
        self.asks_subject = text[start:end].casefold() == "who" and AUXILIARIES.isdisjoint(behind)
        typed = next((i for i, token in enumerate(tokens) if asks and self.kind == "other" and token.start >= end), -1)
        for i, token in enumerate(tokens):
            if i in inside or start <= token.start < end or token.low in _EMPTY or token.low in STOP_WORDS:
                continue
            for unit in _units(token.low)[:1]:
                is_first = token.low == "first" and i + 1 < len(tokens) and is_verb(tokens[i + 1].low, "")
                if token.low in _POSITION_VERBS or i == typed or is_first:  # "when was it first climbed"
                    self.optional.append(unit)
                else:
                    self.words.append((unit, is_verb(token.low, tokens[i - 1].low if i else "")))


@lru_cache(maxsize=65536)
def _term(word: str) -> str:
    """The stem of a word, with a figure in one form; "" for a stop word or a mark."""
    return next(iter(tokenize(one_form(word))), "")


@lru_cache(maxsize=8192)
def sequence_of(text: str) -> tuple[str, ...]:
    return tuple(filter(None, _terms_of(_tokens(text, 0, len(text)))))


def _tokens(text: str, start: int, end: int) -> list[Token]:
    """Tokens of text[start:end]. A numeral of several words, such as "two hundred and twelve", is one number, and a
    date in figures ("2025-03-05") is a day, a month and a year."""
    tokens = tokenise(text, start, end)
    for numeral in reversed(list(NUMERAL.finditer(text, start, end))):
        inside = [i for i, token in enumerate(tokens) if numeral.start() <= token.start < numeral.end()]
        if len(inside) > 1 and any(tokens[i].low in SCALES for i in inside):
            tokens[inside[0] : inside[-1] + 1] = [Token(numeral[0], numeral[0].casefold(), *numeral.span(), NUMBER)]
    for match, plain in reversed(list(numeric_dates(text, start, end))):
        inside = [i for i, token in enumerate(tokens) if match.start() <= token.start < match.end()]
        if inside:
            date = [replace(t, start=match.start(), end=match.end()) for t in tokenise(plain, 0, len(plain))]
            tokens[inside[0] : inside[-1] + 1] = date
    return tokens


def _terms_of(tokens: Sequence[Token]) -> list[str]:
    """The term of each token; a unit behind a figure is written in full."""
    terms = [_term(token.text) for token in tokens]
    for i, token in enumerate(tokens[1:], 1):
        if token.text in UNITS and _FIGURE.match(terms[i - 1]):
            terms[i] = _term(UNITS[token.text])
    return terms


def _terms(text: str) -> frozenset[str]:
    return frozenset(sequence_of(text))


@lru_cache(maxsize=65536)
def _units(word: str) -> list[Unit]:
    return units_of(_BASE.get(word, word))


@lru_cache(maxsize=2048)
def sentences_of(title: str, text: str) -> list[Sentence]:
    sentences: list[Sentence] = []
    for start, end in split_sentences(text):
        sentences.append(Sentence(title, text, start, end, sentences, len(sentences)))
    return [sentence for sentence in sentences if len(sentence.tokens) <= _MAX_TOKENS]


@lru_cache(maxsize=1024)
def question_of(text: str) -> Question:
    return Question(text)


def _is_finite(before: str, low: str, behind: str) -> bool:
    """Whether a word may be the verb of a subject before it: not a participle after a comma or a form of "be"."""
    return is_verb(low, before) and low not in AUXILIARIES and before not in {*AUXILIARIES, ","} and behind != "by"


@cache
def _synonyms() -> dict[str, frozenset[int]]:
    """The numbers of the groups of each stem."""
    groups: dict[str, frozenset[int]] = {}
    for number, words in enumerate(_GROUPS["synonyms"].split(",")):
        for stem in (unit.stem for word in words.split() for unit in _units(word)):
            groups[stem] = groups.get(stem, frozenset()) | {number}
    return groups


def _same(word: Unit, unit: Unit) -> bool:
    """Whether two words say the same: by stem, by group, or as a verb and its agent or action."""
    synonyms = _synonyms()
    if not synonyms.get(word.stem, frozenset()).isdisjoint(synonyms.get(unit.stem, ())):
        return True
    short, long = sorted((word.stem, unit.stem), key=len)
    derived = len(short) > 2 and long.startswith(short) and long[len(short) :] in _DERIVED
    return derived or says(word, unit) > 0


def supporting(
    question: str,
    answer: str,
    passages: Sequence[tuple[str, str]],
    paths: Sequence[Sequence[tuple[str, str, int]]] = (),
) -> tuple[Span, ...]:
    """The first sentence, else the sentences of the first path, that support a short answer; () if there are none.

    passages: (title, text). paths: the edges of each as (name, name, number of the passage that states it). The
    sentence with the answer comes first. A verdict ("yes") and a comparison have no support. Deterministic.

    >>> supporting("Where was Marta Orlo born?", "Tamsin", [("", "Marta Orlo was born in Tamsin. She lived in Ves.")])
    (Span(passage=0, start=0, end=30, answer=(23, 29)),)
    >>> supporting("Where was Marta Orlo born?", "Ves", [("", "Marta Orlo was born in Tamsin. She lived in Ves.")])
    ()
    """
    asked = question_of(question)
    terms, named, absent = evidence_of(question, tuple(passages))
    for wanted in _wanted(asked, answer, terms):
        for number, sentence in named:
            for place in _places(sentence, wanted, asked.kind == "number"):
                if _fits(asked, wanted, sentence, place, absent):
                    return (_span(number, sentence, place),)
        if spans := next(filter(None, (_of_path(asked, wanted, passages, path) for path in paths)), ()):
            return spans
    return ()


@lru_cache(maxsize=64)
def evidence_of(
    question: str, passages: tuple[tuple[str, str], ...]
) -> tuple[Set[str], list[tuple[int, Sentence]], Set[Unit]]:
    """The terms of all sentences, (passage, sentence) for those with the question's names, and the words of the
    question, without words before "of", that no sentence has."""
    asked = question_of(question)
    sentences = [(number, s) for number, passage in enumerate(passages) for s in sentences_of(*passage)]
    free = [word for word, _ in asked.words if word not in asked.relations]
    absent = frozenset(word for word in free if not any(s.places(word) for _, s in sentences))
    named = [(number, s) for number, s in sentences if has_names(asked, [s])]
    return {term for _, s in sentences for term in s.terms}, named, absent


def _span(number: int, sentence: Sentence, place: Place) -> Span:
    answer = sentence.tokens[place[0]].start, sentence.tokens[place[1] - 1].end
    return Span(number, sentence.start, sentence.end, answer)


def _wanted(asked: Question, answer: str, evidence: Set[str]) -> list[tuple[str, ...]]:
    """Lists of terms to look for. First the terms of an answer that the question has in no form, in order, unless its
    core is a date or number. Then the terms of the core: names and numbers, the word behind a number, and for a
    question of no known type all words of the evidence, if most are. No list if the answer has another type."""
    terms = sequence_of(answer)
    asking = [*(word for word, _ in asked.words), *asked.optional]
    units = [(low, unit) for low in answer.casefold().split() for unit in _units(low)]
    repeated = {_term(low) for low, unit in units if any(_same(word, unit) for word in asking)}
    new = tuple(dict.fromkeys(term for term in terms if term not in asked.terms | repeated))
    figures = {term for term in terms if _FIGURE.match(term)}
    if asked.kind in ("person", "place"):  # "supplied by the council" names an agent without a capital
        is_dated = asked.kind == "person" and _YEAR.fullmatch("".join(new[:1]))  # "1931 German" names nobody
        fits = not (is_dated or figures | _TIME_TERMS >= {*new})
    elif asked.kind == "date":
        fits = bool(figures) or not _TIME_TERMS.isdisjoint(terms)
    else:
        fits = asked.kind != "number" or bool(figures)
    core: Set[str] = figures.union(*question_of(answer).names, _TIME_TERMS if asked.kind == "date" else ())
    if asked.kind == "number":
        core |= {behind for figure, behind in pairwise(terms) if figure in figures}
    elif asked.kind == "other":
        core = evidence | core if 3 * len(evidence & {*new}) >= 2 * len(new) else frozenset()
    core_terms = tuple(term for term in new if term in core)
    forms = (core_terms,) if core_terms and asked.kind in ("date", "number") else (new, core_terms)
    return [wanted for wanted in dict.fromkeys(forms) if fits and 0 < len(wanted) <= _MAX_WORDS]


def _places(sentence: Sentence, wanted: Sequence[str], in_order: bool) -> list[Place]:
    """The short places with all terms and no other figure between figures, shortest first. A pronoun that begins the
    sentence, and "there" in it, stand for the title of the passage."""
    matches = [i for i, term in enumerate(sentence.terms) if term in wanted]
    reach, places = 2 * len(wanted) + 4, list[Place]()
    has_figures = any(map(_FIGURE.match, wanted))
    for n, first in enumerate(matches):
        missing = set(wanted)
        for last in matches[n:]:
            missing.discard(sentence.terms[last])
            if last - first >= reach or not missing:
                break
        inside = [t for t in sentence.terms[first : last + 1] if t in wanted or (has_figures and _FIGURE.match(t))]
        if not missing and (inside != list(wanted) if in_order else not {*inside} <= {*wanted}):
            continue
        if not missing:
            places.append((first, last + 1))
    if not places and _terms(sentence.title) == {*wanted}:
        lows = [token.low for token in sentence.tokens]
        named = [0] if sentence.subject == 0 and sentence.is_pronominal else []
        return [(i, i + 1) for i in (*named, *(i for i in range(1, len(lows)) if lows[i] == "there"))]
    return sorted(places, key=lambda place: place[1] - place[0])


def has_names(asked: Question, sentences: Sequence[Sentence]) -> bool:
    """Whether the question's names stand in the sentences, their titles, or what their first words may refer to, with
    no word in between: Robert Louis Stevenson is not Robert Stevenson. A last name is enough if the whole name comes
    earlier in the passage."""

    def around(name: Sequence[str]) -> Iterator[Sequence[str]]:
        has_last = any(name[-1] in sentence.terms for sentence in sentences)
        for sentence in sentences:
            yield from (sentence.terms, sequence_of(sentence.title))
        for sentence in sentences:  # the text before is read last, since it costs most
            if has_last or sentence.is_pronominal or sentence.is_definite:
                yield sentence.terms_before
            elif sentence.has_pronoun and sentence.earlier:
                yield sentence.earlier[-1].terms

    return all(any(has_run(terms, name) for terms in around(name)) for name in asked.names)


def has_run(terms: Sequence[str], name: Sequence[str]) -> bool:
    """Whether the terms of a name follow one another, without stop words."""
    return f" {' '.join(name)} " in f" {' '.join(filter(None, terms))} "


def _fits(
    asked: Question,
    wanted: Sequence[str],
    sentence: Sentence,
    place: Place,
    absent: Set[Unit] = frozenset(),
    others: Sequence[Sentence] = (),
    bridges: Set[str] = frozenset(),
) -> bool:
    """Whether a sentence states the fact about its answer for which the question asks.

    absent: words of the question that no sentence has, without words before "of". others: other sentences of a path;
    bridges: terms of the names that join them.
    """
    tokens, answer = sentence.tokens, sentence.tokens[slice(*place)]
    titled = {
        term for term in _terms(SUFFIX.sub("", sentence.title)) if asked.kind != "number" or not _FIGURE.match(term)
    }
    known = frozenset(bridges).union(titled, *asked.names)
    rivals = [r for r in _rivals(asked, sentence, place, known | asked.terms) if not sentence.is_parted(r[0], place)]
    if asked.kind == "other" and all(token.kind not in (NAME, NUMBER) for token in answer):
        absent = frozenset()  # rivals that are common nouns are not known
    anchors = _anchors(asked, wanted, sentence, place, others, absent, not rivals)
    if anchors is None:
        return False
    nouns, verbs = anchors
    nearest = [min(places, key=lambda i: sentence.distance(i, place)) for places in (*nouns, *verbs)]
    between = sentence.tokens[max(0, min(*nearest, place[0]) - 1) : max(*nearest, place[1])]
    if any(token.low in NEGATIONS for token in between) is not asked.is_negated:
        return False
    if asked.kind == "date" and any(_is_before_another(sentence, place, i) for i in nearest[len(nouns) :]):
        return False
    is_agent = any(token.low == "by" for token in tokens[max(place[0] - 2, 0) : place[0]])
    if asked.kind == "person" and not (is_agent or any(token.text[0].isupper() for token in answer)):
        return False
    if asked.kind == "person" and any(
        (m.first, m.last) == place and is_adjective(tokens, m) for m in sentence.mentions
    ):
        return False
    if asked.asks_subject and not is_agent and _has_another_subject(sentence, place, verbs):
        return False
    if place[0] and tokens[place[0] - 1].low in _EXCLUDING.get(asked.kind, ()):  # "some of the 48 casks"
        return False
    after = tokens[place[1] : place[1] + 2]
    is_listed = len(after) == 2 and after[0].low in _JOINS and after[1].kind == NUMBER
    if is_listed and asked.kind in ("number", "date"):
        return False
    is_agent &= any(place[0] - 3 <= i < place[0] for places in verbs for i in places)  # "planned by NAME"
    is_agent &= all(token.low != ";" for token in between)
    if asked.names and _is_of_another(sentence, place, known):
        return False
    taken = [*rivals, *((m.first, m.last) for m in sentence.mentions if m.first <= place[0] < m.last)]
    names = [i for i, t in enumerate(sentence.terms) if t in known and not any(a <= i < b for a, b in taken)]
    subject = min((i for i, _ in sentence.units if i not in names), default=0)
    nouns += [later] if (later := [i for i in names if i > subject]) else []

    objects = _OBJECTS.intersection(token.low for token in tokens[place[1] + 1 : place[1] + 2])
    is_direct = is_agent or any(objects and place[1] in places for places in verbs)  # "only the Ott leaves it"
    both = [*nouns, *verbs]
    is_beside = _is_beside(sentence, place, verbs)

    def is_nearer(rival: Place) -> bool:
        if _is_beside(sentence, rival, verbs) is not is_beside:
            return not is_beside
        if _nearness(sentence, rival, both) >= _nearness(sentence, place, both):
            return True
        return not is_direct and _nearness(sentence, rival, nouns) > _nearness(sentence, place, nouns)

    return not any(map(is_nearer, rivals))


def _is_beside(sentence: Sentence, place: Place, verbs: Sequence[Sequence[int]]) -> bool:
    """Whether a place is beside all verbs: "opened in 1802 and closed in 1949" has one date for each verb."""
    return bool(verbs) and all(min(sentence.distance(i, place) for i in places) <= _BOUNDARY for places in verbs)


def _nearness(sentence: Sentence, place: Place, anchors: Sequence[Sequence[int]]) -> float:
    """The sum over anchors of 1 / (1 + distance of their nearest token)."""
    return sum(1 / (1 + min(sentence.distance(i, place) for i in places)) for places in anchors)


def _anchors(
    asked: Question,
    wanted: Sequence[str],
    sentence: Sentence,
    place: Place,
    others: Sequence[Sentence],
    absent: Set[Unit],
    is_alone: bool,
) -> tuple[list[list[int]], list[list[int]]] | None:
    """(places of each noun, places of each verb) of the question outside the answer; None if too few of its words are
    in the sentence, or only in relative clauses to which a date or a number before them does not belong.

    If all missing words are `absent`, half of the words are enough. If the answer `is_alone`, without a rival, a verb
    may be absent."""
    in_order = asked.kind in ("number", "date")
    inside = {i for i in range(*place) if in_order or sentence.terms[i] in wanted}
    nouns: list[list[int]] = []
    verbs: list[list[int]] = []
    n_held, share = 0, 1 / 2
    refers = sentence.is_pronominal or sentence.refers(asked)
    context = units_of(f"{sentence.title} {sentence.before if refers else ''}")
    for word, verb in asked.words:
        places = [i for i in sentence.places(word) if i not in inside and not sentence.is_parted(i, place)]
        if places:
            (verbs if verb else nouns).append(places)
        is_there = bool(places) or any(other.places(word) for other in others)
        if not is_there and (word.stem in _ORDINALS or (verb and not (is_alone and word in absent))):
            return None
        if word not in absent and not sentence.places(word):
            share = 2 / 3
        n_held += is_there or any(_same(word, unit) for unit in context)
    nouns += [places for word in asked.optional if (places := sentence.places(word))]
    if asked.kind == "place" and not asked.words:  # "Where is Ves?"
        nouns += [places for name in asked.names if (places := [i for i, t in enumerate(sentence.terms) if t in name])]
    clause = next((i for i, token in enumerate(sentence.tokens) if i > place[1] + 1 and token.low in _RELATIVES), None)
    is_of_clause = in_order and clause is not None and any(min(places) > clause for places in (*nouns, *verbs))
    if not (nouns or verbs) or n_held < share * len(asked.words) or is_of_clause:
        return None
    return nouns, verbs


def _has_another_subject(sentence: Sentence, place: Place, verbs: Sequence[Sequence[int]]) -> bool:
    """Whether somebody other than the answer does what "who" asks for. "Crane bought Harlow" does not say who bought
    Crane, and "He met Anna and founded the club" not that Anna founded it."""
    lows = [token.low for token in sentence.tokens]
    if 0 <= sentence.subject < sentence.verb < place[0] and [sentence.verb] in verbs:
        return True
    if any(all(i > 1 and lows[i - 2] in DETERMINERS and not place[0] < i <= place[1] for i in v) for v in verbs):
        return True  # "the council bought it"
    if lows[0] not in SUBJECT_PRONOUNS or place[0] == 0 or not _SUBORDINATORS.isdisjoint(lows[: place[0]]):
        return False
    return _RELATIVES.isdisjoint(lows[place[1] : place[1] + 2]) and not any(place[1] in places for places in verbs)


def _is_before_another(sentence: Sentence, place: Place, verb: int) -> bool:
    """Whether the clause of a verb begins behind a date with "before" or "after": "in 1641, before he was hanged"."""
    behind = [token.low for token in sentence.tokens[place[1] : verb]]
    begins = max((i for i, low in enumerate(behind) if low in ("before", "after")), default=-1)
    return begins >= 0 and "," not in behind[begins:]


def _is_of_another(sentence: Sentence, place: Place, known: Set[str]) -> bool:
    """Whether a place follows a relative pronoun that refers to a name with no known term."""
    for mention in sentence.mentions:
        behind = [token.low for token in sentence.tokens[mention.last : mention.last + 2] if token.low != ","]
        refers = mention.last < place[0] and behind and behind[0] in _RELATIVES
        if refers and known.isdisjoint(sentence.terms[mention.first : mention.last]):
            return True
    return False


def _rivals(asked: Question, sentence: Sentence, place: Place, known: Set[str]) -> Iterator[Place]:
    """Other candidates for the answer: names, dates or numbers, without names of known terms."""
    kinds = {token.kind for token in sentence.tokens[place[0] : place[1]]}
    spans = [(i, i + 1) for i, term in enumerate(sentence.terms) if _is_figure(sentence.tokens[i], term)]
    if asked.kind == "date":
        spans = [(m.first, m.last) for m in sentence.mentions if m.kind == DATE] or spans
    elif asked.kind != "number" and NUMBER not in kinds:
        named = asked.kind in ("person", "place") or NAME in kinds
        mentions = (m for m in sentence.mentions if named and m.kind not in (DATE, AMOUNT))
        spans = [(m.first, m.last) for m in mentions if not is_adjective(sentence.tokens, m)]
    excluding = _EXCLUDING.get(asked.kind, frozenset())
    for first, last in spans:
        terms = [term for term in sentence.terms[first:last] if term]
        before = sentence.tokens[first - 1].low if first else ""
        ends = terms[:1] + terms[-1:]  # with other names between them
        is_named = any(name == terms[: len(name)] or ends == name[:1] + name[-1:] for name in asked.names)
        is_other = not known >= {*terms} and not is_named
        is_other &= asked.kind == "date" or not {*terms} <= _TIME_TERMS
        if (last <= place[0] or first >= place[1]) and is_other and before not in excluding:
            yield first, last


def _is_figure(token: Token, term: str) -> bool:
    """Whether a token is a number, but no ordinal in letters."""
    return _FIGURE.match(term) is not None and (token.kind == NUMBER or not token.low.endswith(_ORDINAL_ENDINGS))


def _of_path(
    asked: Question, wanted: Sequence[str], passages: Sequence[tuple[str, str]], path: Sequence[tuple[str, str, int]]
) -> tuple[Span, ...]:
    """The sentences of one path that support an answer together; () if they do not."""
    ends = [(_terms(subject), _terms(object_), number) for subject, object_, number in path]
    sentences: list[tuple[int, Sentence]] = []
    for subject, object_, number in ends:
        for sentence in sentences_of(*passages[number]):
            if (number, sentence) not in sentences and subject | object_ <= {*sentence.terms, *_terms(sentence.title)}:
                sentences.append((number, sentence))
    for number, sentence in sentences:
        others = [(n, other) for n, other in sentences if other is not sentence]
        texts = [other for _, other in others]
        places = _places(sentence, wanted, asked.kind == "number")
        if not places or not others or has_names(asked, [sentence]) or not has_names(asked, [sentence, *texts]):
            continue
        around, beside = {*sentence.terms, *_terms(sentence.title)}, {term for other in texts for term in other.terms}
        joints = (
            name for *names, _ in ends for name in names if name != {*wanted} and name <= around and name <= beside
        )
        bridges = {term for name in joints for term in name}
        place = next(
            (place for place in places if _fits(asked, wanted, sentence, place, frozenset(), texts, bridges)), None
        )
        if bridges and place is not None:
            return (_span(number, sentence, place), *(Span(n, other.start, other.end, None) for n, other in others))
    return ()
