"""Check whether the evidence mentions an answer, by words, numbers, dates and names, without a model.

The check finds answers that are not in the retrieved texts: for example, answers that a model knows by itself or copies
from a prompt's example. It does not check that the evidence is about the right thing: `text.supporting` does.

An answer is a list of parts (separated by ";" or new lines). A part is stated if one evidence text has its content
words near one another. Words are compared by stem, numbers and dates by value, a first name also by its initial. A
sentence as an answer may repeat words of the question, and one word in five may differ, but no name or number. For yes
or no and for comparisons, the names in the question must be in the evidence; a comparison needs a figure for each side,
or both sides in one sentence.

An answer that is not stated is `unsupported` if some part of it cannot come from the evidence: a name or a number that
is absent and cannot be calculated, a number with another unit or month, or a detail with no word in the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import lru_cache
from itertools import combinations, pairwise

from gpu_rag.text.figures import MONTHS, one_form
from gpu_rag.text.keywords import names
from gpu_rag.text.sentences import split_sentences, word_set
from gpu_rag.text.tokens import tokenize

MENTIONED, UNSUPPORTED, NONE = "mentioned", "unsupported", "none"

_PARTS = re.compile(r"\s*[;\n]\s*")
_PIECES = re.compile(r"\s*,(?!\d{3}\b)\s*(?:and\s+)?|\s+(?:and|or|&)\s+")
_VERDICT = re.compile(r"\A\W*(?:yes|no|true|false)\b", re.IGNORECASE)
_INVALID = re.compile(r"\W*invalid question\W*", re.IGNORECASE)
_NEGATED = re.compile(r"\b(?:no|not|nor|without)\s+(?:(?:by|an?|the|any|in|of)\s+)?(?=\w)", re.IGNORECASE)
_SCRIPT = re.compile(r"[^\W\d_\u0000-\u024f\u1e00-\u1eff]")  # a letter of a non-Latin script
_CAPITAL = re.compile(r"\b[^\W\d_a-z][^\W\d_]+")
_MONTH_TERMS = frozenset(tokenize(" ".join(MONTHS)))
_UNIT_TERMS = frozenset(
    tokenize(
        "second minute hour day week month year decade century millimetre centimetre metre kilometre inch feet foot "
        "yard mile gram kilogram tonne ton pound ounce litre gallon hectare acre degree percent euro dollar cent"
    )
)
_NUMBER = re.compile(r"\d+(?:p\d+)?")
_RATIOS = (7, 10, 12, 24, 60, 100, 1000, 10_000, 10**6)  # ratios of units of time, length and weight
_FIRST_YEAR = 1000
_MAX_ADDED = 12  # known numbers that are combined into sums
_COUNTS = re.compile(r"\bhow (?:many|often)\b|\bnumber of\b|^count\b", re.IGNORECASE)
_HOW_MANY = re.compile(r"\bhow many (?!of\b)(\w+)", re.IGNORECASE)
_CALCULATES = re.compile(
    r"\b(?:total|together|altogether|in all|both|combined|each|twice|double|difference|more|less|fewer|longer|shorter|"
    r"older|younger|higher|deeper|wider|heavier|years? (?:after|before|later|earlier)|by how (?:much|many)|up from)\b",
    re.IGNORECASE,
)
_MAX_COUNTED = 12  # largest number that a reader would count in a text
_COMPARES = re.compile(
    r"\b(older|younger|longer|shorter|taller|higher|lower|larger|bigger|smaller|deeper|wider|heavier|faster|earlier|"
    r"later|more|fewer|less|first)\b.*?,\s*(.+?),?\s+or\s+(.+?)\s*\?",
    re.IGNORECASE,
)
_BY_TIME = frozenset({"older", "younger", "earlier", "later", "first"})
_YEAR, _DIGIT = re.compile(r"\b(?:1\d{3}|20\d{2})\b"), re.compile(r"\d")
_TITLES = word_set("rev reverend dr doctor sir mr mrs ms miss prof professor dame lord ladi st saint capt king queen")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"})
_WINDOW = 6  # terms allowed between the terms of one answer, plus two for each of them
_WORDS_PER_SLIP = 5  # one word in five of a sentence may differ from the evidence


def grounding(question: str, answer: str, evidence: Sequence[str]) -> str:
    """Return mentioned | unsupported | none: whether the texts of `evidence`, as they were shown, state `answer` to
    `question`.

    none: it cannot be decided, for example for a number that a reader may have counted. Deterministic. It takes about a
    millisecond for five new passages.

    >>> grounding("Where was Marta Orlo born?", "Tamsin", ["Marta Orlo was an engineer born in Tamsin."])
    'mentioned'
    >>> grounding("Where was Marta Orlo born?", "Kerling", ["Marta Orlo was an engineer born in Tamsin."])
    'unsupported'
    """
    shown, asked = [_words(text) for text in evidence], _words(question)
    if _INVALID.fullmatch(answer):  # the question assumes something false
        return NONE
    compares = _COMPARES.search(question)
    if compares is not None and _in_one(_words(answer), [_words(option) for option in compares.groups()[1:]]):
        return _compared(compares[1].casefold(), [_words(option) for option in compares.groups()[1:]], shown)
    verdict = _VERDICT.match(answer)
    if verdict and set(_words(answer[verdict.end() :]).terms) <= set(asked.terms):
        return _confirmed(asked, shown)
    parts = [part for part in _PARTS.split(answer) if _words(part).terms]
    if not parts:
        return NONE
    if all(_part_stated(part, asked, shown) for part in parts):
        return MENTIONED
    absent = any(_is_absent(_words(part), asked, shown) or _has_addition(part, asked, shown) for part in parts)
    return UNSUPPORTED if absent else NONE


class _Words:
    """The terms of a text and their positions. Terms are stems without stop words and titles; figures are in one
    form."""

    def __init__(self, text: str):
        self.text, self.terms = text, _terms(text)
        self.places: dict[str, list[int]] = {}
        spelt = self.terms if text.isascii() else _terms(text.translate(_UMLAUTS))
        for i, term in enumerate(self.terms):
            self.places.setdefault(term, []).append(i)
            if len(spelt) == len(self.terms) and spelt[i] != term:
                self.places.setdefault(spelt[i], []).append(i)

    def find(self, term: str, following: str = "") -> list[int]:
        """Positions of a term. An absent initial finds the words that begin with it; another absent term finds its own
        initial, if `following` comes next."""
        places = self.places.get(term, [])
        if places or not term[0].isalpha():
            return places
        if len(term) == 1:
            return [place for other, positions in self.places.items() if other.startswith(term) for place in positions]
        behind = set(self.places.get(following, ()))
        return [place for place in self.places.get(term[0], ()) if place + 1 in behind]


@lru_cache(maxsize=8192)
def _words(text: str) -> _Words:
    return _Words(text)


def _terms(text: str) -> list[str]:
    terms = tokenize(_NEGATED.sub("no", one_form(text)))
    return [term for term in terms if term not in _TITLES] or terms


def _near(terms: Sequence[str], text: _Words, window: int = _WINDOW) -> bool:
    """Whether a text has all terms, each within reach of one of them."""
    nearby = list[list[int]]()
    for term, following in pairwise([*terms, ""]):
        nearby.append(text.find(term, following))
        if not nearby[-1]:
            return False
    if not nearby:
        return False
    reach = 2 * len(terms) + window
    return any(
        all(any(abs(here - place) <= reach for place in places) for places in nearby) for here in min(nearby, key=len)
    )


def _in_one(words: _Words, texts: Sequence[_Words]) -> bool:
    return any(_near(words.terms, text) for text in texts)


def _part_stated(part: str, asked: _Words, shown: Sequence[_Words]) -> bool:
    pieces = [piece for piece in map(_words, _PIECES.split(part)) if piece.terms]
    if _in_one(_words(part), shown) or all(_in_one(piece, shown) for piece in pieces):
        return True
    # A list of short items is not a sentence: each item must be there.
    listed = len(pieces) > 1 and max(len(piece.terms) for piece in pieces) <= 2
    return not listed and _sentence_stated(_words(part), asked, shown)


def _sentence_stated(words: _Words, asked: _Words, shown: Sequence[_Words]) -> bool:
    """Whether the evidence has the names, the numbers, and nearly all words of a sentence that are not in the
    question."""
    in_names = {term for name in names(words.text) for term in _terms(name)}
    sure = {term for term in words.terms if term in in_names or term[0].isdigit()}
    new = [term for term in words.terms if term not in asked.places or term in sure]
    distinct = set(new)
    if len(words.terms) < 2 or not new or any(f"no{term}" in text.places for term in distinct for text in shown):
        return False
    absent = {term for term in distinct if not any(text.find(term) for text in shown)}
    missing = [term for term in new if term in absent]
    in_one = any(all(text.find(term) for term in sure) for text in shown)
    return in_one and len(missing) <= len(new) // _WORDS_PER_SLIP


def _confirmed(asked: _Words, shown: Sequence[_Words]) -> str:
    """Check a yes or no: the evidence must have the names in the question, or its words if it has no names."""
    operands = [_words(name) for name in names(asked.text)]
    if operands:
        return MENTIONED if all(_in_one(name, shown) for name in operands) else UNSUPPORTED
    return MENTIONED if _in_one(asked, shown) else NONE


def _compared(adjective: str, options: Sequence[_Words], shown: Sequence[_Words]) -> str:
    """Check a comparison: both options in one sentence, a figure with each option (or in the next sentence), or a
    superlative."""
    texts = [[text.text[start:end] for start, end in split_sentences(text.text)] for text in shown]
    sentences = [_words(sentence) for text in texts for sentence in text]
    figure, superlative = (
        _YEAR if adjective in _BY_TIME else _DIGIT,
        adjective.removesuffix("er").removesuffix("r") + "est",
    )
    figured = [bool(figure.search(f"{part} {behind}")) for text in texts for part, behind in pairwise([*text, ""])]
    have = [[_near(option.terms, sentence) for sentence in sentences] for option in options]
    together = any(map(all, zip(*have)))
    by_figure = all(any(has and has_figure for has, has_figure in zip(row, figured)) for row in have)
    named = any(has and superlative in s.text.casefold() for row in have for has, s in zip(row, sentences))
    if together or by_figure or named:
        return MENTIONED
    absent = any(not all(any(t.find(term) for t in shown) for term in _capitalised(option.text)) for option in options)
    return UNSUPPORTED if absent else NONE


def _is_absent(words: _Words, asked: _Words, shown: Sequence[_Words]) -> bool:
    """Whether a part cannot come from the evidence: one of its names or numbers is absent, or all its words are.

    A number calculated from figures in the evidence, and a name in another script, do not count as absent.
    """
    missing = [term for term in dict.fromkeys(words.terms) if not any(text.find(term) for text in shown)]
    translated = _is_translated(asked, shown)
    named = set() if translated else _capitalised(words.text)
    if any((term in named and not _begins_another(term, shown)) or _SCRIPT.search(term) for term in missing):
        return True
    if not translated and _in_another_unit(words, shown):
        return True
    numbers = {_number(term) for term in missing if _NUMBER.fullmatch(term)}
    if numbers:
        return not translated and not all(_is_calculated(number, words, asked, shown) for number in numbers)
    new = {term for term in words.terms if term not in asked.places}
    if translated or _NEGATED.search(words.text):
        return False
    present = {term for term in new if term not in missing and not _NUMBER.fullmatch(term)}
    n_missing = len(new.intersection(missing))
    return n_missing == len(new) > 0 or (not present and n_missing > 1) or (len(present) == 1 and n_missing > 3)


def _is_translated(asked: _Words, shown: Sequence[_Words]) -> bool:
    """Whether the relevant text may be in another script: no other text has half of the question's words."""
    foreign = [2 * len(_SCRIPT.findall(text.text)) > len(text.text) - text.text.count(" ") for text in shown]
    if not any(foreign):
        return False
    own = [text for text, is_foreign in zip(shown, foreign) if not is_foreign]
    return not any(2 * sum(bool(text.find(term)) for term in asked.places) >= len(asked.places) for text in own)


