"""Normal forms of names and of running text."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SPACE = re.compile(r"\s+")
# Texts spell the same name with different quotes and dashes (O'Hara, Bras-Coupé).
_TYPED = str.maketrans("‘’‛“”‟‐‑‒–—―−", "'''\"\"\"-------")
# Horizontal space; then what must not reach a table: controls, zero-width marks, soft hyphen, byte order mark.
_BLANK = re.compile(r"[^\S\n]+")
_INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LINES = re.compile(r" ?\n ?")
_PARAGRAPHS = re.compile(r"\n{3,}")
# These belong to a name even at its end: C#, 100%, AT&T, @home.
_KEPT = frozenset("#%&@")
_OPENERS = {"(": ")", "[": "]", "{": "}"}
_CLOSERS = {closer: opener for opener, closer in _OPENERS.items()}


@lru_cache(maxsize=1 << 16)  # a corpus repeats the same names
def normalise_name(s: str) -> str:
    """The normal form of a name: two names are the same if their normal forms are equal.

    NFKC and Unicode casefold; curly quotes and all dashes become keyboard characters (' " -); every run of white space
    becomes one space; outer punctuation is stripped (categories P*, except `#%&@`, and except a bracket whose partner
    is inside: "Java (island)" keeps its ")"). Accents are kept.

    s: any text. Returns the normal form; "" if nothing is left. Idempotent, linear in len(s).

    >>> normalise_name("  “The  Loft”, ")
    'the loft'
    """
    if s.isascii() and s[:1].isalnum() and s[-1:].isalnum():  # nearly all names: nothing to undo or to strip
        return " ".join(s.lower().split())
    folded = s
    # Folding can undo NFKC and NFKC can undo folding, so repeat to the fixed point (two rounds, rarely three).
    for _ in range(4):
        once = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", folded).casefold())
        once = _strip_outer(_SPACE.sub(" ", once.translate(_TYPED)))
        if once == folded:
            break
        folded = once
    return folded


def _is_outer(char: str) -> bool:
    return char.isspace() or (char not in _KEPT and unicodedata.category(char).startswith("P"))


def _strip_outer(s: str) -> str:
    """`s` without punctuation and space at its ends; balanced brackets are kept."""
    if s[:1].isalnum() and s[-1:].isalnum():  # nearly all names
        return s
    partner = _partners(s)
    start, end = 0, len(s)
    while start < end:
        if start in partner and partner[start] == end - 1:
            start, end = start + 1, end - 1
        elif _is_outer(s[end - 1]) and partner.get(end - 1, -1) < start:
            end -= 1
        elif _is_outer(s[start]) and partner.get(start, end) >= end:
            start += 1
        else:
            break
    return s[start:end]


def _partners(s: str) -> dict[int, int]:
    """Positions of matched brackets, each mapped to the other."""
    if not any(char in s for char in _OPENERS):
        return {}
    stack: list[int] = []
    partner: dict[int, int] = {}
    for i, char in enumerate(s):
        if char in _OPENERS:
            stack.append(i)
        elif char in _CLOSERS and stack and s[stack[-1]] == _CLOSERS[char]:
            opener = stack.pop()
            partner[opener], partner[i] = i, opener
    return partner


def clean_text(s: str) -> str:
    """Running text fit for a table, a model and a screen; the words are left alone.

    NFC; line ends to "\\n"; control and zero-width characters, soft hyphens and byte order marks removed; lone
    surrogates to U+FFFD; runs of blanks (no-break space too) to one space; at most one empty line in a row; outer
    space stripped. Case, punctuation and accents stay. Idempotent, linear in len(s).

    >>> clean_text("a\\u00a0 b\\r\\n\\r\\n\\r\\n\\r\\nc ")
    'a b\\n\\nc'
    """
    for end in ("\r\n", "\r", "\x85", "\u2028"):
        s = s.replace(end, "\n")
    s = _SURROGATE.sub("\ufffd", _INVISIBLE.sub("", s.replace("\u2029", "\n\n")))
    s = unicodedata.normalize("NFC", s)
    s = _LINES.sub("\n", _BLANK.sub(" ", s))
    return _PARAGRAPHS.sub("\n\n", s).strip()
