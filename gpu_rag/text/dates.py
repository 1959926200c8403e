"""Write dates in one form: "2025-03-05", "05.03.2025", "March 5th, 2025" and "5 March 2025" share their words."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator

from gpu_rag.text.figures import MONTHS

# English, German, French, Spanish, Italian, Portuguese, Dutch, Polish and Russian names in dates, by month.
_NAMES = """
january jan januar jänner janvier enero ene gennaio janeiro januari stycznia января
february feb februar février févr febrero febbraio fevereiro fev februari lutego февраля
march mar märz mars marzo março maart marca марта
april apr avril abril aprile kwietnia апреля
may mai mayo maggio maio mei maja мая
june jun juni juin junio giugno junho czerwca июня
july jul juli juillet julio luglio julho lipca июля
august aug août agosto augustus sierpnia августа
september sep sept septembre septiembre settembre setembro września сентября
october oct okt oktober octobre octubre ottobre outubro października октября
november nov novembre noviembre novembro listopada ноября
december dec dez dezember décembre diciembre dicembre dezembro grudnia декабря
"""
_MONTH_OF = {name: number for number, line in enumerate(_NAMES.strip().splitlines(), 1) for name in line.split()}
# Each begins with a set of characters, which is searched for fast; `_is_part` replaces a look-behind.
_YEAR = r"([12][0-9]{3})(?![^\W_]|[./-]?\d)"
_TO = r"(\s?[-–—/]\s?|\s(?i:to|and|until|through|bis|und|au|al|a|tot|do|по)\s)"  # between the days of a range
_BETWEEN = re.compile(r"\b(?:between|zwischen)\s+(?:the\s+|dem\s+)?$", re.IGNORECASE)
_NUMERIC = re.compile(r"([0-9]{1,4})([./-])([0-9]{1,2})\2([0-9]{1,4})(?![^\W_T]|T\D|[./-]?\d)")
_CHARACTERS = re.compile(r"([12][0-9]{3})[年년]\s?([0-9]{1,2})[月월]\s?([0-9]{1,2})[日일]")
_RANGE = re.compile(
    rf"([0-9]{{1,2}})(?:st|nd|rd|th|\.)?(?:\s([^\W\d_]{{3,12}}))?{_TO}"
    rf"([0-9]{{1,2}})(?:st|nd|rd|th|\.)?\s([^\W\d_]{{3,12}})[.,]?\s{_YEAR}"
)
_RANGE_IN_MONTH = re.compile(
    rf"([JFMASONDjfmasond][a-z]{{2,8}})\.?\s([0-9]{{1,2}})(?:st|nd|rd|th)?{_TO}([0-9]{{1,2}})(?:st|nd|rd|th)?,?\s{_YEAR}"
)
_HAS_NUMERIC = re.compile("[0-9][./-][0-9]")  # parts of the dates above, found faster than these
_HAS_RANGE = re.compile(rf"[0-9](?:st|nd|rd|th|\.)?(?:\s[^\W\d_]{{3,12}})?{_TO}[0-9]")
_DAY_FIRST = re.compile(
    r"([0-9]{1,2})(?:st|nd|rd|th|er|[.º])?[ \n-](?:(?:of|de)\s)?([^\W\d_]{3,12})\b"
    rf"(?:[.,]?[ \n-](?:(?:of|de)\s)?{_YEAR})?"
)
_MONTH_FIRST = re.compile(
    r"([JFMASONDjfmasond](?:an|eb|ar|pr|ay|u[nlg]|ep|ct|ov|ec)[a-z]{0,6})\.?\s([0-9]{1,2})(?:st|nd|rd|th)?(?![^\W_]|[./-]?\d)"
    rf"(?:,?\s{_YEAR})?"
)
_AFTER_DAY = re.compile(r"\b[0-9]{1,2}\s$")
_GOES_ON = re.compile(r"\d[_.,:/-]$")
_VERSION = re.compile(r"\b(?:versi\w+|release|v)\.?\s$", re.IGNORECASE)
_FULL = re.compile(rf"\b[0-9]{{1,2}} (?:{'|'.join(map(str.capitalize, MONTHS))}) [12][0-9]{{3}}\b")


def full_dates(text: str) -> frozenset[str]:
    """The dates of a day, a month and a year in a text, as "5 March 2025"."""
    return frozenset(_FULL.findall(plain_dates(text)))


def without_full_dates(text: str) -> str:
    """`text` with `plain_dates`, without its full dates."""
    return _FULL.sub("", plain_dates(text))


def plain_dates(text: str) -> str:
    """`text` with every date of a day and a month as day, English month and year: "5 March 2025".

    Numbers are read where only one date is meant: year first, day.month.year, or with a part above 12 or two equal
    parts. 3/4/2025 stays. A month that is not the English name stands behind the date too. Both ends of a range that
    ends with its year, such as "30 May to 2 June 2025" and "May 3 to 5, 2025", have a month and the year. Two days with
    "and" and one month are a range only after "between".

    >>> plain_dates("on 2025-03-05, 25/3/2025, Mar 7th, 2025, and 9. März 2025")
    'on 5 March 2025, 25 March 2025, 7 March 2025, and 9 March 2025 März'
    >>> plain_dates("from 3-5 April 2025, 30 May to 2 June 2025")
    'from 3 April 2025 - 5 April 2025, 30 May 2025 to 2 June 2025'
    """
    if not text.isascii():
        text = _CHARACTERS.sub(lambda match: f" {_written(match[3], int(match[2]), match[1]) or match[0]} ", text)
    if _HAS_NUMERIC.search(text):
        text = _NUMERIC.sub(_of_numbers, text)
    if _HAS_RANGE.search(text):
        text = _RANGE.sub(lambda match: _of_range(match, match[1], match[2] or match[5], match[5]), text)
        text = _RANGE_IN_MONTH.sub(lambda match: _of_range(match, match[2], match[1], match[1]), text)
    text = _DAY_FIRST.sub(lambda match: _named(match, match[1], match[2]), text)
    return _MONTH_FIRST.sub(_of_month_first, text)


def numeric_dates(text: str, start: int, end: int) -> Iterator[tuple[re.Match[str], str]]:
    """The dates in figures in text[start:end], each with its words: "5 March 2025"."""
    for match in _NUMERIC.finditer(text, start, end):
        if (date := _of_numbers(match)) != match[0]:
            yield match, date


def _written(day: str, month: int, year: str) -> str:
    """A date in words; "" if there is no such day or month."""
    exists = 1 <= month <= 12 and 1 <= int(day) <= monthrange(2024, month)[1]
    return f"{int(day)} {MONTHS[month - 1].capitalize()} {year}".rstrip() if exists else ""


def _named(match: re.Match[str], day: str, month: str) -> str:
    date = _written(day, _MONTH_OF.get(month.casefold(), 0), match[3] or "")
    is_word = match[3] is None and month.islower()  # "may 3 times"
    return match[0] if not date or is_word or _is_part(match) else date + _foreign(month)


def _of_month_first(match: re.Match[str]) -> str:
    has_day = _AFTER_DAY.search(match.string, max(match.start() - 4, 0), match.start())  # "5 May 3 people"
    return match[0] if has_day else _named(match, match[2], match[1])


def _of_range(match: re.Match[str], first_day: str, first_month: str, last_month: str) -> str:
    months, year = [_MONTH_OF.get(name.casefold(), 0) for name in (first_month, last_month)], match.groups()[-1]
    first_year = str(int(year) - (months[0] > months[1]))  # "30 December to 2 January 2025"
    first, last = _written(first_day, months[0], first_year), _written(match[4], months[1], year)
    is_order, mark = months[0] != months[1] or int(first_day) < int(match[4]), match[3].strip()
    is_between = bool(_BETWEEN.search(match.string, max(match.start() - 16, 0), match.start()))
    is_number = mark.casefold() in ("and", "und") and not match[2] and not is_between  # "group 2 and 9 March 2025"
    if not (first and last and is_order) or is_number or _is_part(match):
        return match[0]
    return f"{first} {mark} {last}{_foreign(last_month)}"


def _foreign(month: str) -> str:
    """The name of a month with a space before it; "" for an English one."""
    return "" if MONTHS[_MONTH_OF[month.casefold()] - 1].startswith(month.casefold()) else f" {month}"


def _of_numbers(match: re.Match[str]) -> str:
    first, mark, second, third = match.groups()
    by_year = len(first) == 4 and len(third) <= 2
    day, month, year = (third, second, first) if by_year else (first, second, third)
    if int(month) > 12 and mark != "." and not by_year:
        day, month = month, day
    elif mark != "." and not by_year and int(day) <= 12 and int(day) != int(month):
        return match[0]  # the day or the month may be first
    date = _written(day, int(month), year) if len(day) <= 2 and len(year) == 4 and year[0] in "12" else ""
    is_version = (
        mark == "." and not by_year and _VERSION.search(match.string, max(match.start() - 12, 0), match.start())
    )
    if not date or is_version or _is_part(match, by_year):
        return match[0]
    return date + " " * match.string.startswith("T", match.end())  # a time follows


def _is_part(match: re.Match[str], by_year: bool = False) -> bool:
    """Whether the match is the end of a longer word or number."""
    before = match.string[max(match.start() - 2, 0) : match.start()]
    return bool(before) and (
        before[-1].isalnum() or before[-1] in ("" if by_year else "_./-") or bool(_GOES_ON.search(before))
    )
