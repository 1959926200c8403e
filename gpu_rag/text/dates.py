"""Write dates in one form: "2025-03-05", "05.03.2025", "March 5th, 2025" and "5 March 2025" share their words."""

from __future__ import annotations

import re

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
NUMERIC = re.compile(r"([0-9]{1,4})([./-])([0-9]{1,2})\2([0-9]{1,4})(?![^\W_T]|T\D|[./-]?\d)")
_DAY_FIRST = re.compile(
    r"([0-9]{1,2})(?:st|nd|rd|th|er|[.º])?[ \n-](?:(?:of|de)\s)?([^\W\d_]{3,12})\b"
    r"(?:[.,]?[ \n-](?:(?:of|de)\s)?([12][0-9]{3})(?![^\W_]|[./-]?\d))?"
)
_MONTH_FIRST = re.compile(
    r"([JFMASONDjfmasond](?:an|eb|ar|pr|ay|u[nlg]|ep|ct|ov|ec)[a-z]{0,6})\.?\s([0-9]{1,2})(?:st|nd|rd|th)?(?![^\W_]|[./-]?\d)"
    r"(?:,?\s([12][0-9]{3})(?![^\W_]|[./-]?\d))?"
)


def plain_dates(text: str) -> str:
    """`text` with every date of a day and a month as day, English month and year: "5 March 2025".

    Numbers are read where only one date is meant: year first, day.month.year, or with a part above 12 or two equal
    parts. 3/4/2025 stays. A month that is not the English name stands behind the date too.

    >>> plain_dates("on 2025-03-05, 25/3/2025, Mar 7th, 2025, and 9. März 2025")
    'on 5 March 2025, 25 March 2025, 7 March 2025, and 9 March 2025 März'
    """
    text = NUMERIC.sub(_of_numbers, text)
    text = _DAY_FIRST.sub(lambda match: _named(match, match[1], match[2]), text)
    return _MONTH_FIRST.sub(lambda match: _named(match, match[2], match[1]), text)


def _named(match: re.Match[str], day: str, month: str) -> str:
    number = _MONTH_OF.get(month.casefold())
    is_word = match[3] is None and month.islower()  # "may 3 times"
    if number is None or is_word or not 1 <= int(day) <= 31 or _is_part(match):
        return match[0]
    name = MONTHS[number - 1]
    other = "" if name.startswith(month.casefold()) else month
    return " ".join(filter(None, (day.lstrip("0"), name.capitalize(), match[3], other)))


def _of_numbers(match: re.Match[str]) -> str:
    first, mark, second, third = match.groups()
    by_year = len(first) == 4 and len(third) <= 2
    day, month, year = (third, second, first) if by_year else (first, second, third)
    if int(month) > 12 and mark != "." and not by_year:
        day, month = month, day
    elif mark != "." and not by_year and int(day) <= 12 and int(day) != int(month):
        return match[0]  # the day or the month may be first
    is_date = len(day) <= 2 and len(year) == 4 and year[0] in "12" and 1 <= int(month) <= 12 and 1 <= int(day) <= 31
    if not is_date or _is_part(match):
        return match[0]
    end = " " if match.string.startswith("T", match.end()) else ""  # a time follows
    return f"{int(day)} {MONTHS[int(month) - 1].capitalize()} {year}{end}"


def _is_part(match: re.Match[str]) -> bool:
    """Whether the match is the end of a longer word or number."""
    before = match.string[match.start() - 1 : match.start()] if match.start() else ""
    return before.isalnum() or before in {"_", ".", ",", ":", "/", "-"}
