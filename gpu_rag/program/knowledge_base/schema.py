"""The types that each relation of a knowledge base joins, seen in its edges."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from gpu_rag.index.knowledge_base import KnowledgeBase

MOST_SHOWN = 3  # pairs of types of one relation, in words


class KbSchema:
    """For each relation the (head type, tail type) pairs of its edges, the commonest first."""

    def __init__(self, kb: KnowledgeBase):
        self._kb = kb
        n = max(kb.n_types, 1)
        heads, tails = kb.node_type[kb.head].astype(np.int64), kb.node_type[kb.tail].astype(np.int64)
        keys, counts = np.unique((kb.relation.astype(np.int64) * n + heads) * n + tails, return_counts=True)
        self.pairs: list[list[tuple[int, int]]] = [[] for _ in range(kb.n_relations)]
        for i in np.lexsort((keys, -counts)):
            relation, pair = divmod(int(keys[i]), n * n)
            self.pairs[relation].append((pair // n, pair % n))

    @cached_property
    def _types(self) -> list[set[int]]:
        """The types at both ends of each relation."""
        return [{type for pair in pairs for type in pair} for pairs in self.pairs]

    def within(self, first: Iterable[int], radius: int) -> list[int]:
        """The relations that a walk of `radius` steps may follow when its first is one of `first`, ascending.

        One may follow another where both touch a node type.
        """
        found = set(first)
        for _ in range(radius - 1):
            types = set().union(*(self._types[r] for r in found))
            found |= {r for r, touched in enumerate(self._types) if touched & types}
        return sorted(found)

    def told(self, relation: int) -> str:
        """ "name: type to type; ..." of a relation."""
        names = self._kb.type_names
        pairs = (f"{names[head]} to {names[tail]}" for head, tail in self.pairs[relation][:MOST_SHOWN])
        return f"{self._kb.relation_names[relation]}: {'; '.join(pairs)}"
