"""Cut a long text into overlapping pieces at sentence ends."""

from __future__ import annotations

import re
from itertools import islice

from gpu_rag.errors import UsageError
from gpu_rag.text.sentences import split_sentences
from gpu_rag.text.tokens import SINGLE_CHARACTER_SCRIPTS

# A longer run without a space (a URL, base64) counts as several words, so that pieces stay bounded.
MAX_WORD_CHARS = 64
# Han, kana, Thai, Lao, Burmese and Khmer put no space between words: two characters are a word.
_UNSPACED = rf"{SINGLE_CHARACTER_SCRIPTS}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(rf"[{_UNSPACED}]{{1,2}}|[^\s{_UNSPACED}]{{1,{MAX_WORD_CHARS}}}")

_Unit = tuple[int, int, int]  # start, end, number of words


def chunk_spans(text: str, max_words: int = 300, overlap_words: int = 50) -> list[tuple[int, int]]:
    """Character spans of the pieces in which `text` is indexed.

    Whole sentences are packed greedily up to `max_words`. The next piece repeats the last whole sentences of the
    previous one, as many as fit in `overlap_words`. A sentence longer than `max_words` is cut between words.

    text: any text. max_words: words in a piece, >= 1; a word is a run of non-spaces of at most 64 characters, or of
    2 in a script without spaces between words.
    overlap_words: words repeated, 0 <= overlap_words < max_words. Returns [(start, end)] in order, without white space
    at the ends; every non-space character is in at least one span; start and end both increase strictly; [] for blank
    text; one span if the text has at most `max_words` words. Raises UsageError. Linear in len(text), deterministic.

    >>> chunk_spans("One two. Three four. Five six.", max_words=4, overlap_words=2)
    [(0, 20), (9, 30)]
    """
    if max_words < 1:
        raise UsageError("a chunk holds at least one word", given=f"max_words={max_words}", expected=">= 1")
    if not 0 <= overlap_words < max_words:
        given, expected = f"overlap_words={overlap_words}, max_words={max_words}", "0 <= overlap_words < max_words"
        raise UsageError("the overlap must be smaller than the chunk", given=given, expected=expected)
    # counted over the whole text: a sentence end inside a word would count the word twice
    if len(list(islice(_WORD.finditer(text), max_words + 1))) <= max_words:
        start = len(text) - len(text.lstrip())
        return [(start, len(text.rstrip()))] if start < len(text) else []
    return _pack(_units(text, max_words, overlap_words), max_words, overlap_words)


def _units(text: str, max_words: int, overlap_words: int) -> list[_Unit]:
    """Sentences with their word counts; a sentence of more than `max_words` is split into several units."""
    units: list[_Unit] = []
    # Pieces as long as the overlap, so that cut sentences overlap too.
    step = overlap_words or max_words
    for start, end in split_sentences(text):
        words = [match.span() for match in _WORD.finditer(text, start, end)]
        if len(words) <= max_words:
            units.append((start, end, len(words)))
            continue
        for i in range(0, len(words), step):
            piece = words[i : i + step]
            units.append((piece[0][0], piece[-1][1], len(piece)))
    return units


def _pack(units: list[_Unit], max_words: int, overlap_words: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    first, n_units = 0, len(units)
    while True:
        last, n_words = first, 0
        while last < n_units and n_words + units[last][2] <= max_words:
            n_words += units[last][2]
            last += 1
        spans.append((units[first][0], units[last - 1][1]))
        if last == n_units:
            return spans
        start, n_words, limit = last, 0, min(overlap_words, max_words - units[last][2])
        while start - 1 > first and n_words + units[start - 1][2] <= limit:
            start -= 1  # the earliest unit after `first` with at most `limit` words before `last`
            n_words += units[start][2]
        first = start
