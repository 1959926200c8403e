"""Numbers of paragraphs that are not in the text of a file: lists of .docx files and of HTML pages."""

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
        self._styles: dict[str, tuple[str, str]] = {}
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
        for tag, attributes, _ in package.elements(styles) if styles in package else ():
            if tag == "style":
                style = attributes.get("styleId", "")
            elif tag in ("numId", "ilvl"):
                id, level = self._styles.get(style, ("", "0"))
                value = attributes.get("val", "")
                self._styles[style] = (value, level) if tag == "numId" else (id, value)

    def of_style(self, style: str) -> tuple[str, str]:
        """(list, level) of paragraphs of a style; ("", "0") for none."""
        return self._styles.get(style, ("", "0"))

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
