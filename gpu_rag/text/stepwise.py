"""Find the sentences that support an answer step by step, along the plan that rules make of a question.

Each step is answered by the evidence: a name supports "Who is the director of A?" as `supporting` decides. It fills the
place of the phrase in the later steps, by the title of its own passage if it has one. The last step, or the comparison
of the last two, must give the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from gpu_rag.text.rules.decomposition import Compared, fill, plan_by_rules
from gpu_rag.text.rules.decomposition.compare import decide
from gpu_rag.text.rules.extraction.lexicon import AUXILIARIES, POSSESSIVES, PREPOSITIONS, is_verb
from gpu_rag.text.rules.extraction.relations import is_adjective
from gpu_rag.text.rules.extraction.tokens import DATE, NAMED, QUOTED, TITLE, Mention
from gpu_rag.text.rules.relations import says_inverse
from gpu_rag.text.supporting import (
    BOUNDARIES,
    NEGATIONS,
    SUFFIX,
    Question,
    Sentence,
    Span,
    evidence_of,
    has_run,
    question_of,
    sentences_of,
    sequence_of,
    supporting,
)

Passages = Sequence[tuple[str, str]]
_Reading = tuple[str, Span]
"""A possible answer of a step, and the sentence that states it."""
_Chain = tuple[dict[int, str], tuple[Span, ...]]
"""The answers of the first steps by number, and their sentences, the last first."""

_ORIGIN = re.compile(r"\b(?:nationality|country)\b", re.IGNORECASE)
_OUT = re.compile(r"\b(?:released?|published|appear|launched)\b", re.IGNORECASE)
_COME_OUT = re.compile(r"\bdid (.+) come out\b", re.IGNORECASE)
_YEAR = re.compile(r"1\d{3}|20\d{2}")
_COPULAS = frozenset({"is", "was", "are", "were"})
_MAX_READINGS, _MAX_CHAINS, _MAX_ADJECTIVE = 3, 9, 6
_MAX_NAMED = 32  # sentences read for a step, so that time grows with the evidence and not with its square
_NEGATION = re.compile(rf"\b(?:{'|'.join(sorted(NEGATIONS))})\b|n['’]t\b", re.IGNORECASE)
_UNREAL = NEGATIONS | {"almost", "nearly", "wrongly", "falsely", "former"}
_MODALS = frozenset({"can", "could", "may", "might", "must", "shall", "should", "to", "will", "would"})
_AGENT_OR_PLACE, _TOWARDS = frozenset({"by", "in", "at", "on"}), frozenset({"to", "from"})
_GOVERNORS = PREPOSITIONS | AUXILIARIES | BOUNDARIES
# A country is its stem and a final; its adjective is the stem and an ending, or the country without "land".
_FINAL, _ADJECTIVE = re.compile(r"(?:[aeoy]+|en|al)$"), re.compile(r"a?n|[ei]an|u?ese|ish|i|ic|e")
_LAND = re.compile(r"y|land|i?stan")
_SHARED = frozenset({"niger", "dominica"})  # "Nigerian" and "Dominican" are also formed from another country


def supporting_steps(question: str, answer: str, passages: Passages) -> tuple[Span, ...] | None:
    """The sentences of the steps that support an answer, the last step's first; () if there are none, None if the
    question has one step or one that the evidence does not answer. Deterministic.

    >>> texts = [("", "Bread was directed by Ott Ves."), ("Ott Ves", "Ott Ves was born in Tamsin.")]
    >>> [span.passage for span in supporting_steps("Where was the director of Bread born?", "Tamsin", texts)]
    [1, 0]
    """
    plan = plan_by_rules(question)
    if len(plan.steps) == 1:
        return None
    chains: list[_Chain] = [({}, ())]
    for step in plan.steps[: None if plan.compared else -1]:
        chains = [
            ({**known, step.id: text}, (span, *spans))
            for known, spans in chains
            if known.keys() >= {*step.depends_on}
            for text, span in _readings(fill(step.question, known), passages)
        ][:_MAX_CHAINS]
    if not chains:
        return None
    if plan.compared is not None:
        return _compared(plan.compared, answer, chains)
    last = plan.steps[-1]
    for known, spans in chains:
        if known.keys() >= {*last.depends_on} and (own := _last(fill(last.question, known), answer, passages)):
            return tuple(dict.fromkeys((*own, *spans)))
    return ()


def _compared(compared: Compared, answer: str, chains: Sequence[_Chain]) -> tuple[Span, ...]:
    """The sentences of both sides, if all readings decide for the answer."""
    decided = {decide(compared, [known[i] for i in compared.steps]): spans for known, spans in chains}
    if len(decided) != 1:
        return ()
    ((expected, spans),) = decided.items()
    if expected is None or expected in ("yes", "no"):
        return spans if re.match(rf"\W*{expected}\s*(?:[,.;:!]|$)", answer, re.IGNORECASE) else ()
    other = next(option for option in compared.options if option != expected)
    wanted, given = {*sequence_of(expected)}, {*sequence_of(answer)}
    is_plain = wanted == given and not _NEGATION.search(answer)
    return spans if wanted and is_plain and not given >= {*sequence_of(other)} else ()


def _last(question: str, answer: str, passages: Passages) -> tuple[Span, ...]:
    about = {SUFFIX.sub("", passages[number][0]) for number in _about(question, passages)}
    if not about.isdisjoint(_titles(answer, passages)):
        return ()  # the thing itself
    if spans := supporting(question, answer, passages):
        return spans
    if not _ORIGIN.search(question):
        return ()
    shown = answer.casefold().strip()
    return tuple(span for text, span in _origins(question, passages) if _same_country(shown, text.casefold()))[:1]


def _same_country(country: str, adjective: str) -> bool:
    """Whether an adjective is formed from the name of a country by an ending: "Mexican", "Chinese", "German"."""
    stems = [country, _FINAL.sub("", country)]
    is_formed = any(adjective.startswith(stem) and _ADJECTIVE.fullmatch(adjective[len(stem) :]) for stem in stems)
    is_shorter = _LAND.fullmatch(country.removeprefix(adjective)) is not None
    return country == adjective or ((is_formed or is_shorter) and country not in _SHARED)


def _readings(question: str, passages: Passages) -> list[_Reading]:
    """The possible answers of a step, those with a passage of their own first, by its title."""
    asked = question_of(question)
    if _ORIGIN.search(question):
        return list(_origins(question, passages))[:1]
    _, named, _ = evidence_of(question, tuple(passages))
    if asked.kind == "date":
        return _dates(question, named, passages)
    about = _about(question, passages)
    read, near, other = dict[str, Span](), dict[str, Span](), dict[str, Span]()
    for number, sentence in [pair for pair in named if asked.names or pair[0] in about][:_MAX_NAMED]:
        span = Span(number, sentence.start, sentence.end, None)
        for mention in sentence.mentions:
            is_name = mention.kind in (NAMED, QUOTED, TITLE) and not is_adjective(sentence.tokens, mention)
            if not is_name or not _states(asked, sentence, mention):
                continue
            text = _text(sentence, mention.first, mention.last, passages[number][1])
            terms = sequence_of(question)
            titles = [title for title in _titles(text, passages) if not has_run(terms, sequence_of(title))]
            is_supported = bool(supporting(question, text, passages))
            for title in titles:
                if is_supported:
                    read.setdefault(title, span)
                elif 2 * sum(bool(sentence.places(word)) for word, _ in asked.words) >= len(asked.words):
                    near.setdefault(title, span)
            if is_supported and not titles:
                other.setdefault(text, span)
    return list((read or (near if len(near) == 1 else {}) or other).items())[:_MAX_READINGS]


def _states(asked: Question, sentence: Sentence, mention: Mention) -> bool:
    """Whether a sentence says of a name or date what a step asks: without a negation, a plan ("was to direct") or a
    doubt ("may have directed"), and neither of a relative ("the brother of NAME") nor by another verb ("written by NAME
    and directed by"). Of names in a row the first decides."""
    while True:
        places = {i for word, _ in asked.words for i in sentence.places(word)}
        words = places - {*range(mention.first, mention.last)}
        if (asked.words and not places) or sentence.tokens[mention.last - 1].possessive:
            return False
        stated = _is_real(asked, sentence, mention, words) and _is_told(asked, sentence, mention, words)
        if isinstance(stated, bool):
            return stated
        mention = stated


def _is_real(asked: Question, sentence: Sentence, mention: Mention, words: Set[int]) -> bool:
    """Whether the words of a step, at places of a sentence, are not denied (or are, if the step denies), planned or
    doubted near a mention."""
    lows, first, last = [t.low for t in sentence.tokens], mention.first, mention.last
    word = min(words, key=lambda i: sentence.distance(i, (first, last)), default=first)
    begin = max((i for i in range(min(word, first)) if lows[i] in BOUNDARIES), default=0)
    is_denied = any(low in _UNREAL or low.endswith(("n't", "n’t")) for low in lows[begin : max(word, last)])
    haves = [i for i in range(begin, word) if lows[i] == "have"]
    is_unsure = any(not _MODALS.isdisjoint(lows[max(i - 2, begin) : i]) for i in haves)  # "could well have been"
    is_planned = not {"to", "be"}.isdisjoint(lows[max(word - 2, 0) : word])
    return is_denied is asked.is_negated and not is_unsure and not is_planned


def _is_told(asked: Question, sentence: Sentence, mention: Mention, words: Set[int]) -> bool | Mention:
    """Whether the words of a step, at places of a sentence, tell of a mention; another mention if they tell the same of
    that one."""
    lows, first = [t.low for t in sentence.tokens], mention.first
    verbs = _verbs(lows, words)
    i = next((i for i in range(first - 1, -1, -1) if i in verbs or lows[i] in _GOVERNORS), -1)
    if i in verbs:
        return _tells(i, verbs, words, lows)
    low, verb = lows[i] if i >= 0 else "", max((v for v in verbs if v < first), default=-1)
    if low in AUXILIARIES or (lows[i + 1] in POSSESSIVES and first - 1 in words):  # "its director NAME"
        return True
    if low == "of":
        said = [unit for place, unit in sentence.units if place == i - 1 in words]
        return any(unit not in asked.relations or any(says_inverse(u, unit) for u in asked.relations) for unit in said)
    if low in _AGENT_OR_PLACE:
        return _tells(verb, verbs, words, lows) or not words
    if low in PREPOSITIONS:
        begin = max((b for b in range(i) if lows[b] in BOUNDARIES), default=0)
        return low in _TOWARDS and i - 1 in words and (verb < begin or verb == i - 1)
    return _is_subject(asked, sentence, mention, words, i)


def _is_subject(asked: Question, sentence: Sentence, mention: Mention, words: Set[int], i: int) -> bool | Mention:
    """`_is_told`, for a mention that no verb or preposition governs. i: place of the boundary before it, or -1."""
    lows, last = [t.low for t in sentence.tokens], mention.last
    verbs, known = _verbs(lows, words), {*sequence_of(SUFFIX.sub("", sentence.title))}.union(*asked.names)
    kinds = {DATE} if mention.kind == DATE else {NAMED, QUOTED, TITLE}
    others = [m for m in sentence.mentions if m.kind in kinds and not is_adjective(sentence.tokens, m)]
    after = next((v for v in verbs if v >= last and mention.kind != DATE), -1)
    if after >= 0 and all(m.first >= after or m.last <= last for m in others):
        objects = [known & {*sentence.terms[m.first : m.last]} for m in others if m.first > after]
        return _tells(after, verbs, words, lows) and (not objects or any(objects))
    before = next((m for m in others if m.last == i), None)
    return before is None or known >= {*sentence.terms[before.first : before.last]} or before


def _verbs(lows: Sequence[str], words: Set[int]) -> list[int]:
    """The places of verbs other than auxiliaries."""
    verbs = (i for i, low in enumerate(lows) if low not in AUXILIARIES and is_verb(low, lows[i - 1] if i else ""))
    return sorted({*verbs, *(i for i in words if lows[i].endswith("ing"))})


def _tells(verb: int, verbs: Sequence[int], words: Set[int], lows: Sequence[str]) -> bool:
    """Whether there is no verb (-1), or it is one of the words or joined to one: "directed and written by"."""
    while verb >= 0 and verb not in words:
        before = next((i for i in range(verb - 1, -1, -1) if lows[i] not in {"and", ",", "by"}), -1)
        if before not in verbs or before == verb - 1:
            return False
        verb = before
    return True


def _dates(question: str, named: Sequence[tuple[int, Sentence]], passages: Passages) -> list[_Reading]:
    """The date that a question asks for; else the year in "is a 1951 film", if it asks when something came out."""
    question = _COME_OUT.sub(r"was \1 released", question)
    asked, about = question_of(question), _about(question, passages)
    for number, sentence in named:
        for mention in sentence.mentions if not about or number in about else ():
            text = _text(sentence, mention.first, mention.last, passages[number][1])
            is_stated = mention.kind == DATE and _states(asked, sentence, mention)
            if is_stated and (spans := supporting(question, text, passages[number : number + 1])):
                return [(text, replace(spans[0], passage=number))]
    for number in about if _OUT.search(question) else ():
        for sentence in sentences_of(*passages[number])[:1]:
            for verb, token in zip(sentence.tokens, sentence.tokens[2:]):
                if verb.low in _COPULAS and _YEAR.fullmatch(token.text):
                    return [(token.text, Span(number, sentence.start, sentence.end, None))]
    return []


def _origins(question: str, passages: Passages) -> Iterator[_Reading]:
    """The adjective of nationality in the sentence that says what a thing is: "is an American film"."""
    for number in _about(question, passages):
        for sentence in sentences_of(*passages[number])[:1]:
            lows = [*(token.low for token in sentence.tokens), ""]
            verb = next((i for i, low in enumerate(lows) if low in _COPULAS), len(lows))
            for mention in sentence.mentions:
                if verb < mention.first <= verb + _MAX_ADJECTIVE and lows[mention.last].isalpha():
                    words = [token.text for token in sentence.tokens[mention.first : mention.last]]
                    is_noun = lows[mention.last] not in PREPOSITIONS | AUXILIARIES | {"and", "or"}
                    is_said = (_UNREAL | PREPOSITIONS).isdisjoint(lows[verb + 1 : mention.first])
                    if is_noun and is_said and (name := " ".join(word for word in words if not word[0].isdigit())):
                        yield name, Span(number, sentence.start, sentence.end, None)
                    break


def _about(question: str, passages: Passages) -> list[int]:
    """The passages whose title stands in a question, longest title first."""
    terms = sequence_of(question)
    titles = [sequence_of(SUFFIX.sub("", title)) for title, _ in passages]
    numbers = [n for n, title in enumerate(titles) if title and has_run(terms, title)]
    return sorted(numbers, key=lambda n: -len(titles[n]))[:1]


def _titles(name: str, passages: Passages) -> list[str]:
    """The titles, without what stands in brackets, that name the same thing as a name: equal, or one has all terms of
    the other in order, at least two."""
    terms, titles = sequence_of(name), list[str]()
    for title, _ in passages:
        bare = SUFFIX.sub("", title)
        short, long = sorted((terms, sequence_of(bare)), key=len)
        rest = iter(long)
        if short == long or (len(short) > 1 and all(term in rest for term in short)):
            titles.append(bare)
    return list(dict.fromkeys(titles))


def _text(sentence: Sentence, first: int, last: int, text: str) -> str:
    return text[sentence.tokens[first].start : sentence.tokens[last - 1].end]
