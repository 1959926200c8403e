"""The knowledge graphs of an index as path search reads them: one undirected graph over fused nodes.

Parallel relations between two nodes are one edge with a list of triples (relation clustering). The vector of an edge is
the mean of its triples' vectors, made a unit vector. `one_relation` keeps a single triple of every edge, drawn by a
seed (HydraRAG-E).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.ego import CheckedGraph, checked
from gpu_rag.graph.paths import PathGraph
from gpu_rag.graph.ragged import expand, row_of_value
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.types import Ragged

_ROWS = 1 << 14  # edges whose vectors are averaged at a time
_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as i64: the step of splitmix64
_MIX = (-4658895280553007687, -7723592293110705685)
_SEEDS = (0x1F83D9AB, 0x5BE0CD19)


@dataclass(frozen=True)
class Facts:
    """The triples of all knowledge graphs over N fused nodes.

    subject, relation, object: i64[M]; vectors: f16/f32[M, D], unit rows, a row a triple; n: N.
    """

    n: int
    subject: torch.Tensor
    relation: torch.Tensor
    object: torch.Tensor
    vectors: torch.Tensor

    def __post_init__(self) -> None:
        columns = (self.subject, self.relation, self.object)
        shapes = [tuple(column.shape) for column in columns]
        if len(set(shapes)) != 1 or self.vectors.shape[0] != shapes[0][0]:
            given = f"{shapes}, {self.vectors.shape[0]} vectors"
            raise BadInput("columns of triples differ in length", given=given, expected="one length M")


@dataclass(frozen=True)
class FactGraph:
    """Some of the facts as a graph of P edges. graph: for path ops; checked: for neighbourhoods.

    keys: i64[P], low * N + high of each edge, ascending: edge numbers are those of `graph`. triples: for each edge the
    rows of its facts. n_triples: i64[P], how many there were before `one_relation`. vectors: f16[P, D]. signatures:
    i64[E, 2], for each stored entry u -> v a fingerprint of v and of the (direction, relation) of every fact between.
    """

    graph: PathGraph
    checked: CheckedGraph
    keys: torch.Tensor
    triples: Ragged
    n_triples: torch.Tensor
    vectors: torch.Tensor
    signatures: torch.Tensor

    @property
    def n(self) -> int:
        """Number of fused nodes."""
        return self.graph.n

    @cached_property
    def _on_host(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """keys and triples where words are made of paths, an edge at a time; on the CPU no copy."""
        keys, rows, offsets = (part.cpu().numpy() for part in (self.keys, self.triples.values, self.triples.offsets))
        return keys, rows, offsets

    def facts_of(self, edge: int) -> list[int]:
        """The rows of the facts of an edge, looked up on the host."""
        _, rows, offsets = self._on_host
        found: list[int] = rows[offsets[edge] : offsets[edge + 1]].tolist()
        return found

    def facts_between(self, one: int, other: int) -> list[int]:
        """The rows of the facts of the edge between two nodes, looked up on the host. The edge must exist."""
        low, high = min(one, other), max(one, other)
        return self.facts_of(int(np.searchsorted(self._on_host[0], low * self.n + high)))

    def edges_of(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """i32[..]: the edge between two nodes each, -1 where either is -1. The edges must exist."""
        low, high = torch.minimum(one, other).long(), torch.maximum(one, other).long()
        at = torch.searchsorted(self.keys, (low * self.n + high).contiguous())
        return torch.where(low < 0, -1, at).int()


def facts_of_kb(kb: KnowledgeBase) -> Facts:
    """All triples of a knowledge base with their vectors."""
    head, relation, tail = (torch.from_numpy(c.astype(np.int64)).to(kb.device) for c in (kb.head, kb.relation, kb.tail))
    return Facts(kb.n, head, relation, tail, kb.vectors("kb_edge_vectors"))


def fact_graph(facts: Facts, graph: PathGraph, triples: Ragged) -> FactGraph:
    """The graph of some facts. graph, triples: the undirected adjacency and the facts behind each of its edges, as
    `KnowledgeBase.paths` gives them. O(E log E). Raises BadInput where an edge has no fact, or one of other ends."""
    n, csr = max(facts.n, 1), graph.csr
    row, column = row_of_entry(csr), csr.indices.long()
    keys = torch.unique((row * n + column)[row < column])
    counts = triples.offsets.diff()
    if keys.shape[0] != triples.batch or bool((counts < 1).any()):
        given = f"{keys.shape[0]} edges, {triples.batch} lists, the shortest of {int(counts.min())}"
        raise BadInput("edges and their facts do not fit", given=given, expected="at least one fact an edge")
    rows = triples.values.long()
    edge = row_of_value(triples)
    subject, object_ = facts.subject[rows], facts.object[rows]
    if not torch.equal(torch.minimum(subject, object_) * n + torch.maximum(subject, object_), keys[edge]):
        raise BadInput("facts stand at edges of other ends", expected="edges numbered by (lower end, higher end)")
    triples = Ragged(rows, triples.offsets)
    signatures = _signatures(graph, facts, keys, edge, rows)
    return FactGraph(graph, checked(csr), keys, triples, counts, _means(facts.vectors, triples), signatures)


def one_relation(graph: FactGraph, facts: Facts, seed: int) -> FactGraph:
    """The same graph with one fact an edge: number mix(seed, edge) modulo their count, of its facts in order."""
    draw = _mixed(graph.keys + _mixed(torch.full_like(graph.keys, seed))) & (2**62 - 1)
    taken = graph.triples.values[graph.triples.offsets[:-1] + draw % graph.n_triples.clamp_min(1)]
    offsets = torch.arange(taken.shape[0] + 1, device=taken.device)
    triples = Ragged(taken, offsets)
    vectors = _means(facts.vectors, triples)
    return FactGraph(graph.graph, graph.checked, graph.keys, triples, graph.n_triples, vectors, graph.signatures)


def _means(vectors: torch.Tensor, lists: Ragged) -> torch.Tensor:
    """f16[B, D]: the mean of the rows of each list as a unit row; zero where it vanishes. Every list has a row."""
    held = vectors.new_zeros(lists.batch, vectors.shape[1], dtype=torch.float16)
    for first in range(0, lists.batch, _ROWS):
        last = min(first + _ROWS, lists.batch)
        start, end = int(lists.offsets[first]), int(lists.offsets[last])
        rows = vectors[lists.values[start:end]].double()
        sums = torch.segment_reduce(rows, "sum", lengths=lists.offsets[first : last + 1].diff(), axis=0)
        length = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
        held[first:last] = torch.where(length > 1e-6, sums / length.clamp_min(1e-6), 0.0).half()
    return held


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """splitmix64 of i64 values, as i64 (Steele, Lea and Flood 2014)."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _MIX[0]
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _MIX[1]
    return x ^ ((x >> 31) & (2**33 - 1))


