"""Tokens of running text with their offsets, mentions, and facts about a passage's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Struct

WORD, NAME, NUMBER, MARK = range(4)
_APOSTROPHES = frozenset("'’")

# One pass; the first character or a bounded look-ahead decides each alternative, so the time is linear. Most tokens are
# plain words or begin none, so these come first.
_TOKEN = re.compile(
    r"""
    [^\W\d_]\w*+(?![.'’&/‐‑-])
  | (?=\S)(?:
    [$€£¥]?\d(?:\w|[.,:/](?=\d))*%?
  | (?=[^\W\d_]{1,4}\.)
    (?:(?:St|Ste|Mt|Ft|Dr|Mr|Mrs|Ms|Prof|Gen|Lt|Col|Capt|Sgt|Maj|Rev|Fr|Hon|Gov|Sen|Rep|Jr|Sr|Inc|Ltd
        |Corp|Co|Bros|No|Vol)\.(?=\s|,|$)|(?:[^\W\d_]\.){1,8}(?=[\s,;:)'’]|$)(?:(?<=[A-Z]\.)|(?<=\..\.)))
  | [^\W\d_]\w*+(?:(?:['’.&/‐‑-](?=\w)|-[ ](?=[^\W\d_]))\w*+)*+
  | ``|''|--|[^\w\s]|_)
    """,
    re.VERBOSE,
)


class Token(Struct, gc=False):
    """One token: text[start:end] of the passage without a possessive ending. kind: WORD | NAME | NUMBER | MARK.

    A NAME is a word with a capital. possessive: 's or a lone apostrophe follows.
    """

    text: str
    low: str
    start: int
    end: int
    kind: int
    possessive: bool = False


def tokenise(text: str, start: int, end: int) -> list[Token]:
    """Tokens of text[start:end], in order, without spaces. Linear."""
    tokens: list[Token] = []
    for match in _TOKEN.finditer(text, start, end):
        begin, (surface, low, kind, possessive) = match.start(), _read(match[0])
        if surface in _APOSTROPHES and tokens and _owns(tokens[-1], begin):
            tokens[-1].possessive = True
            continue
        tokens.append(Token(surface, low, begin, begin + len(surface), kind, possessive))
    return tokens


def _owns(token: Token, position: int) -> bool:
    """Whether an apostrophe at `position` is the possessive of the plural before it ("the Rovers' ground")."""
    return token.end == position and token.kind in (WORD, NAME) and token.low.endswith("s")


@lru_cache(maxsize=1 << 14)  # texts repeat the same words
def _read(surface: str) -> tuple[str, str, int, bool]:
    """(text, low, kind, possessive) of a token as matched."""
    if surface[0].isdecimal() or (surface[0] in "$€£¥" and len(surface) > 1):
        return surface, surface.casefold(), NUMBER, False
    if not surface[0].isalnum():
        return surface, surface, MARK, False
    possessive = len(surface) > 2 and surface[-2] in "'’" and surface[-1] in "sS"
    if possessive:
        surface = surface[:-2]
    kind = WORD if surface.islower() or not _is_capitalised(surface) else NAME
    return surface, surface.casefold(), kind, possessive


def _is_capitalised(word: str) -> bool:
    """Whether a word begins with a capital ("Oslo"), or with a small letter and then a capital ("iPhone")."""
    if word[0].isupper() or word[0].istitle():
        return True
    return len(word) > 2 and word[0].islower() and word[1].isupper()


NAMED, DATE, AMOUNT, QUOTED, TITLE = range(5)


class Mention(Struct, gc=False):
    """A mention tokens[first:last] of a sentence. name: as in the text; later the full name that it stands for."""

    first: int
    last: int
    name: str
    kind: int


@dataclass(frozen=True)
class PassageWords:
    """Facts about the words (lower case) of a whole passage.

    title: the title's words. inside: words with a capital that do not begin a sentence. small: words without a capital.
    """

    title: tuple[str, ...]
    title_name: str
    inside: frozenset[str]
    small: frozenset[str]


def passage_words(title_name: str, title: Sequence[Token], sentences: Sequence[Sequence[Token]]) -> PassageWords:
    """Collect PassageWords from the tokens of the title and of all sentences."""
    names = (t.low for tokens in sentences for i, t in enumerate(tokens) if t.kind == NAME and not opens(tokens, i))
    inside = frozenset(names).union(token.low for token in title[1:] if token.kind == NAME)
    small = frozenset(token.low for tokens in sentences for token in tokens if token.kind == WORD)
    return PassageWords(tuple(t.low for t in title), title_name, inside, small)


def opens(tokens: Sequence[Token], i: int) -> bool:
    """Whether any word takes a capital at token i: the first token, or after an opening quote, colon or bullet."""
    while i > 0 and tokens[i - 1].kind == MARK:
        if tokens[i - 1].text in ',;)]/&+-"':
            return False
        i -= 1
    return i == 0
