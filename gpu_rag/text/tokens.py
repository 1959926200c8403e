"""Word tokens for BM25: folded, without English stop words, stemmed."""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_rag.text.sentences import word_lists

if TYPE_CHECKING:
    import Stemmer

TOKENS_VERSION = 1  # increased when `tokenize` changes its tokens; saved with a BM25 index and compared on load
MAX_TOKEN_CHARS = 64

STOP_WORDS = word_lists(Path(__file__).with_suffix(".toml"))["stop_words"]

# Scripts without spaces between words: each character is a separate token.
SINGLE_CHARACTER_SCRIPTS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_LETTER = rf"[^\W_{SINGLE_CHARACTER_SCRIPTS}]"


@cache
def _word_pattern() -> re.Pattern[str]:
    """Letters and digits, joined by apostrophes inside the word and by combining marks (which `\\w` leaves out)."""
    marks = "".join(chr(code) for code in range(0x300, 0x2100) if unicodedata.category(chr(code)).startswith("M"))
    word = rf"{_LETTER}(?:{_LETTER}+|[{marks}]+)*+(?:'{_LETTER}(?:{_LETTER}+|[{marks}]+)*+)*+"
    return re.compile(rf"[{SINGLE_CHARACTER_SCRIPTS}]|{word}")


class _Stemmers(threading.local):
    """Thread-local stemmers: a Snowball stemmer keeps state, so each thread makes its own at first use."""

    @cached_property
    def english(self) -> Stemmer.Stemmer:
        import Stemmer  # here, so that code without stemming runs without PyStemmer

        return Stemmer.Stemmer("english")


_STEMMERS = _Stemmers()


def tokenize(text: str) -> list[str]:
    """The word tokens of `text` in order, as BM25 counts them.

    NFKC and casefold. A word is a run of letters, digits and combining marks, with apostrophes inside it. `STOP_WORDS`
    are removed; other words are cut to 64 characters and stemmed with Snowball's English stemmer. A Han or kana
    character is a separate token. Deterministic; the same for any number of threads.

    >>> tokenize("The bridges of Mara's town, 1904")
    ['bridg', 'mara', 'town', '1904']
    """
    return stems([word for word in words_of(text) if word not in STOP_WORDS])


def words_of(text: str) -> list[str]:
    """The words of a text in order, as `tokenize` finds and cuts them, with stop words."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    return [word[:MAX_TOKEN_CHARS] for word in _word_pattern().findall(folded)]


def stems(words: list[str]) -> list[str]:
    """The token of each word."""
    return _STEMMERS.english.stemWords(words)
