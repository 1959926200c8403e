"""Spelling rules that decide, without a model, that two names are one.

The rules prefer precision: a pair that could also mean two things stays apart. No rule changes numbers, Roman numerals
or words that separate parts of a thing (north, upper, new, ...). A rule that shortens a name ("Ann B. Orlo" to "Ann
Orlo") needs more evidence: no other name may shorten to the same form, and one passage must name both.

Names that a rule may join share a key (`rule_keys`), so that not every two names need be compared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, dropwhile

from gpu_rag.text.rules.extraction.lexicon import ANAPHORS, DIRECTIONS, GENERAL_LAST, MONTHS

SPELLING, ARTICLE, ABBREVIATION, DATE, PLURAL = "spelling", "article", "abbreviation", "date", "plural"
FORM, PLACE, INITIALS, MIDDLE, ACRONYM, TYPING = "company or title", "place", "initials", "middle", "acronym", "typing"
_LEGAL = frozenset({"inc", "incorporated", "ltd", "llc", "plc", "corp", "gmbh"})
_TITLES = frozenset({"mr", "mrs", "ms", "dr", "prof", "professor", "sir", "dame", "rev", "reverend"})
_LONG_FORMS = {
    "u.s.": "united states",
    "u.s": "united states",
    "us": "united states",
    "u.s.a.": "united states of america",
    "usa": "united states of america",
    "u.k.": "united kingdom",
    "uk": "united kingdom",
    "st.": "saint",
    "mt.": "mount",
    "ft.": "fort",
    "jr.": "junior",
    "jr": "junior",
    "sr.": "senior",
    "sr": "senior",
    "bros": "brothers",
    "bros.": "brothers",
    "&": "and",
}
_TOKEN = re.compile(r"[^\W_]+")
_DIGITS = re.compile(r"\d+")
_ROMAN = re.compile(r"[ivxlcdm]+")
_MIN_TYPED, _MIN_REST = 7, 4  # letters of a mistyped word, and of the words beside it
_MIN_ACRONYM, _MIN_INITIALS, _MAX_INNER = 3, 3, 2
_ASCII_SIGNS = re.compile(r"[#%@$+<=>^`|~]")
_GENERATIONS = frozenset({"jr", "sr", "junior", "senior", "ii", "iii", "iv"})
_NO_PERSON = (
    ANAPHORS | GENERAL_LAST | frozenset({"airlines", "airways", "bank", "senate", "police", "capitol", "legion"})
)
_PARTICLES = frozenset({"of", "the", "and", "for", "in", "on", "de", "la", "del", "du", "von", "van"})


@dataclass(frozen=True)
class _Name:
    written: str
    tokens: tuple[str, ...]  # letters and digits, folded, without accents
    long: tuple[str, ...]  # with expanded abbreviations
    digits: tuple[str, ...]
    signs: tuple[str, ...]  # currency signs and the like
    head: tuple[str, ...]  # before the first comma
    tail: tuple[str, ...]  # after it


class NameRules:
    """The rules for some things, each with its names.

    names: for each thing, by its number, the ways to write it, the main one first. others: the ways to write further
    things; short forms are counted over all things, but not if `others` is None. Memory: the things of `names`, and the
    longer names of their forms.
    """

    def __init__(self, names: Mapping[int, Sequence[str]], others: Iterable[Sequence[str]] | None = ()):
        self._names = {thing: _distinct(_name(way) for way in forms) for thing, forms in names.items()}
        wanted = {form for forms in self._names.values() for name in forms for form in (name.tokens, name.head)}
        wanted.discard(())
        self._places, self._middles, self._acronyms = (
            {form: set[tuple[str, ...]]() for form in wanted} for _ in range(3)
        )
        self._counts = others is not None
        firsts = {form[0] for form in wanted}
        for way in chain.from_iterable(chain(names.values(), others) if others is not None else ()):
            acronym = _acronym(way)
            if acronym not in wanted and not _may_be_longer(way, wanted, firsts):
                continue
            name = _name(way)
            for longer, form in (
                (self._places, name.head if name.tail else None),
                (self._middles, (name.tokens[0], name.tokens[-1]) if len(name.tokens) > 2 else None),
                (self._acronyms, acronym),
            ):
                if form in longer:
                    longer[form].add(name.tokens)

    def rule(self, a: int, b: int, together: bool) -> str:
        """The rule that gives things `a` and `b` one name; "" if there is none. Symmetric.

        together: whether a passage names both.
        """
        for base in self._names[a]:
            for other in self._names[b]:
                name = self._rule(base, other, together) or self._rule(other, base, together)
                if name:
                    return name
        return ""

    def _rule(self, base: _Name, other: _Name, together: bool) -> str:
        """The rule by which `other` is `base` in a longer or different form; "" if there is none."""
        if sorted(base.digits) != sorted(other.digits) or base.signs != other.signs:
            return ""
        if not base.tokens or not other.tokens:
            return ""
        same = _same_length(base, other)
        if same:
            return same
        if _is_plural(base, other):
            return PLURAL
        if other.tokens[:-1] == base.tokens and other.tokens[-1] in _LEGAL:
            return FORM
        if _are_initials(base.tokens, other.tokens):
            return INITIALS
        return self._shortened(base, other, together)

    def _shortened(self, base: _Name, other: _Name, together: bool) -> str:
        if set(other.tail) & _GENERATIONS:
            return ""
        if _is_capital(other) and base.tail and other.head == base.head and other.tail[: len(base.tail)] == base.tail:
            return PLACE
        if not together:
            return ""
        if _is_capital(other) and other.head == base.tokens and self._is_one(self._places, other.head):
            return PLACE
        if other.tokens[1:] == base.tokens and len(base.tokens) > 1 and other.tokens[0] in _TITLES:
            return FORM
        if len(base.tokens) == 2 and len(other.tokens) > 2 and _is_middle(base, other):
            return MIDDLE if self._is_one(self._middles, base.tokens) else ""
        if _is_acronym(base) and _acronym(other.written) == base.tokens and self._is_one(self._acronyms, base.tokens):
            return ACRONYM
        return TYPING if _is_mistyped(base.tokens, other.tokens) else ""

    def _is_one(self, longer: Mapping[tuple[str, ...], Sized], form: tuple[str, ...]) -> bool:
        """Whether a short form has one long form, or these are not counted."""
        return not self._counts or len(longer[form]) == 1


def rule_keys(written: str) -> dict[str, bool]:
    """Keys of a name: two names to which a rule of `NameRules` applies share one that is True for at least one of them.

    >>> [sorted(key for key in rule_keys(way)) for way in ("Orlo", "The Orlo")]
    [['orlo'], ['orlo', 'theorlo']]
    """
    name = _name(written)
    tokens, fixed = name.tokens, "".join(f"\t{part}" for part in (*sorted(name.digits), *name.signs))
    if not tokens:
        return {}
    *firsts, last = tokens
    keys = {"".join(form): False for form in _short_forms(name) if form}
    keys |= {"".join(form): True for form in _equal_forms(name) if form}
    if firsts and len(last) >= _MIN_INITIALS:
        initials = "".join(token[0] for token in firsts)
        keys[f"{initials} {last}"] = any(len(token) == 1 for token in firsts)
    if 0 < len(firsts) <= _MAX_INNER + 1:
        keys[f"{firsts[0]}  {last}"] = len(tokens) == 2
    for i, token in enumerate(tokens if firsts else ()):
        if len(token) >= _MIN_TYPED:
            keys[" ".join([*tokens[:i], token[0], "", token[-2:], *tokens[i + 1 :]])] = True
    return {key + fixed: is_short for key, is_short in keys.items()}


def _equal_forms(name: _Name) -> Iterator[Sequence[str]]:
    """Forms that two names share by the rules for names of about one length, and for places with their regions."""
    yield name.tokens
    yield _without_articles(name)
    yield tuple(dropwhile("the".__eq__, name.long))
    if name.tail:
        yield *name.head, ",", name.tail[0]
    if _is_date(name.tokens):
        yield sorted(name.tokens)


def _short_forms(name: _Name) -> Iterator[Sequence[str]]:
    """Forms that are the tokens of the other name by the rules for longer names."""
    yield name.head
    yield _acronym(name.written)
    if name.written == name.written.lower():
        yield *name.tokens[:-1], name.tokens[-1].removesuffix("s")
    if name.tokens[-1] in _LEGAL:
        yield name.tokens[:-1]
    if name.tokens[0] in _TITLES:
        yield name.tokens[1:]


def numbers_differ(name: str, other: str) -> bool:
    """Whether numbers separate two names: each name has a number that the other does not have.

    "1885" and "1887" differ. "May 1931" and "12 May 1931", or "Apollo 11" and "Apollo Eleven", may be one thing.
    """
    a, b = ({digits.lstrip("0") for digits in _DIGITS.findall(text)} for text in (name, other))
    return bool(a - b and b - a)


def _name(written: str) -> _Name:
    folded = written
    if not written.isascii():
        folded = "".join(c for c in unicodedata.normalize("NFKD", written) if not unicodedata.combining(c))
    words = folded.split()
    long = " ".join(_long_form(word) for word in words).casefold()
    head, _, tail = folded.casefold().partition(",")
    low = folded.casefold().replace("'s", "").replace("’s", "") if folded.casefold().endswith(("'s", "’s")) else folded
    tokens = _tokens(low)
    return _Name(
        written, tokens, _tokens(long), tuple(_DIGITS.findall(folded)), _signs(folded), _tokens(head), _tokens(tail)
    )


def _signs(text: str) -> tuple[str, ...]:
    if text.isascii():
        return tuple(sorted(_ASCII_SIGNS.findall(text)))
    return tuple(sorted(c for c in text if c in "#%@" or unicodedata.category(c)[0] == "S"))


def _tokens(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text.casefold()))


def _long_form(word: str) -> str:
    """Expand an abbreviation; "us" and "uk" only if they are in capitals."""
    key = word.casefold()
    if key in ("us", "usa", "uk") and word != word.upper():
        return word
    return _LONG_FORMS.get(key.rstrip(","), word)


def _distinct(names: Iterable[_Name]) -> list[_Name]:
    return list({(name.tokens, name.long, name.tail): name for name in names}.values())


def _same_length(base: _Name, other: _Name) -> str:
    if "".join(base.tokens) == "".join(other.tokens) and base.digits == other.digits:
        return SPELLING
    if _without_articles(base) == _without_articles(other):
        return ARTICLE
    if base.long == other.long or (other.long[:1] == ("the",) and other.long[1:] == base.long):
        return ABBREVIATION
    return DATE if sorted(base.tokens) == sorted(other.tokens) and _is_date(base.tokens) else ""


def _is_date(tokens: Sequence[str]) -> bool:
    """Whether tokens are numbers and one name of a month."""
    months = [token for token in tokens if token in MONTHS]
    return len(months) == 1 and all(token.isdigit() or token in MONTHS for token in tokens)


def _without_articles(name: _Name) -> list[str]:
    """Tokens without "the", and without "a" or "an" as the first word; the "A" in "vitamin A" and "A.C.E" stays."""
    leading = name.written.casefold().split()[0] in ("a", "an") and len(name.tokens) > 1
    rest = name.tokens[1:] if leading else name.tokens
    return [token for token in rest if token != "the"] or ["the"]


def _is_plural(base: _Name, other: _Name) -> bool:
    """Whether `other` is the plural of `base`, like "river boat" and "river boats"; common nouns only."""
    return (
        base.written == base.written.lower()
        and other.written == other.written.lower()
        and base.tokens[:-1] == other.tokens[:-1]
        and len(base.tokens[-1]) > 3
        and base.tokens[-1].isalpha()
        and base.tokens[-1] + "s" == other.tokens[-1]
    )


def _is_capital(name: _Name) -> bool:
    """Whether every part between commas begins with a capital: "Springfield, Massachusetts", not "a poet, writer"."""
    parts = name.written.split(",")
    return len(parts) > 1 and all(part.strip()[:1].isupper() for part in parts)


def _are_initials(base: Sequence[str], other: Sequence[str]) -> bool:
    """Whether `base` has initials for names in `other` ("j r orlo", "john ronald orlo"); the last words are equal."""
    if len(base) != len(other) or len(base) < 2 or base[-1] != other[-1] or base == other:
        return False
    return len(base[-1]) >= _MIN_INITIALS and all(a == b or _is_initial(a, b) for a, b in zip(base[:-1], other[:-1]))


def _is_initial(letter: str, word: str) -> bool:
    return len(letter) == 1 and letter.isalpha() and word[0] == letter and not _ROMAN.fullmatch(word)


def _is_middle(base: _Name, other: _Name) -> bool:
    """Whether `other` is `base` with middle names ("ann orlo", "ann b orlo"); only capitalised people's names."""
    capital = all(word[:1].isupper() for word in [*base.written.split(), *other.written.split()])
    inner = other.tokens[1:-1]
    ends = (other.tokens[0], other.tokens[-1]) == base.tokens
    plain = "/" not in other.written and not other.tail and base.tokens[-1] not in _NO_PERSON
    names = len(other.tokens) == len(other.written.split()) and not any(_tells_apart(word) for word in inner)
    few = len(inner) <= _MAX_INNER and not set(inner) & _PARTICLES
    return capital and plain and names and ends and few and not other.digits


