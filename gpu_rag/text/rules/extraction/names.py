"""Dates and names, from their first token to their last: capitalised words with small words and numbers inside."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_rag.text.rules.extraction.lexicon import (
    ADVERBS,
    ANAPHORS,
    COMMON,
    CONJUNCTIONS,
    DATED_HEADS,
    ERAS,
    FIELD_HEADS,
    HEADS,
    INNER,
    JOINED_POSSESSIVES,
    MONTHS,
    NUMBERED,
    OPENERS,
    ORIGIN_ENDINGS,
    ORIGINS,
    OWNED,
    PAIR_ENDS,
    PAIRS,
    PREPOSITIONS,
    RANKS,
    RELATIVES,
    SCALES,
    SUFFIXES,
    UNITS,
    is_verb,
)
from gpu_rag.text.rules.extraction.tokens import NAME, NUMBER, WORD, PassageWords, Token, opens

YEAR = re.compile(r"(?:1\d|20)\d\d(?:s|[-/]\d{2,4})?")
ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_DAY = re.compile(r"(?:[12]?\d|3[01])(?:st|nd|rd|th)?")
_SHORT_YEAR = re.compile(r"\d\d")
_RANGE_DASHES = frozenset({"-", "--", "–", "—", "/"})


def date_end(tokens: Sequence[Token], i: int) -> int:
    """The end of a date that starts at token i, else 0: 3 May 1999, May 3, 1999, May 1999, 3 May, 1990s, 44 BC."""
    low, n = tokens[i].low, len(tokens)
    if tokens[i].kind == NUMBER:
        if i + 1 < n and tokens[i + 1].low in MONTHS and tokens[i + 1].kind == NAME and _DAY.fullmatch(low):
            return _year_end(tokens, i + 2) or i + 2
        if i + 1 < n and tokens[i + 1].low in ERAS and tokens[i + 1].text.isupper():
            return i + 2
        if i + 1 < n and tokens[i + 1].low in ("century", "centuries", "millennium") and ORDINAL.fullmatch(low):
            return i + 2
        if not _is_year(tokens, i):
            return 0
        season = i + 2 < n and tokens[i + 1].text in _RANGE_DASHES and _SHORT_YEAR.fullmatch(tokens[i + 2].low)
        return i + 3 if season else i + 1
    if low not in MONTHS or i + 1 >= n:
        return 0
    if _DAY.fullmatch(tokens[i + 1].low):
        return _year_end(tokens, i + 2) or i + 2
    return _year_end(tokens, i + 1)


def _year_end(tokens: Sequence[Token], i: int) -> int:
    """The end of [of | ,] year if it starts at token i, else 0."""
    if i < len(tokens) and tokens[i].text in (",", "of"):
        i += 1
    return i + 1 if i < len(tokens) and YEAR.fullmatch(tokens[i].low) else 0


def _is_year(tokens: Sequence[Token], i: int) -> bool:
    if not YEAR.fullmatch(tokens[i].low):
        return False
    return i + 1 == len(tokens) or (tokens[i + 1].low not in UNITS and tokens[i + 1].low not in SCALES)


_JOINING_DASHES = frozenset("–—‑‐-")
_AFTER_NAME = PREPOSITIONS | CONJUNCTIONS | RELATIVES | ADVERBS
_COMMON_ENDINGS = ("ly", "ing", "ed", "ment", "ments", "tion", "tions", "ness", "ity", "ities")


def name_span(tokens: Sequence[Token], i: int, words: PassageWords) -> tuple[int, int] | None:
    """(first, last) of the name that starts at token i, or None where the capital is only a sentence's first.

    first is i, or i + 1 where a rank is left out.
    """
    token = tokens[i]
    if opens(tokens, i):
        if token.low in OPENERS and not _is_the_of_name(tokens, i):
            return None
        last = _span_end(tokens, i)
        numbered = last == i + 2 and tokens[i + 1].kind == NUMBER
        if (last == i + 1 or numbered) and not _is_name_alone(tokens, i, words):
            return None
    else:
        begins = i + 1 < len(tokens) and tokens[i + 1].kind == NAME  # "Per Dahl", "The Larks"
        if token.text == "I" or (token.low in OPENERS and not begins and token.text != "US"):
            return None
        last = _span_end(tokens, i)
    if token.low in RANKS and last - i > 2 and tokens[i + 1].kind == NAME:
        i += 1  # "Captain Ada Holm" is Ada Holm elsewhere
    if _is_common(tokens, i, last):
        return None
    return i, last


def _is_common(tokens: Sequence[Token], first: int, last: int) -> bool:
    """A capital on a word that names nothing alone: "the Team", "in March", "What's"; in normal form it would equal the
    common word wherever that stands."""
    token = tokens[first]
    if token.low == "the" and last == first + 2:
        return tokens[first + 1].low in COMMON or tokens[first + 1].low in ANAPHORS
    if last > first + 1:
        # Four words at most, so that a page of capital A's is not read again from each of them.
        return last <= first + 4 and token.low != "the" and all(tokens[k].low in OPENERS for k in range(first, last))
    if len(token.text) < 2 or token.low in MONTHS or token.low in SUFFIXES:
        return True
    return token.text != "US" and (token.low in OPENERS or token.low in COMMON or token.low in ANAPHORS)


def _is_the_of_name(tokens: Sequence[Token], i: int) -> bool:
    """A capital The inside a sentence, before a capital: part of the name ("a member of The Larks")."""
    return tokens[i].low == "the" and i > 0 and i + 1 < len(tokens) and tokens[i + 1].kind == NAME


def _is_name_alone(tokens: Sequence[Token], i: int, words: PassageWords) -> bool:
    """Whether one capitalised word that opens a sentence is a name: by what the passage and the lists say of it."""
    token, low = tokens[i], tokens[i].low
    if low in words.inside or token.text[1:] != token.text[1:].lower() or low in ORIGINS:
        return True
    if low in COMMON or low in words.small:
        return low in words.title and low not in words.small
    if is_verb(low, "") or low.endswith(_COMMON_ENDINGS):
        return False
    after = tokens[i + 1] if i + 1 < len(tokens) else None
    noun_behind = (
        after is not None and after.kind == WORD and after.low not in _AFTER_NAME and not is_verb(after.low, "")
    )
    return not noun_behind or low in words.title or low.endswith(ORIGIN_ENDINGS)


def _span_end(tokens: Sequence[Token], i: int) -> int:
    """One past the last token of the name that starts at token i."""
    n, last = len(tokens), i + 1
    while last < n:
        if tokens[last - 1].possessive and not _joins_possessive(tokens, i, last):
            break
        step = _extension(tokens, i, last)
        if step == 0:
            break
        last += step
    return last


def _joins_possessive(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether the possessive before token `last` stays inside a name ("St. Olaf's Church", "Women's League")."""
    owner = tokens[last - 1].low
    saint = last >= 2 and tokens[last - 2].low in ("st.", "st", "saint")
    if tokens[last].kind != NAME:
        return False
    alone = last == first + 1 and tokens[last].low in OWNED
    return saint or alone or f"{owner}'s" in JOINED_POSSESSIVES


