"""What the steps of pattern extraction hand each other: mentions, and what a whole passage tells about its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.text.rules.extraction.tokens import MARK, NAME, WORD, Token

NAMED, DATE, AMOUNT, QUOTED, TITLE = range(5)


@dataclass(slots=True)
class Mention:
    """tokens[first:last] of a sentence name something. `name`: as in the text, later the name it stands for."""

    first: int
    last: int
    name: str
    kind: int


@dataclass(frozen=True)
class PassageWords:
    """What the whole passage tells about its words (lower case).

    title: the title's words. inside: seen with a capital where no sentence starts. small: seen without a capital.
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
    """Whether token i stands where any word takes a capital: first, or behind an opening quote, colon or bullet."""
    while i > 0 and tokens[i - 1].kind == MARK:
        if tokens[i - 1].text in ',;)]/&+-"':
            return False
        i -= 1
    return i == 0
