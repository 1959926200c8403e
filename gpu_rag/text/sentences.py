"""Split text into sentences: the full stops of many scripts, and abbreviations of English prose."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

# The beginning of a line of a log or a chat: a time with seconds before any word, seconds as the kernel writes them, a
# level, or a date with a time.
LOG_LINE = (
    r"(?:(?:(?:[^\sa-z]{1,40}|\[?[A-Z][a-z]{2})[ ]){0,5}[ ]?\S{0,40}\d\d:\d\d:\d\d|\[[ ]*\d+\.\d+\]|"
    r"\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b|"
    r"\[?\d{1,4}[./-]\d\d?[./-]\d{1,4},?[ ](?:\S{1,3}[ ])?\d?\d:\d\d)"
)
# The look-behind and the possessive quantifiers keep a page of full stops, or of blanks, linear.
_MARKS = ".!?…؟۔।॥"
_STOPS = rf"""
    (?<=[{_MARKS}])(?<![{_MARKS}]{{2}})[{_MARKS}]*+["'”’»)\]]*+(?=\s)  # terminators, quotes and brackets behind them
  | (?<=[。！？])[。！？]*[」』”’）]*
  | (?<=\n)(?:(?:[^\S\n]*+\n)++                # empty lines
    | (?=\S[^\n\t]*+\t)                        # before a row of a table, whose cells are parted by tabs
    | (?={LOG_LINE})
    | (?=[ ]{{0,3}}(?P<item>\d{{1,2}})[.)][^\S\n]++[^\sa-z])  # before an item of a numbered list, see `_items`
    | (?=[ ]{{0,3}}\#{{1,6}}[^\S\n])             # the end of the line above a Markdown heading
    | [ ]{{0,3}}(?:={{2,}}+|-{{2,}}+)[^\S\n]*+\n)   # the line under a heading, or a rule
"""
# The search for one of a set of characters is fast. Headings can begin with others, but have a "#".
_STOP = re.compile(f"[{_MARKS}。！？\n](?:{_STOPS})", re.VERBOSE)
_STOP_OR_HEADING = re.compile(
    rf"(?:[{_MARKS}。！？\n](?:{_STOPS})|^[ ]{{0,3}}\#{{1,6}}[^\S\n][^\n]*+\n)", re.VERBOSE | re.MULTILINE
)
_ITEM = re.compile(r"^([ ]{0,3})(\d{1,2})[.)][^\S\n]++[^\sa-z]", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t\r]*\n(.*?)^---[ \t\r]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"^[\w.-]+:\s", re.MULTILINE)
# A line that is not indented, and no field, item of a list, comment or closing bracket.
_NO_MATTER = re.compile(r"^(?![\w.-]+:(?:\s|$)|-\s|[#\]}\s]|$)", re.MULTILINE)
_LOOK_BACK = 24


def word_set(*lines: str) -> frozenset[str]:
    """The words of several lines."""
    return frozenset(word for line in lines for word in line.split())


def word_lists(path: Path) -> dict[str, frozenset[str]]:
    """The word lists of a TOML file, by name."""
    return {name: word_set(words) for name, words in tomllib.loads(path.read_text("utf-8")).items()}


_LISTS = word_lists(Path(__file__).with_suffix(".toml"))
_BEFORE_NAME, _BEFORE_NUMBER, _MAY_END = _LISTS["before_name"], _LISTS["before_number"], _LISTS["may_end"]
_FIRST_WORDS = _LISTS["first_words"]
POINTING = _LISTS["pointing"]  # first words of a sentence that speaks of the one before it
_BEFORE_ORDINAL, _AFTER_ORDINAL = _LISTS["before_ordinal"], _LISTS["after_ordinal"]


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Character spans of the sentences of `text`.

    A sentence ends at . ! ? … ؟ ۔ । ॥ (with closing quotes and brackets) before white space and a character that is not
    a lower-case letter; at 。！？; at an empty line; before a row of a table (a line with a tab after a word); before a
    line of a log (with a time "12:00:01" before any word, or a level), a message of a chat (with a date and a time) or
    an item of a numbered list, whose number ("3.") is mostly a sentence of its own (not if it begins with a lower-case
    letter, or the item before or after it has not its number or the neighbouring one); and before and after a Markdown
    heading ("# Rivers", or underlined), which is always a sentence. It does not end after an initial ("J. Smith"), a
    title ("Dr."), a number's point or a common abbreviation, unless a usual first word follows ("in the U.S. The ...").

    text: any text. Returns [(start, end)] in order, not overlapping, none empty; ends are trimmed of white space, and
    every character outside all spans is white space. Linear in len(text), deterministic.

    >>> split_sentences("Dr. Ude met J. Roe. They left.")
    [(0, 19), (20, 30)]
    """
    spans: list[tuple[int, int]] = []
    start = 0
    items: set[int] | None = None
    for match in (_STOP_OR_HEADING if "#" in text else _STOP).finditer(text):
        if match.start() < start or not _ends_sentence(text, match):
            continue
        if match["item"]:
            items = _items(text) if items is None else items
            if match.start("item") not in items:
                continue
        _append_trimmed(spans, text, start, match.end())
        start = match.end()
    _append_trimmed(spans, text, start, len(text))
    return spans


def _items(text: str) -> set[int]:
    """Positions of the numbers of the items of lists: before or after an item, with the same indentation, stands one
    of the same number or the neighbouring one. Other numbers begin a line of prose."""
    items: set[int] = set()
    last: dict[str, tuple[int, int]] = {}
    for match in _ITEM.finditer(text):
        place, number = match.start(2), int(match[2])
        before, previous = last.get(match[1], (0, -9))
        if previous <= number <= previous + 1:
            items |= {before, place}
        last[match[1]] = place, number
    return items


def front_matter(text: str) -> str:
    """The front matter with which a text of Markdown begins, from its first rule to the end of the second; "" if the
    lines between two rules are no YAML.

    >>> front_matter("---\\ntitle: Bern\\n---\\n# Bern")
    '---\\ntitle: Bern\\n---\\n'
    """
    matter = _FRONT_MATTER.match(text)
    return matter[0] if matter and _FIELD.search(matter[1]) and not _NO_MATTER.search(matter[1]) else ""


def _append_trimmed(spans: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    piece = text[start:end]
    kept = piece.strip()
    if kept:
        begin = start + len(piece) - len(piece.lstrip())
        spans.append((begin, begin + len(kept)))


_NEXT_WORD = re.compile(r"\s*[\"'“‘«(\[]*(\w*)")


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    mark = match.group()
    if mark[0] in "\n #。！？":
        return True
    # Bounded, so that a page of blanks between two words is not read again for each full stop.
    following = _NEXT_WORD.match(text, match.end(), min(len(text), match.end() + 64))
    next_word = following.group(1) if following else ""
    if next_word[:1].islower():
        return False
    if mark[0] != "." or len(mark) > 1:
        return True
    return _full_stop_ends(text, match.start(), next_word)


def _full_stop_ends(text: str, position: int, next_word: str) -> bool:
    """Whether the single full stop at `position` ends a sentence, by the word before it and the word after it."""
    before = text[max(0, position - _LOOK_BACK) : position]
    pieces = before.split()
    if not pieces or before[-1].isspace():
        return not next_word[:1].isdigit()  # " . 763" is a number torn apart
    word = pieces[-1].lstrip("\"'“‘«([")
    low = word.casefold()
    if (low in _BEFORE_NAME and (len(word) > 1 or word.islower())) or (word == "e" and next_word == "V"):  # "e. V."
        return False
    if low in _BEFORE_NUMBER and next_word[:1].isdigit():
        return False
    is_short_number = len(word) <= 2 and word.isdigit()
    if is_short_number and (next_word.casefold() in _AFTER_ORDINAL or {*pieces[-2:-1]} & _BEFORE_ORDINAL):
        return False
    is_initial = len(word) == 1 and word.isalpha() and word.isupper()
    parts = word.split(".")
    is_dotted = len(parts) > 1 and all(len(part) <= 2 and part.isalpha() for part in parts)  # "U.S", "J.R.R"
    if is_initial or low in _MAY_END or is_dotted:
        return next_word.casefold() in _FIRST_WORDS and next_word[:1].isupper()
    return True
