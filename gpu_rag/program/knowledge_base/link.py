"""Which nodes of a knowledge base a question may speak of: names that stand in it, then names like its phrases."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_rag.text.tokens import STOP_WORDS

MAX_WORDS = 12
_WORD = re.compile(r"[^\W_]+(?:['’.\-&/+,][^\W_]+)*")
_POSSESSIVE = re.compile(r"['’]s$")
_CLEAR, _PLAIN, _INSIDE = 3.0, 2.0, 1.0  # tiers of a mention; below 1 it is a cosine


@dataclass(frozen=True)
class Mention:
    """Characters start:end of a question that are a name. score: its tier, and within it the longer one first."""

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Linked:
    """An entity that a question may speak of. name, type: as the knowledge base has them; nodes: all that bear both.

    start, end: where the question names it; 0, 0 where it is only near a phrase of it. score, from 3: the name stands
    there, in several words or with a capital or digit; from 2: one plain word; from 1: inside a longer name; below: the
    cosine of name and phrase. Longer names score higher.
    """

    name: str
    type: str
    nodes: tuple[int, ...]
    score: float
    start: int = 0
    end: int = 0


def mentions(text: str, known: Callable[[str], bool]) -> list[Mention]:
    """The runs of at most MAX_WORDS words of `text` that are known names, best first, ties to the earlier.

    `known` gets a run as it stands, then without a possessive 's at its end. Names of stop words only, and of a single
    character, never count.
    """
    words = [match.span() for match in _WORD.finditer(text)]
    runs = [(first, last) for i, (first, _) in enumerate(words) for _, last in words[i : i + MAX_WORDS]]
    ends = ((first, last, last - len(_ending(text[first:last]))) for first, last in runs)
    found = [(first, end) for first, last, bare in ends if (end := _known_end(text, first, last, bare, known))]
    ranked = [Mention(start, end, _tier(text, start, end, found)) for start, end in found]
    return sorted(ranked, key=lambda m: (-m.score, m.start))


def _ending(run: str) -> str:
    possessive = _POSSESSIVE.search(run)
    return possessive[0] if possessive else ""


def _known_end(text: str, first: int, last: int, bare: int, known: Callable[[str], bool]) -> int:
    """Where the name that begins at `first` ends: at `last`, at `bare`, or 0 where neither is a name."""
    for end in dict.fromkeys((last, bare)):
        if _says_something(text[first:end]) and known(text[first:end]):
            return end
    return 0


def _says_something(name: str) -> bool:
    return len(name) > 1 and any(word.casefold() not in STOP_WORDS for word in _WORD.findall(name))


def _tier(text: str, start: int, end: int, found: Sequence[tuple[int, int]]) -> float:
    length = (end - start) / (end - start + 1000)  # below 1, and growing
    if any(a <= start and end <= b and (a, b) != (start, end) for a, b in found):
        return _INSIDE + length
    name = text[start:end]
    clear = " " in name or any(char.isdigit() for char in name) or (start > 0 and name != name.lower())
    return (_CLEAR if clear else _PLAIN) + length


def masked(text: str, start: int, end: int, word: str) -> str:
    """The question with a mention replaced by a word for its type: what it asks of that entity."""
    return " ".join(f"{text[:start]} {word} {text[end:]}".split())