def _extension(tokens: Sequence[Token], first: int, last: int) -> int:
    """The number of tokens from `last` on that continue the name tokens[first:last]; 0 when it ends."""
    token, n = tokens[last], len(tokens)
    if token.kind == NAME:
        return 0 if token.low in MONTHS and date_end(tokens, last) else 1
    if token.kind == NUMBER:
        return 1 if _number_joins(tokens, first, last) else 0
    if token.text == "," and last + 1 < n and tokens[last + 1].low in SUFFIXES and tokens[last + 1].kind == NAME:
        return 2
    if token.text == "&" and last + 1 < n and tokens[last + 1].kind == NAME:
        return 2
    if token.text in _JOINING_DASHES and last + 1 < n and tokens[last + 1].kind == NAME:
        touching = tokens[last - 1].end == token.start and token.end == tokens[last + 1].start
        return 2 if touching else 0
    if token.text == "," and tokens[last - 1].low in ("act", "treaty", "agreement", "convention"):
        return 2 if last + 1 < n and YEAR.fullmatch(tokens[last + 1].low) else 0
    if token.kind != WORD:
        return 0
    return _pair(tokens, first, last) or _inner_words(tokens, first, last)


def _pair(tokens: Sequence[Token], first: int, last: int) -> int:
    """ "and Tobago" behind "Trinidad"; "and Leeds Railway" behind "Hull": two names that make one."""
    n = len(tokens)
    if tokens[last].low != "and" or last + 1 >= n or tokens[last + 1].kind != NAME or tokens[last - 1].possessive:
        return 0
    if (tokens[last - 1].low, tokens[last + 1].low) in PAIRS:
        return 2
    end = last + 2
    while end < n and end < last + 4 and tokens[end].kind == NAME and not tokens[end - 1].possessive:
        end += 1
    single = last == first + 1
    return end - last if single and end > last + 2 and tokens[end - 1].low in PAIR_ENDS else 0


def _number_joins(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Apollo 11, the Reds of section 76ers; not a year, a day of a month or an amount."""
    token = tokens[last]
    if tokens[last - 1].low in MONTHS or YEAR.fullmatch(token.low):
        return False
    if tokens[last - 1].low in NUMBERED:
        return token.text.isalnum()
    after = tokens[last + 1] if last + 1 < len(tokens) else None
    if after is not None and after.kind == WORD and not is_verb(after.low, "") and after.low not in _AFTER_NAME:
        return False
    return token.text.isalnum() and len(token.text) <= 5 and not ORDINAL.fullmatch(token.low)


def _inner_words(tokens: Sequence[Token], first: int, last: int) -> int:
    """The number of small words, and the capital behind them, that continue a name; 0 when they do not."""
    n, low = len(tokens), tokens[last].low
    if low in ("for", "on"):
        if not any(tokens[k].low in HEADS for k in range(first, last)):
            return 0
    elif low == "and":
        span = {tokens[k].low for k in range(first, last)}
        if not (span & FIELD_HEADS and span & {"of", "for"}):
            return 0
    elif low not in INNER:
        return 0
    k = last + 1
    while k < n and k - last < 3 and tokens[k].kind == WORD and (tokens[k].low in INNER or tokens[k].low == "the"):
        k += 1
    if k >= n or (tokens[k - 1].low == "the" and low not in ("of", "for", "on", "upon")):
        return 0
    if tokens[k].kind == NAME and tokens[k].low not in MONTHS:
        return k - last + 1
    dated = low == "of" and tokens[last - 1].low in DATED_HEADS and tokens[k].kind == NUMBER
    return k - last + 1 if dated else 0