def _signatures(
    graph: PathGraph, facts: Facts, keys: torch.Tensor, edge: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """i64[E, 2] of `FactGraph`. edge, rows: the edge of each fact, and the fact, by edge."""
    forward = facts.subject[rows] == keys[edge] // max(facts.n, 1)  # the subject is the lower end
    csr = graph.csr
    row, column, of = row_of_entry(csr), csr.indices.long(), graph.edge.long()
    signatures = torch.zeros(csr.m, len(_SEEDS), dtype=torch.int64, device=row.device)
    for k, seed in enumerate(_SEEDS):
        sums = []
        for outward in (forward, ~forward):  # as seen from the lower end, then from the higher
            said = _mixed(_mixed(2 * facts.relation[rows] + outward.long() + (seed << 20)))
            sums.append(torch.zeros_like(keys).index_add_(0, edge, said))
        between = torch.where(row < column, sums[0][of], sums[1][of])
        signatures[:, k] = _mixed(between + _mixed(column + (seed << 24)))
    return signatures


def entries_inside(graph: FactGraph, nodes: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    """(owner, entry) i64 of every stored entry between two nodes of one list; owner: the place in nodes.values.

    nodes: ascending lists, each node once. In pieces: memory of the entries at the nodes.
    """
    n = max(graph.n, 1)
    node = nodes.values.long()
    lists = row_of_value(nodes)
    known = lists * n + node
    csr = graph.graph.csr
    owners, entries = [node[:0]], [node[:0]]
    for owner, entry in expand(csr.indptr[node], csr.indptr[node + 1]):
        wanted = lists[owner] * n + csr.indices[entry]
        at = torch.searchsorted(known, wanted).clamp_(max=known.shape[0] - 1)
        hit = known[at] == wanted
        owners.append(owner[hit])
        entries.append(entry[hit])
    return torch.cat(owners), torch.cat(entries)