def _is_calculated(number: float, words: _Words, asked: _Words, shown: Sequence[_Words]) -> bool:
    """Whether a number may be a count, or follow from the figures of one text and the question in one calculation."""
    counts = _COUNTS.search(asked.text) and not _is_counted(asked, shown)
    if counts and number <= _MAX_COUNTED:
        return True
    in_units = not _UNIT_TERMS.isdisjoint(words.terms)
    figures = [{_number(term) for term in text.places if _NUMBER.fullmatch(term)} for text in (*shown, asked)]
    if _is_later(number, set().union(*figures)):
        return True
    for text, own in zip(shown, figures):
        known = own | figures[-1]
        calculates = counts or _CALCULATES.search(asked.text) or _CALCULATES.search(text.text)
        if (calculates and _is_sum(number, known)) or (in_units and _is_multiple(number, known)):
            return True
    return False


def _begins_another(name: str, shown: Sequence[_Words]) -> bool:
    """Whether the evidence has a longer word that begins with a name: "Korean" for "Korea"."""
    return len(name) > 3 and any(term.startswith(name) for text in shown for term in text.places)


def _has_addition(part: str, asked: _Words, shown: Sequence[_Words]) -> bool:
    """Whether the answer adds a piece of which the evidence has no word."""
    pieces = [piece for piece in map(_words, _PIECES.split(part)) if piece.terms]
    min_words = 1 if len(pieces) > 2 and max(len(piece.terms) for piece in pieces) <= 2 else 2
    present = [{term for term in piece.terms if any(text.find(term) for text in shown)} for piece in pieces]
    new = [{*piece.terms} - asked.places.keys() for piece in pieces]
    return any(present) and any(len(added) >= min_words and not added & known for added, known in zip(new, present))


