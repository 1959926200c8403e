"""Where dates end: days, months, years, spans of years, centuries."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_rag.text.rules.extraction.lexicon import (
    ERAS,
    MONTHS,
    SCALES,
    UNITS,
)
from gpu_rag.text.rules.extraction.tokens import NAME, NUMBER, Token

YEAR = re.compile(r"(?:1\d|20)\d\d(?:s|[-/]\d{2,4})?")
ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_DAY = re.compile(r"(?:[12]?\d|3[01])(?:st|nd|rd|th)?")
_SHORT_YEAR = re.compile(r"\d\d")
_RANGE_DASHES = frozenset({"-", "--", "–", "—", "/"})


def date_end(tokens: Sequence[Token], i: int) -> int:
    """Where a date that starts at token i ends, else 0: 3 May 1999, May 3, 1999, May 1999, 3 May, 1990s, 44 BC."""
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
    """Where [of | ,] year ends if it starts at token i, else 0."""
    if i < len(tokens) and tokens[i].text in (",", "of"):
        i += 1
    return i + 1 if i < len(tokens) and YEAR.fullmatch(tokens[i].low) else 0


def _is_year(tokens: Sequence[Token], i: int) -> bool:
    if not YEAR.fullmatch(tokens[i].low):
        return False
    return i + 1 == len(tokens) or (tokens[i + 1].low not in UNITS and tokens[i + 1].low not in SCALES)
