"""Word tokens for BM25: folded, without English stop words, stemmed."""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import cache

import Stemmer

TOKENS_VERSION = 1  # raised when `tokenize` would give other tokens: saved with a BM25 index and compared on load
MAX_TOKEN_CHARS = 64

# "us" and "may" are left in: folded, they are also a country and a month.
_ENGLISH = """
a about above after again against all also although am among an and any are aren't as at
be became because become becomes been before being below between both but by
can can't cannot could couldn't did didn't do does doesn't doing don't down during
each either else ever every few for from further had hadn't has hasn't have haven't having
he he'd he'll he's her here here's hers herself him himself his how how's however
i i'd i'll i'm i've if in into is isn't it it's its itself just let's
me might mine more most must mustn't my myself neither no nor not
of off often on once only onto or other others our ours ourselves out over own per
same shall shan't she she'd she'll she's should shouldn't since so some still such
than that that's the their theirs them themselves then there there's therefore these they they'd they'll they're
they've this those though through thus to too toward towards under until unto up upon
very via was wasn't we we'd we'll we're we've were weren't what what's when when's where where's whether which
while who who's whom whose why why's will with within without won't would wouldn't
yet you you'd you'll you're you've your yours yourself yourselves
"""
STOP_WORDS: frozenset[str] = frozenset(_ENGLISH.split())

# Scripts without spaces between words: each character is a token of its own.
SINGLE_CHARACTER_SCRIPTS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_LETTER = rf"[^\W_{SINGLE_CHARACTER_SCRIPTS}]"


@cache
def _word_pattern() -> re.Pattern[str]:
    """Letters and digits, joined by apostrophes inside the word and by combining marks (which `\\w` leaves out)."""
    marks = "".join(chr(code) for code in range(0x300, 0x2100) if unicodedata.category(chr(code)).startswith("M"))
    word = rf"{_LETTER}(?:{_LETTER}+|[{marks}]+)*+(?:'{_LETTER}(?:{_LETTER}+|[{marks}]+)*+)*+"
    return re.compile(rf"[{SINGLE_CHARACTER_SCRIPTS}]|{word}")


class _Stemmers(threading.local):
    """A Snowball stemmer keeps state between calls, so each thread has its own."""

    def __init__(self) -> None:
        self.english = Stemmer.Stemmer("english")


_STEMMERS = _Stemmers()


def tokenize(text: str) -> list[str]:
    """The word tokens of `text` in their order, as BM25 counts them.

    NFKC and casefold; a word is a run of letters, digits and combining marks, with apostrophes inside it; words of
    `STOP_WORDS` are left out; the others are cut to 64 characters and stemmed with Snowball's English stemmer.
    A Han or kana character is a token of its own. Deterministic; the same for any number of threads.

    >>> tokenize("The bridges of Mara's town, 1904")
    ['bridg', 'mara', 'town', '1904']
    """
    folded = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    words = [w[:MAX_TOKEN_CHARS] for w in _word_pattern().findall(folded) if w not in STOP_WORDS]
    return _STEMMERS.english.stemWords(words)
