"""Tokens of running text with their offsets, mentions, and facts about a passage's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

WORD, NAME, NUMBER, MARK = range(4)

# One pass; the first character or a bounded look-ahead decides each alternative, so the time is linear.
_TOKEN = re.compile(
    r"""
    (?P<number>[$€£¥]?\d(?:\w|[.,:/](?=\d))*%?)
  | (?=[^\W\d_]{1,4}\.)
    (?P<abbreviation>(?:St|Ste|Mt|Ft|Dr|Mr|Mrs|Ms|Prof|Gen|Lt|Col|Capt|Sgt|Maj|Rev|Fr|Hon|Gov|Sen|Rep|Jr|Sr|Inc|Ltd
        |Corp|Co|Bros|No|Vol)\.(?=\s|,|$)|(?:[^\W\d_]\.){1,8}(?=[\s,;:)'’]|$)(?:(?<=[A-Z]\.)|(?<=\..\.)))
  | (?P<word>[^\W\d_]\w*(?:(?:['’.&/‐‑-](?=\w)|-[ ](?=[^\W\d_]))\w*)*)
  | (?P<mark>``|''|--|[^\w\s]|_)
    """,
    re.VERBOSE,
)


@dataclass(slots=True)
class Token:
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
        token = _token(match)
        if tokens and token.text in ("'", "’") and _owns(tokens[-1], token.start):
            tokens[-1].possessive = True
            continue
        tokens.append(token)
    return tokens


def _owns(token: Token, position: int) -> bool:
    """Whether an apostrophe at `position` is the possessive of the plural before it ("the Rovers' ground")."""
    return token.end == position and token.kind in (WORD, NAME) and token.low.endswith("s")


def _token(match: re.Match[str]) -> Token:
    group, surface = match.lastgroup, match.group()
    start, end = match.span()
    if group == "number":
        return Token(surface, surface.casefold(), start, end, NUMBER)
    if group == "mark":
        return Token(surface, surface, start, end, MARK)
    possessive = len(surface) > 2 and surface[-2] in "'’" and surface[-1] in "sS"
    if possessive:
        surface, end = surface[:-2], end - 2
    kind = WORD if surface.islower() or not _is_capitalised(surface) else NAME
    return Token(surface, surface.casefold(), start, end, kind, possessive)


def _is_capitalised(word: str) -> bool:
    """Whether a word begins with a capital ("Oslo"), or with a small letter and then a capital ("iPhone")."""
    if word[0].isupper() or word[0].istitle():
        return True
    return len(word) > 2 and word[0].islower() and word[1].isupper()


NAMED, DATE, AMOUNT, QUOTED, TITLE = range(5)


@dataclass(slots=True)
class Mention:
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
    inside = {token.low for token in title[1:] if token.kind == NAME}
    small: set[str] = set()
    for tokens in sentences:
        for i, token in enumerate(tokens):
            if token.kind == WORD:
                small.add(token.low)
            elif token.kind == NAME and not opens(tokens, i):
                inside.add(token.low)
    return PassageWords(tuple(t.low for t in title), title_name, frozenset(inside), frozenset(small))


def opens(tokens: Sequence[Token], i: int) -> bool:
    """Whether any word takes a capital at token i: the first token, or after an opening quote, colon or bullet."""
    while i > 0 and tokens[i - 1].kind == MARK:
        if tokens[i - 1].text in ',;)]/&+-"':
            return False
        i -= 1
    return i == 0
