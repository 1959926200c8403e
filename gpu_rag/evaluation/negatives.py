"""Answers that have no word in common with the gold answers of another question."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gpu_rag.evaluation.metrics import SPECIAL, normalise_answer

_KEPT = 64  # lists of answers without some frequent words


def words_of(answer: str) -> frozenset[str]:
    """The words by which `metrics.token_f1` compares an answer: two share one exactly where their F1 is not 0.

    >>> sorted(words_of("The Port of Rome")), sorted(words_of("Yes.")), sorted(words_of("a"))
    (['of', 'port', 'rome'], ['=yes'], [])
    """
    text = normalise_answer(answer)
    return frozenset([f"={text}"] if text in SPECIAL else text.split())  # no word holds "=": it is punctuation


class Unlike:
    """n answers in a circle, to find behind each the next one that shares no word with some gold answers.

    Words that more than sqrt(n) answers have are left out by a list for each set of them that is asked for, of which
    64 are kept; of the other words the answers that have them are passed over one by one, at most sqrt(n) a word.
    """

    def __init__(self, answers: Sequence[str]):
        self._having: dict[str, list[int]] = {}
        self._said = np.zeros(len(answers), bool)
        for place, answer in enumerate(answers):
            for word in words_of(answer):
                self._having.setdefault(word, []).append(place)
                self._said[place] = True
        self._frequent = {word for word, places in self._having.items() if len(places) ** 2 > len(answers)}
        self._without = lru_cache(_KEPT)(self._list_without)

    def after(self, place: int, gold: Sequence[str]) -> int | None:
        """The place of the first answer behind `place`, and then from the first on, without a word of `gold`."""
        words = frozenset[str]().union(*map(words_of, gold))
        free = self._without(words & self._frequent)
        passed = {at for word in words - self._frequent for at in self._having.get(word, ())}
        start = bisect_right(free, place)
        turned = (int(free[(start + step) % len(free)]) for step in range(len(free)))
        return next((at for at in turned if at not in passed and at != place), None)

    def _list_without(self, words: frozenset[str]) -> np.ndarray:
        """i64, ascending: the answers that say something, and none of these words."""
        free = self._said.copy()
        for word in words:
            free[self._having[word]] = False
        return np.flatnonzero(free)
