"""Numbers of paragraphs that are not in the text of a file: lists of office files and of HTML pages."""

from __future__ import annotations

import re
from collections import defaultdict

from gpu_rag.sources.corpus.package import Package

_ROMAN = {
    1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X", 9: "IX", 5: "V",
    4: "IV", 1: "I",
}  # fmt: skip
_LEVELS = frozenset("012345678")
_KINDS = {"lowerLetter": "a", "upperLetter": "A", "lowerRoman": "i", "upperRoman": "I", "bullet": "", "none": ""}
_MAX_NUMBER = 999_999
_MAX_BASES, _MAX_LEVELS = 16, 10
# Parts of the names of numbers in slides, "alphaLcParenR": the kind, and what stands around it
_SLIDE_KINDS = {"arabic": "1", "alphaLc": "a", "alphaUc": "A", "romanLc": "i", "romanUc": "I"}
_SLIDE_MARKS = {"Period": "{}.", "ParenR": "{})", "ParenBoth": "({})", "Plain": "{}"}
_MAX_LETTERS = 26 * 30  # beyond, Word has no letters


def numeral(number: int, kind: str) -> str:
    """The number as a figure (kind "1"), a letter ("a", "A": to z) or Roman ("i", "I"); "" if it has no such form."""
    if kind in ("a", "A"):
        return chr(ord(kind) + number - 1) if 0 < number <= 26 else ""
    if kind not in ("i", "I"):
        return str(number) if kind else ""
    words = list[str]()
    for value, sign in _ROMAN.items() if 0 < number < 4000 else ():
        words.append(sign * (number // value))
        number %= value
    return "".join(words) if kind == "I" else "".join(words).lower()


def whole(value: str | None, otherwise: int) -> int:
    """The whole number that an attribute gives, or `otherwise`."""
    return int(value) if value and re.fullmatch("-?[0-9]{1,6}", value) else otherwise


class Numbering:
    """Counter of the numbered paragraphs of a .docx in their order. Lists of one abstract list go on counting, unless a
    list says where it starts."""

    def __init__(self, package: Package, name: str, styles: str) -> None:
        """Read the lists from the member `name`, and the lists of styles from `styles`. Raises RowError."""
        self._abstract: dict[str, str] = {}  # the abstract list of each list
        # level: its properties, of each list, and of each abstract list (with "*" before its id)
        self._levels: defaultdict[str, defaultdict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        self._counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._begun: set[str] = set()
        self._styles: defaultdict[str, dict[str, str]] = defaultdict(dict)  # properties of each style
        self._linked: dict[tuple[str, str], str] = {}  # the level of a list that a style has
        list_ = level = style = ""
        for tag, attributes, _ in package.elements(name) if name in package else ():
            value = attributes.get("val", "")
            if tag in ("abstractNum", "num"):
                list_ = attributes.get("numId") or f"*{attributes.get('abstractNumId', '')}"
            elif tag == "abstractNumId":
                self._abstract[list_] = f"*{value}"
            elif tag in ("lvl", "lvlOverride"):
                level = attributes.get("ilvl", level)
            elif level in _LEVELS and tag in ("start", "startOverride", "numFmt", "lvlText"):
                self._levels[list_][level][tag] = value
            elif level in _LEVELS and tag == "pStyle":
                self._linked[list_, value] = level
        for tag, attributes, _ in package.elements(styles) if styles in package else ():
            if tag == "style":
                style = attributes.get("styleId", "")
            elif tag in ("numId", "ilvl", "basedOn"):
                self._styles[style][tag] = attributes.get("val", "")

    def of_style(self, style: str) -> tuple[str, str]:
        """(list, level) of paragraphs of a style, or else of the styles that it is based on; ("", "") for none. A level
        that is linked to the style comes before its own."""
        chain = [style]
        while len(chain) < _MAX_BASES and (base := self._styles.get(chain[-1], {}).get("basedOn")):
            chain.append(base)
        own = [self._styles.get(name, {}) for name in chain]
        list_ = next(filter(None, (properties.get("numId") for properties in own)), "")
        abstract = self._abstract.get(list_, "")
        levels = (self._linked.get((abstract, name)) or part.get("ilvl") for name, part in zip(chain, own))
        return list_, next(filter(None, levels), "") if list_ else ""

    def next(self, list_: str, level: str) -> str:
        """The number of the next paragraph of a list, as it is shown: "(2)", "1.3"; "" for bullets."""
        level = level or "0"
        if list_ not in self._abstract or level not in _LEVELS:
            return ""
        counts = self._counts[self._abstract[list_]]
        if list_ not in self._begun:
            self._begun.add(list_)
            for own, properties in self._levels[list_].items():
                if "startOverride" in properties:
                    counts.pop(own, None)
        counts[level] = min(counts.get(level, self._start(list_, level) - 1) + 1, _MAX_NUMBER)
        for deeper in [other for other in counts if other > level]:
            del counts[deeper]

        def shown(place: str) -> str:
            other = str(int(place) - 1)
            number, kind = counts.get(other, self._start(list_, other)), self._kind(list_, other)
            if kind in ("a", "A") and 0 < number <= _MAX_LETTERS:  # z is followed by aa, bb
                return numeral((number - 1) % 26 + 1, kind) * ((number - 1) // 26 + 1)
            return numeral(number, kind)

        text = self._of(list_, level).get("lvlText", "")
        names = {place: shown(place) for place in re.findall("%([1-9])", text)}
        if not self._kind(list_, level) or len(text) > 40 or not all(names.values()):
            return ""
        return re.sub("%([1-9])", lambda place: names[place[1]], text).strip()

    def _of(self, list_: str, level: str) -> dict[str, str]:
        abstract = self._levels[self._abstract[list_]]
        return abstract.get(level, {}) | (self._levels[list_].get(level, {}) if list_ in self._levels else {})

    def _kind(self, list_: str, level: str) -> str:
        return _KINDS.get(self._of(list_, level).get("numFmt", "none"), "1")

    def _start(self, list_: str, level: str) -> int:
        properties = self._of(list_, level)
        return whole(properties.get("startOverride", properties.get("start")), 1)


class OpenNumbering:
    """Counter of the items of lists in an OpenDocument file. A list begins anew, unless it says that it continues."""

    def __init__(self) -> None:
        # by style and depth of a list, from 1: the properties of a level, and the number of its last item
        self._levels: dict[tuple[str, int], dict[str, str]] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._open: list[str] = []  # styles of the open lists
        self._style, self._is_new = "", False  # the style that is defined; whether an item has no paragraph yet

    def define(self, tag: str, attributes: dict[str, str]) -> None:
        """Note the start of an element that defines a list."""
        if tag == "list-style":
            self._style = attributes.get("name", "")
        elif tag.startswith("list-level-style-"):
            self._levels[self._style, whole(attributes.get("level"), 0)] = attributes

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Note the start of an element."""
        self.define(tag, attributes)
        if tag == "list":
            self._open.append(attributes.get("style-name") or (self._open or [""])[-1])
            if attributes.get("continue-numbering") != "true" and "continue-list" not in attributes:
                self._counts.pop(self._place, None)
        elif tag == "list-item" and self._open:
            self._is_new = True
            if "start-value" in attributes:
                self._counts[self._place] = whole(attributes["start-value"], 1) - 1

    def end(self) -> None:
        """Note the end of a list."""
        self._is_new = False
        if self._open:
            self._open.pop()

    def next(self) -> str:
        """The number of the next paragraph, as it is shown; "" for bullets, and for later paragraphs of an item."""
        if not (self._open and self._is_new):
            return ""
        self._is_new, (style, depth) = False, self._place
        self._counts[style, depth] = min(self._count(style, depth, -1) + 1, _MAX_NUMBER)
        level = self._levels.get((style, depth), {})
        first = max(depth - min(whole(level.get("display-levels"), 1), _MAX_LEVELS), 0) + 1
        shown = (
            numeral(self._count(style, n), self._levels.get((style, n), {}).get("num-format", ""))
            for n in range(first, depth + 1)
        )
        number = ".".join(filter(None, shown)) if level.get("num-format") else ""
        return f"{level.get('num-prefix', '')}{number}{level.get('num-suffix', '')}".strip()[:40] if number else ""

    @property
    def _place(self) -> tuple[str, int]:
        return self._open[-1], len(self._open)

    def _count(self, style: str, depth: int, more: int = 0) -> int:
        start = whole(self._levels.get((style, depth), {}).get("start-value"), 1)
        return self._counts.get((style, depth), start + more)


class SlideNumbering:
    """Counter of the numbered paragraphs of one text box of a slide."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[str, int]] = {}  # the kind and the last number of each level

    def next(self, level: str, kind: str, start: str) -> str:
        """The number of the next paragraph, as it is shown; kind: "" for a paragraph without one, which ends a list."""
        depth = min(whole(level, 0), _MAX_LEVELS)
        before = self._counts.get(depth, ("", 0))
        self._counts = {other: count for other, count in self._counts.items() if other < depth}
        if not kind:
            return ""
        number = before[1] + 1 if before[0] == kind else whole(start, 1)
        self._counts[depth] = kind, min(number, _MAX_NUMBER)
        parts = re.fullmatch("(arabic|(?:alpha|roman)[LU]c)(Period|ParenR|ParenBoth|Plain)", kind)
        shown = numeral(number, _SLIDE_KINDS[parts[1]]) if parts else ""
        return _SLIDE_MARKS[parts[2]].format(shown) if parts and shown else ""
