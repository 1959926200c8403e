"""Word tokens for BM25: folded and stemmed by the rules of a language, and without stop words in English."""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_rag.text.dates import plain_dates
from gpu_rag.text.language import ENGLISH
from gpu_rag.text.sentences import word_lists

if TYPE_CHECKING:
    import Stemmer

TOKENS_VERSION = 3  # increased when `tokenize` changes its tokens; saved with a BM25 index and compared on load
MAX_TOKEN_CHARS = 64

STOP_WORDS = word_lists(Path(__file__).with_suffix(".toml"))["stop_words"]

# Scripts without spaces between words: each character is a token. On 300 Chinese passages this had a higher recall than
# pairs of characters and than the words of a segmenter.
SINGLE_CHARACTER_SCRIPTS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_DIGIT = re.compile("[0-9]")
_ASCII_WORD = re.compile(r"[a-z0-9]++(?:'[a-z0-9]++)*+")  # as `_word_pattern`, found faster
_LETTER = rf"[^\W_{SINGLE_CHARACTER_SCRIPTS}]"


@cache
def _word_pattern() -> re.Pattern[str]:
    """A pattern of words: letters, digits and combining marks (which `\\w` leaves out), with apostrophes inside."""
    marks = "".join(chr(code) for code in range(0x300, 0x2100) if unicodedata.category(chr(code)).startswith("M"))
    word = rf"{_LETTER}(?:{_LETTER}+|[{marks}]+)*+(?:'{_LETTER}(?:{_LETTER}+|[{marks}]+)*+)*+"
    return re.compile(rf"[{SINGLE_CHARACTER_SCRIPTS}]|{word}")


class _Stemmers(threading.local):
    """Thread-local stemmers: a Snowball stemmer keeps state, so each thread makes its own at first use."""

    def __init__(self) -> None:
        self._made: dict[str, Stemmer.Stemmer | None] = {}

    def stemmer(self, language: str) -> Stemmer.Stemmer | None:
        """The stemmer of a language by its ISO 639 code; None if Snowball has none."""
        if language not in self._made:
            import Stemmer  # here, so that code without stemming runs without PyStemmer

            try:
                self._made[language] = Stemmer.Stemmer(language)
            except KeyError:
                self._made[language] = None
        return self._made[language]


_STEMMERS = _Stemmers()


def tokenize(text: str, language: str = ENGLISH) -> list[str]:
    """The word tokens of `text` in order, as BM25 counts them.

    The text is folded by NFKC and casefold, with dates in one form (see `dates`). A word is a run of letters, digits
    and combining marks, with apostrophes inside it, or one Han or kana character. Words are cut to 64 characters;
    English `STOP_WORDS` are removed; the rest are stemmed if Snowball has a stemmer for the language. Deterministic for
    any number of threads.

    >>> tokenize("The bridges of Mara's town, 1904")
    ['bridg', 'mara', 'town', '1904']
    >>> tokenize("Die Brücken der Stadt", "de")
    ['die', 'bruck', 'der', 'stadt']
    """
    return stems([word for word in words_of(text) if word not in stop_words(language)], language)


def stop_words(language: str) -> frozenset[str]:
    """Words of a language that BM25 leaves out. Only English has any; common words weigh little anyway."""
    return STOP_WORDS if language == ENGLISH else frozenset()


def words_of(text: str) -> list[str]:
    """The words of a text in order, folded and cut as in `tokenize`, with stop words."""
    folded = one_form_of_dates(unicodedata.normalize("NFKC", text)).casefold().replace("\u2019", "'")
    pattern = _ASCII_WORD if folded.isascii() else _word_pattern()
    return [word[:MAX_TOKEN_CHARS] for word in pattern.findall(folded)]


def one_form_of_dates(text: str) -> str:
    """`text` with `plain_dates`, which has nothing to do without a digit."""
    return plain_dates(text) if _DIGIT.search(text) else text


def stems(words: list[str], language: str = ENGLISH) -> list[str]:
    """The token of each word."""
    stemmer = _STEMMERS.stemmer(language)
    return words if stemmer is None else stemmer.stemWords(words)
