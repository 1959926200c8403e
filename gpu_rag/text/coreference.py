"""Replacing pronouns by the names they stand for, and telling a rewrite from a text that was lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gpu_rag.text.tokens import STOP_WORDS

Span = tuple[int, int]

_POSSESSIVES = frozenset({"his", "its", "their", "hers", "theirs"})
PRONOUNS = frozenset({"he", "she", "it", "they", "him", "her", "them"}) | _POSSESSIVES
KEPT_SHARE = 0.8  # least share of the content words that a rewrite keeps
GROWTH = 2.0  # greatest length of a rewrite, as a multiple of the original's
_WORD = re.compile(r"\w+")
_WORD_AFTER = re.compile(r"\s+[^\W\d_]")


def replace_pronouns(text: str, clusters: Sequence[Sequence[Span]]) -> str:
    """`text` with each pronoun of a cluster replaced by the cluster's first mention that is none, "'s" added where it
    is possessive. clusters: spans (start, end) of one thing's mentions; a cluster of pronouns alone changes nothing.

    "her" is possessive where a word follows. Of overlapping spans the earlier counts.

    >>> replace_pronouns("Ann sat. She sang her song.", [[(0, 3), (9, 12), (18, 21)]])
    "Ann sat. Ann sang Ann's song."
    """
    changes: list[tuple[int, int, str]] = []
    for spans in clusters:
        names = [text[start:end] for start, end in sorted(spans) if text[start:end].casefold() not in PRONOUNS]
        if names:
            changes += [(s, e, _form(text, s, e, names[0])) for s, e in spans if text[s:e].casefold() in PRONOUNS]
    parts, done = [], 0
    for start, end, name in sorted(changes):
        if start >= done:
            parts += [text[done:start], name]
            done = end
    return "".join([*parts, text[done:]])


def _form(text: str, start: int, end: int, name: str) -> str:
    pronoun = text[start:end].casefold()
    owns = pronoun in _POSSESSIVES or (pronoun == "her" and _WORD_AFTER.match(text, end) is not None)
    return f"{name}'s" if owns and not name.endswith(("'s", "’s")) else name


def keeps_text(original: str, rewrite: str) -> bool:
    """Whether `rewrite` holds at least 80 % of the content words of `original`, each as often as there, and all of its
    numbers, and is at most twice as long. Stop words, and with them pronouns, do not count."""
    wanted, found = _content(original), _content(rewrite)
    kept = wanted & found
    numbers = all(kept[word] == n for word, n in wanted.items() if word.isdigit())
    enough = sum(kept.values()) >= KEPT_SHARE * sum(wanted.values())
    return enough and numbers and len(rewrite) <= GROWTH * len(original)


def _content(text: str) -> Counter[str]:
    return Counter(word for word in _WORD.findall(text.casefold()) if word not in STOP_WORDS and word not in PRONOUNS)
