"""The relations of a knowledge base: the types that they join, the relations at nodes, and those that a question needs.

If a knowledge base has more types and relations than a prompt can hold, `likely` ranks them. Relations: first those
that the question names, in text order, then by the cosine of their words and the question. Types: first those that the
question names and those of the names in it, then those that the relations join, in their order. A relation or type is
named if its words occur in the question, or the words of the last part of its name ("directed by" of
"film.film.directed_by").
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gpu_rag.graph.common.dots import on_grid
from gpu_rag.graph.ragged import expand, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase, name_key
from gpu_rag.index.knowledge_base.names import relation_text
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.names import MAX_HOMONYMS, mentions, mentions_in
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.search import Ranking, stacked
from gpu_rag.runtime.step import batched

MAX_PAIRS = 3  # type pairs shown per relation
CHUNK = 1024  # relations compared with all others at a time
_LAST_PART = re.compile(r"[^./#:]+$")


@dataclass(frozen=True)
class NearRelations(Ranking):
    """Relations, best first. first: whether each has an edge at the nodes, so that a walk may begin with it."""

    first: tuple[bool, ...] = ()


class Relations:
    """The relations of a knowledge base. pairs: the (head type, tail type) pairs of each, commonest first."""

    def __init__(self, kb: KnowledgeBase):
        self.kb = kb
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

    @cached_property
    def _grid(self) -> torch.Tensor:
        """f64[R, D] on the device: the relations' vectors `on_grid`, so that products are exact in any batch."""
        return on_grid(self.kb.vectors("kb_relation_vectors"))

    @cached_property
    def _words(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """The rows of types, and of relations, by their wording."""
        return _by_words(self.kb.type_names), _by_words(self.kb.relation_names)

    def said_in(self, text: str) -> tuple[list[int], list[int]]:
        """(types, relations) that a question names, by place in the question, then by row."""
        types, relations = self._words
        return _said(text, types), _said(text, relations)

    def text(self, relation: int) -> str:
        """ "name: type to type; ..." of a relation."""
        names = self.kb.type_names
        pairs = (f"{names[head]} to {names[tail]}" for head, tail in self.pairs[relation][:MAX_PAIRS])
        return f"{self.kb.relation_names[relation]}: {'; '.join(pairs)}"

    def within(self, first: Iterable[int], radius: int) -> list[int]:
        """The relations that a walk of `radius` steps may follow when its first is one of `first`, ascending.

        One relation may follow another if they share a node type.
        """
        reached = set(first)
        for _ in range(radius - 1):
            types = set().union(*(self._types[r] for r in reached))
            reached |= {r for r, touched in enumerate(self._types) if touched & types}
        return sorted(reached)

    def cosines(self, vectors: Sequence[np.ndarray]) -> torch.Tensor:
        """f32[B, R]: the cosine of each unit vector and each relation's words, on the host."""
        return (on_grid(stacked(vectors, self.kb.device)) @ self._grid.T).float().cpu()

    @cached_property
    def apart(self) -> float:
        """The median over all relations of the cosine to the nearest other relation; -1 for a single relation. Words
        that are less near to a relation than this do not mean it."""
        rows, nearest = self._grid, list[torch.Tensor]()
        if len(rows) < 2:
            return -1.0
        for start in range(0, len(rows), CHUNK):
            cosines = rows[start : start + CHUNK] @ rows.T
            cosines.diagonal(start).fill_(-1.0)
            nearest.append(cosines.amax(1).cpu())
        return float(torch.cat(nearest).float().median())

    def ranked(
        self, groups: Sequence[Sequence[int]], vectors: Sequence[np.ndarray], radius: int, k: int
    ) -> list[NearRelations]:
        """The nearest relations, see `near_relations`."""
        results, either = [], np.zeros(self.kb.n_relations, bool)
        for row, nodes, directed in zip(self.cosines(vectors).tolist(), groups, directed_at(self.kb, groups, either)):
            first = {d // 2 for d in directed}
            reachable = self.within(first, radius) if nodes else range(self.kb.n_relations)
            ranked = sorted(reachable, key=lambda r: (-row[r], r))
            begin = next((r for r in ranked if r in first), None)
            if begin is not None and begin not in ranked[:k]:
                ranked = [*ranked[: k - 1], begin]  # otherwise no walk could begin
            rows = tuple(ranked[:k])
            results.append(NearRelations(rows, tuple(row[r] for r in rows), tuple(r in first for r in rows)))
        return results

    def likely(self, text: str, vector: np.ndarray) -> tuple[list[int], list[int]]:
        """All (types, relations), first those that a question with this unit vector needs most; see the module."""
        types, named = self.said_in(text)
        (ranked,) = self.ranked([()], [vector], 1, self.kb.n_relations)
        relations = list(dict.fromkeys((*named, *ranked.rows)))
        joined = (type for row in relations for pair in self.pairs[row] for type in pair)
        return list(dict.fromkeys((*types, *_types_in(self.kb, text), *joined, *range(self.kb.n_types)))), relations


def _by_words(names: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each wording. Single characters and stop words are never looked up."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        last = _LAST_PART.search(name)
        for key in {name_key(relation_text(text)) for text in (name, last[0] if last else name)}:
            rows[key].append(row)
    return dict(rows)


def _said(text: str, rows: dict[str, list[int]]) -> list[int]:
    names = mentions(text, lambda words: name_key(words) in rows)
    places = sorted(names, key=lambda mention: (mention.start, -mention.end))
    return [row for m in places for row in rows[name_key(text[m.start : m.end])]]


def relations_of(index: Index) -> Relations:
    """The relations of an index's knowledge base."""
    return index.loaded("relations", lambda index: Relations(kb_of(index)))


@batched(GRAPH, name="kb_relations")
def near_relations(
    index: Index, queries: list[tuple[Sequence[int], np.ndarray]], radius: int, k: int
) -> list[NearRelations]:
    """The k relations that walks of `radius` steps from nodes may follow, by (-cosine to a unit vector, row).

    The types of their ends determine which relations may follow which; without nodes all relations are ranked. If none
    of the k can be the first step, the best one that can takes the last place.
    """
    return relations_of(index).ranked([nodes for nodes, _ in queries], [vector for _, vector in queries], radius, k)


def directed_at(kb: KnowledgeBase, groups: Sequence[Sequence[int]], either: np.ndarray) -> list[list[int]]:
    """The directed relations that lead away from each group of nodes, ascending. The number of waits is constant."""
    lists = ragged_of_lists(groups, kb.device)
    group, node, width = row_of_value(lists), lists.values, 2 * max(kb.n_relations, 1)
    both, keys = torch.from_numpy(either).to(kb.device), [node[:0]]
    sides = ((kb.typed.out_indptr, kb.typed.out_relation), (kb.typed.in_indptr, kb.typed.in_relation))
    for back, (indptr, relation_of) in enumerate(sides):
        for owner, entry in expand(indptr[node], indptr[node + 1]):
            relation = relation_of[entry].long()
            keys.append(torch.unique(group[owner] * width + 2 * relation + (back & ~both[relation])))
    relations: list[list[int]] = [[] for _ in groups]
    for key in torch.unique(torch.cat(keys)).tolist():
        relations[key // width].append(key % width)
    return relations


def _types_in(kb: KnowledgeBase, text: str) -> list[int]:
    """The types of the nodes whose names occur in the question, best mentions first."""
    nodes = (node for m in mentions_in(kb, text) for node in kb.named(text[m.start : m.end])[:MAX_HOMONYMS])
    return [int(kb.node_type[node]) for node in nodes]
