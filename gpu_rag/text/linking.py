"""Which known names a question mentions: the longest runs of its words that are names, left to right."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.tokens import STOP_WORDS

MAX_WORDS = 8
_WORD = re.compile(r"\w+(?:['’.\-&]\w+)*")
_POSSESSIVE = re.compile(r"['’]s$")


def mentioned_names(text: str, known: Mapping[str, int]) -> list[int]:
    """The values of `known` (normalised name -> row) whose names stand in `text`, ascending, each once.

    At each word the longest name of at most MAX_WORDS words is taken and the words inside it are passed over; a
    possessive 's at its end is ignored. Names of stop words only, of digits only or of one or two letters never count.
    """
    flat = normalise_name(text)
    words = [match.span() for match in _WORD.finditer(flat)]
    found: set[int] = set()
    first = 0
    while first < len(words):
        length = _longest(flat, words, first, known, found)
        first += max(length, 1)
    return sorted(found)


def _longest(flat: str, words: list[tuple[int, int]], first: int, known: Mapping[str, int], found: set[int]) -> int:
    """Adds the longest name that begins at word `first`; returns its number of words, 0 for none."""
    for last in range(min(len(words), first + MAX_WORDS) - 1, first - 1, -1):
        span = flat[words[first][0] : words[last][1]]
        for name in (span, _POSSESSIVE.sub("", span)):
            if name in known and _says_something(name):
                found.add(known[name])
                return last - first + 1
    return 0


def _says_something(name: str) -> bool:
    if len(name) < 3 or name.replace(" ", "").isdigit():
        return False
    return any(word not in STOP_WORDS for word in _WORD.findall(name))
