"""A knowledge base in memory: typed nodes and typed directed edges of one or more sources, as methods read it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.paths import PathGraph, path_graph
from gpu_rag.graph.reach import TypedGraph, typed_graph
from gpu_rag.index.knowledge_base.names import NameTable, name_key
from gpu_rag.lazy import torch
from gpu_rag.types import UNTYPED, Ragged

KINDS = ("kg", "skb", "extraction", "documents", "web")
CURATED = KINDS[:2]  # facts that people state; the facts of the other kinds are extracted from texts


@dataclass(frozen=True)
class KbSource:
    """A source of nodes, edges and passages. kind: one of KINDS; "extraction" stands for facts found in the corpus."""

    name: str
    kind: str


@dataclass(frozen=True)
class KbPaths:
    """Undirected edges of some sources, for path search.

    graph: over the nodes of the knowledge base. edges: list u holds the rows (i64, ascending) of all edges of the
    knowledge base between the two nodes of undirected edge u, with any relation and direction.
    """

    graph: PathGraph
    edges: Ragged


@dataclass(frozen=True, eq=False)
class KnowledgeBase:
    """N nodes and E edges. A node stands for all records that are linked as one thing, see `fuse`.

    sources: by name, then the index's own extraction and the passages.
    node_ids: unique, ascending; node_names: as written; node_aliases: other names. node_type: i32[N], rows of
    type_names (ascending; "entity" for a node without a type, "literal" for a value). node_sources: bool[N, sources],
    whether a source has a record of the node.
    head, relation, tail, source: i32[E]: head --relation--> tail, by (head, relation, tail, source), each once.
    relation_names: ascending, unique, as shown and written on paths; relation_texts: the same in words.
    provenance: E texts such as "kg.tsv:12", "" if extracted here; edge_passages: E lists of passages that state an
    edge, ascending, empty for other sources (on the CPU).
    node_passages: N lists of passages: first passages of the node's own document (n_own: i32[N], their number), then
    passages that mention it, by descending number of mentions. passage_ids: P ids; passage_source: i32[P], rows of
    sources. texts: S stand-in texts of nodes without any passage; text_row: i32[N], their rows, -1 elsewhere.
    vectors(stage): unit rows f32|f16 of "kb_name_vectors" [N, D], "kb_edge_vectors" [E, D] (of "head relation tail"),
    "kb_relation_vectors" [R, D], "kb_text_vectors" [S, D], "passage_vectors" [P, D]; raises MissingLayer.
    """

    sources: tuple[KbSource, ...]
    node_ids: list[str]
    node_names: list[str]
    node_aliases: Sequence[list[str]]
    node_type: np.ndarray
    type_names: list[str]
    node_sources: np.ndarray
    head: np.ndarray
    relation: np.ndarray
    tail: np.ndarray
    source: np.ndarray
    relation_names: list[str]
    relation_texts: list[str]
    provenance: Sequence[str]
    edge_passages: Ragged
    node_passages: Ragged
    n_own: np.ndarray
    passage_ids: Sequence[str]
    passage_source: np.ndarray
    texts: list[str]
    text_row: np.ndarray
    vectors: Callable[[str], torch.Tensor]
    device: str = "cpu"
    _paths: dict[tuple[int, ...], KbPaths] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of nodes N."""
        return len(self.node_ids)

    @property
    def n_edges(self) -> int:
        """Number of edges E."""
        return len(self.head)

    @property
    def n_relations(self) -> int:
        """Number of relations R."""
        return len(self.relation_names)

    @property
    def n_types(self) -> int:
        """Number of node types."""
        return len(self.type_names)

    # --- look-ups ----------------------------------------------------------------------------------

    @cached_property
    def _named(self) -> NameTable:
        return NameTable(self.node_names, self.node_aliases)

    @cached_property
    def untyped(self) -> frozenset[int]:
        """The row of the type of nodes whose type is not known; empty if there are no such nodes."""
        return frozenset(row for row, name in enumerate(self.type_names) if name == UNTYPED)

    def row_of(self, node_id: str) -> int | None:
        """Row of the node with this id, or None."""
        row = bisect_left(self.node_ids, node_id)
        return row if row < self.n and self.node_ids[row] == node_id else None

    def named(self, name: str, type: str | None = None) -> list[int]:
        """Nodes whose name or alias equals `name` under `name_key`, or whose name is `name` with a qualifier in
        brackets; only those that `may_be` of the type. Ascending, possibly several or none."""
        return self.may_be(self._named.rows(name_key(name)), type)

    def may_be(self, nodes: Sequence[int], type: str | None) -> list[int]:
        """The nodes of this type (None: of any type), and those whose type is not known."""
        return [node for node in nodes if type is None or self.type_names[self.node_type[node]] in (type, UNTYPED)]

    def keys_of_names(self) -> list[str]:
        """The names for which `named` has nodes, in the form of `name_key`, each once, ascending."""
        return self._named.keys()

    def nodes_of_type(self, *types: str) -> np.ndarray:
        """Nodes of the types: i64, ascending; none for unknown types."""
        return np.flatnonzero(np.isin(self.node_type, [r for r, name in enumerate(self.type_names) if name in types]))

    @cached_property
    def _passages_on_host(self) -> tuple[np.ndarray, np.ndarray]:
        """node_passages on the CPU, for look-ups of single nodes. No copy if it is there already."""
        values, offsets = (part.cpu().numpy() for part in (self.node_passages.values, self.node_passages.offsets))
        return values, offsets

    def passages_of(self, node: int) -> np.ndarray:
        """Passages of a node, see `node_passages`: i32, a view on the CPU."""
        values, offsets = self._passages_on_host
        passages: np.ndarray = values[offsets[node] : offsets[node + 1]]
        return passages

    @cached_property
    def _edge_passages(self) -> tuple[np.ndarray, np.ndarray]:
        return self.edge_passages.values.numpy(), self.edge_passages.offsets.numpy()

    def passages_stating(self, edges: Sequence[int]) -> tuple[int, ...]:
        """The passages that state any of some edges, each once, edge by edge."""
        values, offsets = self._edge_passages
        return tuple(dict.fromkeys(row for e in edges for row in values[offsets[e] : offsets[e + 1]].tolist()))

    # --- in words ----------------------------------------------------------------------------------

    def triple(self, edge: int) -> tuple[str, str, str, str]:
        """(head's name, relation, tail's name, where) of an edge, as in `types.Path`.

        where: the first passage that states it, otherwise its provenance.
        """
        values, offsets = self._edge_passages
        first, last = offsets[edge], offsets[edge + 1]
        where = self.passage_ids[int(values[first])] if last > first else self.provenance[edge]
        head, tail = self.node_names[self.head[edge]], self.node_names[self.tail[edge]]
        return head, self.relation_names[self.relation[edge]], tail, where

    # --- for the graph ops -------------------------------------------------------------------------

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    @cached_property
    def typed(self) -> TypedGraph:
        """All edges, for walks along relations. The TypedGraph's tail -> head is head -> tail here."""
        ends = (self._tensor(self.head), self._tensor(self.relation), self._tensor(self.tail))
        return typed_graph(*ends, self.n, self.n_relations)

    def paths(self, sources: tuple[int, ...] | None = None) -> KbPaths:
        """Undirected edges of these sources (None: all), without loops. Made once for each choice."""
        chosen = tuple(range(len(self.sources))) if sources is None else tuple(sorted(set(sources)))
        if chosen not in self._paths:
            self._paths[chosen] = self._paths_of(chosen)
        return self._paths[chosen]

    def _paths_of(self, sources: tuple[int, ...]) -> KbPaths:
        rows = np.flatnonzero(np.isin(self.source, sources) & (self.head != self.tail))
        low = np.minimum(self.head[rows], self.tail[rows]).astype(np.int64)
        high = np.maximum(self.head[rows], self.tail[rows]).astype(np.int64)
        graph = path_graph(csr_from_edges(self._tensor(low), self._tensor(high), self.n))
        # undirected edges are numbered by (low, high), as in `path_graph`
        _, number = np.unique(low * max(self.n, 1) + high, return_inverse=True)
        order = np.argsort(number, kind="stable")
        offsets = np.searchsorted(number[order], np.arange(int(number.max(initial=-1)) + 2))
        return KbPaths(graph, Ragged(self._tensor(rows[order].astype(np.int64)), self._tensor(offsets)))
