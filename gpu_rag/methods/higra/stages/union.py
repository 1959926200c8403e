"""Joining rows into groups while some pairs stay apart: connected components, but for joins that a person forbids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class Joined:
    """Groups of rows 0 .. n-1, at first each its own. apart: pairs of rows that never come into one group.

    Joins are taken in the order given; one that would bring a forbidden pair together is refused. Without forbidden
    pairs the groups are the connected components of the joins, in whatever order.
    """

    def __init__(self, n: int, apart: Iterable[tuple[int, int]] = ()):
        self._parent = list(range(n))
        self._apart: dict[int, set[int]] = defaultdict(set)  # root -> rows that may not join it
        self._rows: dict[int, set[int]] = {}  # root -> its rows, for groups that something may not join
        for a, b in apart:
            if a != b:
                self._apart[a].add(b)
                self._apart[b].add(a)

    def find(self, row: int) -> int:
        """The smallest row of the group."""
        while self._parent[row] != row:
            self._parent[row] = self._parent[self._parent[row]]
            row = self._parent[row]
        return row

    def join(self, a: int, b: int) -> bool:
        """Makes one group of two; False where a forbidden pair refuses it."""
        a, b = sorted((self.find(a), self.find(b)))
        if a == b:
            return True
        if self._apart:
            rows_a, rows_b = self._rows.get(a, {a}), self._rows.get(b, {b})
            if self._apart.get(a, set()) & rows_b or self._apart.get(b, set()) & rows_a:
                return False
            self._rows[a] = rows_a | rows_b
            self._apart[a] = self._apart.get(a, set()) | self._apart.get(b, set())
        self._parent[b] = a
        return True

    def groups(self) -> list[int]:
        """The smallest row of each row's group."""
        return [self.find(row) for row in range(len(self._parent))]
