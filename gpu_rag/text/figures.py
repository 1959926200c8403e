"""Normalise the numbers, dates, times and units of a text, so that "twelve hundred" and "1,200" compare as equal."""

from __future__ import annotations

import re
import unicodedata

MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = (
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
    *("twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth"),
    "twentieth",
)
SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_VALUES = {
    **{word: value for value, word in enumerate(_ONES)},
    **{word: 10 * value for value, word in enumerate(_TENS, 2)},
}
_ORDINAL_VALUES = {word: str(value) for value, word in enumerate(_ORDINALS, 1)}
_ROMAN = {"II": "2", "III": "3", "IV": "4", "V": "5", "VI": "6", "VII": "7", "VIII": "8", "IX": "9", "X": "10"}
UNITS = {"km": "kilometre", "m": "metre", "cm": "centimetre", "mm": "millimetre", "kg": "kilogram", "g": "gram"}
_PLAIN = str.maketrans(
    {"ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"}
)

_SAID = "|".join([*_VALUES, *SCALES])
NUMERAL = re.compile(
    rf"\b(?:\d+(?:\.\d+)?\s+(?:{'|'.join(SCALES)})|(?:{_SAID})(?:(?:\s+and\s+|[\s-]+)(?:{_SAID}))*)\b", re.IGNORECASE
)
_GROUPED = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_DECIMAL = re.compile(r"(?<=\d)\.(?=\d)")
_ORDINAL = re.compile(r"\b(\d+)(?:st|nd|rd|th)\b", re.IGNORECASE)
_ORDINAL_WORD = re.compile(rf"\b(?:{'|'.join(_ORDINALS)})\b", re.IGNORECASE)
_REIGN = re.compile(rf"(?<=[a-z] )({'|'.join(_ROMAN)})\b")
_UNIT = re.compile(rf"(\d)\s?({'|'.join(UNITS)})\b")
_DATE = re.compile(r"\b(?P<y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})\b")
_MONTH_YEAR = re.compile(r"\b(?P<m>\d{1,2})/(?P<y>\d{4})\b")
_SHORT_MONTH = re.compile(r"\b(jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b\.?", re.IGNORECASE)
_CLOCK = re.compile(r"\b(\d{1,2})[:.](\d{2})\s*([ap])\.?m\b\.?", re.IGNORECASE)
_HALF_DOZEN = re.compile(r"\bhalf a dozen\b", re.IGNORECASE)
_TIME = re.compile(r"\b0?(\d{1,2}):(\d{2})\b")
_HOURS = "|".join([*_ONES[1:], *(str(hour) for hour in range(1, 13))])
_SPOKEN_TIME = re.compile(
    rf"\b(half past|(?:a )?quarter past|(?:a )?quarter to) ({_HOURS})\b"
    r"(?: (?:in the (morning|afternoon|evening)|at (night)|([ap])\.?m\b))?",
    re.IGNORECASE,
)


def one_form(text: str) -> str:
    """`text` without accents; numbers as digits, a decimal point as "p", dates as day, month, year, months in full.

    Times of day in 24 hours, units after a number in full, "Henry VIII" as "Henry 8". Linear, deterministic.

    >>> one_form("Twelve hundred on 1887-03-14, at 1:15 pm, 5 km from Łódź")
    '1200 on 14 march 1887, at 13p15, 5 kilometre from Lodz'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_PLAIN))
        text = unicodedata.normalize("NFKC", "".join(char for char in text if unicodedata.category(char) != "Mn"))
    text = _CLOCK.sub(lambda match: f"{int(match[1]) % 12 + 12 * (match[3] in 'pP')}.{match[2]}", text)
    text = _TIME.sub(r"\1.\2", _SPOKEN_TIME.sub(_time, text))
    text = _HALF_DOZEN.sub("6", text)
    text = _MONTH_YEAR.sub(_date, _DATE.sub(_date, text))
    text = _SHORT_MONTH.sub(lambda match: next(m for m in MONTHS if m.startswith(match[1][:3].casefold())), text)
    text = _UNIT.sub(lambda match: f"{match[1]} {UNITS[match[2]]}", text)
    text = _REIGN.sub(lambda match: _ROMAN[match[1]], text)
    text = _ORDINAL_WORD.sub(lambda match: _ORDINAL_VALUES[match[0].casefold()], _ORDINAL.sub(r"\1", text))
    text = _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
    return _DECIMAL.sub("p", NUMERAL.sub(lambda match: _value(match[0]), text))


def _time(match: re.Match[str]) -> str:
    """Convert a spoken time of day, such as "half past nine in the evening"."""
    how, hour = match[1].casefold(), int(_value(match[2]))
    day = "".join(filter(None, match.groups()[2:])).casefold()
    if day:
        hour = hour % 12 + 12 * (day in {"afternoon", "evening", "p"} or (day == "night" and 5 < hour < 12))
    minutes = 60 * hour + {"half past": 30}.get(how, -15 if how.endswith("to") else 15)
    return f"{minutes // 60 % 24}.{minutes % 60:02d}"


def _date(match: re.Match[str]) -> str:
    month, day = int(match["m"]), match.groupdict().get("d")
    named = f"{MONTHS[month - 1]} {match['y']}" if 1 <= month <= 12 else match[0]
    return f"{int(day)} {named}" if day and named != match[0] else named


def _value(words: str) -> str:
    """The value of a numeral in words, as digits."""
    total, part = 0.0, 0.0
    for word in re.split(r"[\s-]+", words.casefold()):
        scale = SCALES.get(word)
        if scale and scale <= 100:
            part = (part or 1) * scale
        elif scale:
            total, part = total + (part or 1) * scale, 0.0
        elif word != "and":
            part += _VALUES[word] if word in _VALUES else float(word)
    return f"{total + part:.12g}"