def _tells_apart(word: str) -> bool:
    """Whether a word makes a different name: "West", "New", "II"."""
    return word in DIRECTIONS or (len(word) > 1 and _ROMAN.fullmatch(word) is not None)


def _may_be_longer(written: str, wanted: set[tuple[str, ...]], firsts: set[str]) -> bool:
    """Whether a name may be the longer name of a form in `wanted`; much faster than `_name`. firsts: the first tokens
    of these forms."""
    first = _TOKEN.search(written)
    if not written.isascii() or written.endswith(("'s", "'S")):
        return True
    if first is None or first[0].lower() not in firsts:
        return False
    head, comma, _ = written.partition(",")
    tokens = _tokens(written)
    return (bool(comma) and _tokens(head) in wanted) or (len(tokens) > 2 and (tokens[0], tokens[-1]) in wanted)


def _acronym(written: str) -> tuple[str, ...]:
    words = written.split()
    if len(words) < _MIN_ACRONYM:  # most names, and this runs on all of an index
        return ()
    words = [word for word in words if word[0].isupper()]
    letters = "".join(word[0] for word in words).casefold()
    return (letters,) if len(words) >= _MIN_ACRONYM and letters.isalpha() else ()


def _is_acronym(name: _Name) -> bool:
    letters = name.written.replace(".", "")
    return len(letters) >= _MIN_ACRONYM and letters.isalpha() and letters.isupper()


def _is_mistyped(base: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one letter in one long word differs, is missing, or swapped with its neighbour; all else is equal."""
    if len(base) != len(other) or len(base) < 2:
        return False
    differing = [(a, b) for a, b in zip(base, other) if a != b]
    rest = sum(len(a) for a, b in zip(base, other) if a == b)
    if len(differing) != 1 or rest < _MIN_REST:
        return False
    a, b = differing[0]
    return min(len(a), len(b)) >= _MIN_TYPED and a[0] == b[0] and a[-2:] == b[-2:] and _one_edit(a, b)


def _one_edit(a: str, b: str) -> bool:
    """Whether one insertion, deletion, substitution or swap of neighbours turns `a` into `b`."""
    if len(a) > len(b):
        a, b = b, a
    if len(b) - len(a) > 1:
        return False
    first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))
    if len(a) != len(b):
        return a[first:] == b[first + 1 :]
    swapped = a[first : first + 2] == b[first : first + 2][::-1] and a[first + 2 :] == b[first + 2 :]
    return a[first + 1 :] == b[first + 1 :] or swapped
