"""A knowledge base prepared for the knowledge-base verbs: names and relations by vector, the relations at nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gpu_rag.graph.common.dots import on_grid
from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.graph.ragged import expand, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.program.knowledge_base.documents import DocumentSearch
from gpu_rag.program.knowledge_base.schema import KbSchema
from gpu_rag.program.search import Ranking, rankings


@dataclass(frozen=True)
class NearRelations(Ranking):
    """Relations, best first. first: whether each is that of an edge at the nodes asked for: a walk may begin so."""

    first: tuple[bool, ...] = ()


class KbSearch:
    """A knowledge base prepared for search; parts are made when they are first needed."""

    def __init__(self, kb: KnowledgeBase, threads: int = 1):
        self.kb, self.threads = kb, threads
        self._of_type: dict[str, tuple[np.ndarray, NearestRows]] = {}

    @cached_property
    def documents(self) -> DocumentSearch:
        """Dense search over the documents of all nodes."""
        return DocumentSearch(self.kb)

    @cached_property
    def schema(self) -> KbSchema:
        """Which types each relation joins."""
        return KbSchema(self.kb)

    @cached_property
    def relation_grid(self) -> torch.Tensor:
        """f64[R, D] on the device: the relations' vectors `on_grid`, so that products are exact in any batch."""
        return on_grid(self.kb.vectors("kb_relation_vectors"))

    def tensor(self, vectors: Sequence[np.ndarray]) -> torch.Tensor:
        """f32[B, D] on the device."""
        return torch.from_numpy(np.stack(vectors).astype(np.float32)).to(self.kb.device)

    def names_of_type(self, type: str | None) -> tuple[np.ndarray, NearestRows]:
        """(rows, their names, ready to be searched) of a type, or of all nodes."""
        key = "" if type is None else f"={type}"
        if key not in self._of_type:
            held = self.kb.vectors("kb_name_vectors")
            rows = np.arange(self.kb.n) if type is None else self.kb.nodes_of_type(type)
            whole = len(rows) == self.kb.n  # then no copy is made
            self._of_type[key] = rows, NearestRows(held if whole else held[torch.from_numpy(rows).to(held.device)])
        return self._of_type[key]

    def relations_at(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        """The relations of the edges at each group of nodes, ascending."""
        typed, nodes = self.kb.typed, ragged_of_lists(groups, self.kb.device)
        n_relations = max(typed.n_relations, 1)
        group = row_of_value(nodes)
        found = [group[:0]]
        for indptr, relation in ((typed.out_indptr, typed.out_relation), (typed.in_indptr, typed.in_relation)):
            for owner, edge in expand(indptr[nodes.values], indptr[nodes.values + 1]):
                found.append(torch.unique(group[owner] * n_relations + relation[edge]))
        keys = torch.unique(torch.cat(found))
        bounds = torch.searchsorted(keys, torch.arange(nodes.batch + 1, device=keys.device) * n_relations).tolist()
        relations = (keys % n_relations).tolist()
        return [relations[a:b] for a, b in zip(bounds, bounds[1:])]


def kb_search(index: Index, threads: int = 1) -> KbSearch:
    """The search over an index's knowledge base, prepared once. Raises MissingLayer."""
    return index.loaded("kb search", lambda index: KbSearch(index.loaded("kb", load_kb), threads))


def near_names(search: KbSearch, args: list[tuple[str | None, np.ndarray]], k: int, threshold: float) -> list[Ranking]:
    """Of each (type, vector) the k nearest names of the type, of cosine >= threshold; one product a type."""
    found: list[Ranking] = [Ranking((), ())] * len(args)
    for type in dict.fromkeys(type for type, _ in args):
        places = [i for i, (of, _) in enumerate(args) if of == type]
        rows, names = search.names_of_type(type)
        top = rankings(names.search(search.tensor([args[i][1] for i in places]), min(k, len(rows))))
        for i, one in zip(places, top):
            kept = [(int(rows[r]), s) for r, s in zip(one.rows, one.scores) if s >= threshold]
            found[i] = Ranking(tuple(r for r, _ in kept), tuple(s for _, s in kept))
    return found


def ranked_relations(
    search: KbSearch, args: list[tuple[Sequence[int], np.ndarray]], radius: int, k: int
) -> list[NearRelations]:
    scores = on_grid(search.tensor([vector for _, vector in args])) @ search.relation_grid.T
    at = search.relations_at([nodes for nodes, _ in args])
    found = []
    for line, (nodes, _), there in zip(scores.float().tolist(), args, at):
        wanted = search.schema.within(there, radius) if nodes else range(search.kb.n_relations)
        first, ranked = set(there), sorted(wanted, key=lambda r: (-line[r], r))
        begin = next((r for r in ranked if r in first), None)
        if begin is not None and begin not in ranked[:k]:
            ranked = [*ranked[: k - 1], begin]  # without it no walk could begin
        ranked = ranked[:k]
        found.append(NearRelations(tuple(ranked), tuple(line[r] for r in ranked), tuple(r in first for r in ranked)))
    return found
