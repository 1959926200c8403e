"""An even sample of a stream: one item drawn at random from each of about equal stretches, in one pass."""

from __future__ import annotations

import random
from typing import Generic, TypeVar

T = TypeVar("T")


class EvenSample(Generic[T]):
    """A sample of n items of a stream of unknown length, spread evenly over it; memory: 2 n items.

    The stream is cut into stretches of equal length, of which each keeps one random item; whenever there are 2 n
    stretches, neighbours join and keep one of their two. Equal streams, n and seeds give equal samples.
    """

    def __init__(self, n: int, seed: int):
        self._n, self._random = n, random.Random(seed)
        self._kept: list[T] = []
        self._stride, self._seen = 1, 0
        self._current: list[T] = []  # the item that the unfinished stretch would keep; at most one

    def add(self, item: T) -> None:
        """The next item of the stream."""
        self._seen += 1
        if self._random.random() * self._seen < 1:
            self._current = [item]
        if self._seen == self._stride:
            self._close()

    def _close(self) -> None:
        self._kept += self._current
        self._seen, self._current = 0, []
        if len(self._kept) >= 2 * self._n:
            self._kept = [self._random.choice(pair) for pair in zip(self._kept[::2], self._kept[1::2])]
            self._stride *= 2

    def items(self) -> list[T]:
        """The sample in the order of the stream: n items, or the whole stream where it has fewer."""
        found = list(self._kept)
        if self._current and self._random.random() * self._stride < self._seen:
            found += self._current
        if len(found) <= self._n:
            return found
        step, offset = len(found) / self._n, self._random.random()
        return [found[min(int((i + offset) * step), len(found) - 1)] for i in range(self._n)]
