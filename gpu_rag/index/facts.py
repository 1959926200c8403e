"""Facts of an index by name: those around one name, and chains of facts between two names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, product

import numpy as np
import pyarrow as pa

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.paths import Ends, PathGraph, PathSet, Window, path_graph, search_paths
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.load import lists, load_kb
from gpu_rag.index.names import TextColumn
from gpu_rag.index.tables import ENTITIES
from gpu_rag.lazy import torch
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Ragged

MAX_HOPS = 6
BEAM = 1024  # partial paths kept from each end


@dataclass(frozen=True)
class Fact:
    """A stated fact, as written. source: a passage that states it, or the file and line of a knowledge graph."""

    subject: str
    label: str
    object: str
    source: str


@dataclass(frozen=True)
class Facts:
    """E facts between N nodes. head, tail: i64[E]; lookup: the nodes that bear a name; fact: one fact by its row.

    degree: i64[N], facts of each node; graph: the facts without direction and loops, for path search. names, aliases:
    of each node, as written; stated: rows of the passages that state each fact, E lists.
    """

    head: np.ndarray
    tail: np.ndarray
    lookup: Callable[[str], Sequence[int]]
    fact: Callable[[int], Fact]
    degree: np.ndarray
    graph: PathGraph
    names: pa.ChunkedArray
    aliases: Sequence[list[str]]
    stated: Ragged

    def around(self, name: str, k: int) -> list[Fact]:
        """At most k facts with this name as subject or object. Facts whose other end has more facts come first; ties
        keep the order of the index. Raises BadInput for an unknown name."""
        return [self.fact(int(row)) for row in self.rows_around(self.nodes(name))[:k]]

    def rows_around(self, nodes: Sequence[int]) -> np.ndarray:
        """Rows of all facts with one of these nodes as subject or object, in the order of `around`: i64."""
        rows = np.flatnonzero(np.isin(self.head, nodes) | np.isin(self.tail, nodes))
        others = np.where(np.isin(self.head[rows], nodes), self.tail[rows], self.head[rows])
        return rows[np.argsort(-self.degree[others], kind="stable")]

    def chains(self, start: str, end: str, k: int, hops: int) -> list[tuple[Fact, ...]]:
        """At most k simple chains of up to `hops` facts between two names, in any direction of the facts.

        Shorter chains come first, then chains through nodes with fewer facts. At each hop the BEAM partial chains
        through the least connected nodes are kept, and of names that many nodes bear the first BEAM pairs are joined.
        Raises BadInput for an unknown name or more than MAX_HOPS hops.
        """
        if not 1 <= hops <= MAX_HOPS:
            raise BadInput("hops are out of range", given=hops, expected=f"1 to {MAX_HOPS}")
        both = product(self.nodes(start), self.nodes(end))
        pairs = list(islice((pair for pair in both if pair[0] != pair[1]), BEAM))
        if not pairs:
            return []
        topics = Ragged(torch.tensor(pairs).flatten(), torch.arange(0, 2 * len(pairs) + 1, 2))
        closed = torch.zeros(len(pairs), dtype=torch.bool)
        window = Window(torch.zeros(len(pairs), dtype=torch.int64), torch.full((len(pairs),), hops))
        paths = search_paths(self.graph, topics, (hops + 1) // 2, Ends(closed, closed), window, self._least_connected)
        cost = self._cost(paths)
        order = sorted(range(paths.size), key=lambda row: (int(paths.lengths[row]), float(cost[row]), row))
        nodes = paths.nodes.tolist()
        return [self._chain([node for node in nodes[row] if node >= 0]) for row in order[:k]]

    def nodes(self, name: str) -> Sequence[int]:
        """Nodes that bear a name. Raises BadInput if there is none."""
        nodes = self.lookup(name)
        if not nodes:
            raise BadInput("no such name in the index", given=name, do="search for it, and take a name of the results")
        return nodes

    def _chain(self, nodes: Sequence[int]) -> tuple[Fact, ...]:
        """The first fact between each node and the next."""
        rows = []
        for a, b in zip(nodes, nodes[1:]):
            between = ((self.head == a) & (self.tail == b)) | ((self.head == b) & (self.tail == a))
            rows.append(int(np.argmax(between)))
        return tuple(self.fact(row) for row in rows)

    def _cost(self, paths: PathSet) -> np.ndarray:
        """Sum of log degrees of each path's nodes: f64[P]."""
        nodes = paths.nodes.numpy()
        return np.where(nodes >= 0, np.log1p(self.degree)[nodes], 0.0).sum(1)

    def _least_connected(self, paths: PathSet) -> PathSet:
        """The BEAM paths of each group with the least cost; ties keep their order."""
        group = paths.group.numpy()
        order = np.lexsort((self._cost(paths), group))
        first = np.searchsorted(group, group)  # ascending: where the group of each path begins
        kept = order[np.arange(len(order)) - first < BEAM]
        return paths.rows(torch.from_numpy(np.sort(kept)))


def load_facts(index: Index) -> Facts:
    """Facts of an index, for `index.loaded("facts", load_facts)`: edges of the knowledge base if there is one (it also
    holds facts extracted from documents), else relations. Raises MissingLayer."""
    if "kb" in index.stages:
        kb = index.loaded("kb", load_kb)
        names = pa.chunked_array([pa.array(kb.node_names, pa.large_string())])
        more = names, kb.node_aliases, kb.edge_passages
        return _facts(kb.head, kb.tail, kb.n, kb.named, lambda row: Fact(*kb.triple(row)), *more)
    head, tail = index.relation_ends

    def fact(row: int) -> Fact:
        stated = index.relation_passages[row]
        return Fact(*index.relation_text(row), index.passage_ids[stated[0]] if stated else "")

    def lookup(name: str) -> Sequence[int]:
        row = index.entity_rows.get(normalise_name(name))
        return [] if row is None else [row]

    aliases = TextColumn[list[str]](index.table("entities", "entities.parquet", ENTITIES, ["aliases"])["aliases"])
    more = index.entity_names.column, aliases, lists(index.relation_passages.column, "cpu")
    return _facts(head, tail, index.n_entities, lookup, fact, *more)


def _facts(
    head: np.ndarray, tail: np.ndarray, n: int, lookup: Callable[[str], Sequence[int]], fact: Callable[[int], Fact],
    names: pa.ChunkedArray, aliases: Sequence[list[str]], stated: Ragged,
) -> Facts:  # fmt: skip
    head, tail = head.astype(np.int64), tail.astype(np.int64)
    degree = np.bincount(head, minlength=n) + np.bincount(tail, minlength=n)
    graph = path_graph(csr_from_edges(torch.from_numpy(head), torch.from_numpy(tail), n))
    return Facts(head, tail, lookup, fact, degree, graph, names, aliases, stated)