def _in_another_unit(words: _Words, shown: Sequence[_Words]) -> bool:
    """Whether a number is in the evidence, but not with the unit or month that follows it in the answer."""
    for number, unit in pairwise(words.terms):
        if _NUMBER.fullmatch(number) and unit in _UNIT_TERMS | _MONTH_TERMS:
            behind = {text.terms[i + 1] for text in shown for i in text.find(number) if i + 1 < len(text.terms)}
            if unit not in behind and (unit in _MONTH_TERMS or behind & _UNIT_TERMS):
                return True
        of_year = number in _MONTH_TERMS and any(text.find(unit) for text in shown)
        if of_year and not any(text.find(number) for text in shown):
            return True
    return False


def _is_counted(asked: _Words, shown: Sequence[_Words]) -> bool:
    """Whether the evidence has a number before the noun asked for; "of the nine muses" does not count."""
    match = _HOW_MANY.search(asked.text)
    if match is None:
        return False
    count = re.compile(rf"(?<!of the )\b\d+ {re.escape(match[1])}\b", re.IGNORECASE)
    return any(count.search(one_form(text.text)) for text in shown)


def _capitalised(text: str) -> set[str]:
    """The terms of capitalised words, without a first word that other words follow."""
    capitals = _CAPITAL.findall(text)
    is_name = all(word[0].isupper() for word in text.split())
    if capitals and text.lstrip().startswith(capitals[0]) and not is_name:
        capitals = capitals[1:]
    terms = {term for word in capitals for term in _terms(word)} - _MONTH_TERMS
    return {term for term in terms if not term[0].isdigit()}


def _number(term: str) -> float:
    return float(term.replace("p", "."))


def _is_multiple(number: float, known: Set[float]) -> bool:
    return any(abs(x * by - number) < 1e-6 * number or abs(x - by * number) < 1e-6 * x for x in known for by in _RATIOS)


def _is_later(year: float, known: Set[float]) -> bool:
    """Whether a year is a known year plus a known number, as in "nine years later"."""
    return any(year - figure in known for figure in known if figure >= _FIRST_YEAR)


def _is_sum(number: float, known: Set[float]) -> bool:
    """Whether a number is a sum of two or three known numbers, a difference of two, or a small multiple of one."""
    figures = sorted(known)[:_MAX_ADDED]
    sums = {sum(added) for n in (2, 3) for added in combinations(figures, n)}
    differences = {b - a for a, b in combinations(figures, 2)}
    multiples = {figure * by for figure in figures for by in (2, *figures) if by <= _MAX_COUNTED}
    return any(abs(number - figure) < 1e-6 * number for figure in sums | differences | multiples)
