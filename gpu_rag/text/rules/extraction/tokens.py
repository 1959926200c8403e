"""Tokens of running text with their place in it, as the patterns see them."""

from __future__ import annotations

import re
from dataclasses import dataclass

WORD, NAME, NUMBER, MARK = range(4)

# One pass, every alternative decided by its first character or by bounded look-ahead, so the time is linear.
_TOKEN = re.compile(
    r"""
    (?P<number>[$€£¥]?\d(?:\w|[.,:/](?=\d))*%?)
  | (?P<abbreviation>(?:St|Ste|Mt|Ft|Dr|Mr|Mrs|Ms|Prof|Gen|Lt|Col|Capt|Sgt|Maj|Rev|Fr|Hon|Gov|Sen|Rep|Jr|Sr|Inc|Ltd
        |Corp|Co|Bros|No|Vol)\.(?=\s|,|$)|(?:[^\W\d_]\.){1,8}(?=[\s,;:)'’]|$)(?:(?<=[A-Z]\.)|(?<=\..\.)))
  | (?P<word>[^\W\d_](?:\w|['’.&/](?=\w)|[-‐‑](?=\w)|-[ ](?=[^\W\d_]))*)
  | (?P<mark>``|''|--|[^\w\s]|_)
    """,
    re.VERBOSE,
)


@dataclass(slots=True)
class Token:
    """One token: text[start:end] of the passage without a possessive ending. kind: WORD | NAME | NUMBER | MARK.

    NAME is a word with a capital. `possessive`: an 's or a lone apostrophe followed.
    """

    text: str
    low: str
    start: int
    end: int
    kind: int
    possessive: bool = False


def tokenise(text: str, start: int, end: int) -> list[Token]:
    """Tokens of text[start:end], in order; spaces are left out. Linear."""
    tokens: list[Token] = []
    for match in _TOKEN.finditer(text, start, end):
        token = _token(match)
        if tokens and token.text in ("'", "’") and _owns(tokens[-1], token.start):
            tokens[-1].possessive = True
            continue
        tokens.append(token)
    return tokens


def _owns(token: Token, at: int) -> bool:
    """Whether an apostrophe at `at` is the possessive of a plural before it ("the Rovers' ground")."""
    return token.end == at and token.kind in (WORD, NAME) and token.low.endswith("s")


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
    return Token(surface, surface.casefold(), start, end, NAME if _is_capitalised(surface) else WORD, possessive)


def _is_capitalised(word: str) -> bool:
    """A capital first ("Oslo"), or a small first letter and a capital second ("iPhone")."""
    if word[0].isupper() or word[0].istitle():
        return True
    return len(word) > 2 and word[0].islower() and word[1].isupper()
