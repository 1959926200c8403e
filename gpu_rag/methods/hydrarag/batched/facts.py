"""The knowledge graphs of an index for path search: an undirected graph over fused nodes, and paths in words.

Parallel relations between two nodes form one edge with a list of triples (relation clustering). The vector of an edge
is the mean of the vectors of its triples, scaled to length 1. The vector of a triple h - r -> t is the embedding of its
text. In a graph with too many triples to embed, it is h + r + t scaled to length 1, composed on demand from the vectors
of names and relations. In both cases the surviving paths are later compared as texts. `one_relation` keeps a single
triple of every edge, drawn by a seed (HydraRAG-E).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np
import torch
from gpu_rag_kernels.dispatch import is_cpu

from gpu_rag.graph.common.segments import offsets_of, sums_in_order
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.ego import CheckedGraph
from gpu_rag.graph.paths import PathGraph
from gpu_rag.graph.ragged import expand, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import CURATED, KnowledgeBase
from gpu_rag.methods.hydrarag.state import KINDS, FoundPath
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched
from gpu_rag.types import CSR, Ragged

MAX_MEMBERS = 5  # members of a cluster that are named in words
MAX_EDGES = 24  # real edges listed per path
MAX_RELATIONS = 4  # parallel relations shown of a hop
_ROWS = 1 << 14  # edges averaged at a time
_GOLDEN = -7046029254386353131  # 2^64 / golden ratio as i64: the increment of splitmix64
_MIX = (-4658895280553007687, -7723592293110705685)
_SEEDS = (0x1F83D9AB, 0x5BE0CD19)


@dataclass(frozen=True)
class FactChoice:
    """The facts that a search may use. sources: row numbers in `KnowledgeBase.sources`, ascending. draw: a seed that
    picks one of the parallel relations of each edge; None keeps all."""

    sources: tuple[int, ...]
    draw: int | None = None


@dataclass(frozen=True)
class FactGraph:
    """A selection of the facts as a graph of P edges.

    keys: i64[P], low * N + high of each edge, ascending; edges are numbered as in `graph`. triples: the fact rows of
    each edge. n_triples: i64[P], their number before `one_relation`. vectors: vectors of edges. signatures: i64[E, 2],
    for each stored entry u -> v a fingerprint of v and of the (direction, relation) of every fact between u and v.
    """

    graph: PathGraph
    keys: torch.Tensor
    triples: Ragged
    n_triples: torch.Tensor
    vectors: ExactVectors | ComposedVectors
    signatures: torch.Tensor

    @property
    def n(self) -> int:
        """Number of fused nodes."""
        return self.graph.n

    @cached_property
    def _on_host(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """keys and triples on the host, where paths are turned into words edge by edge. No copy on the CPU."""
        keys, rows, offsets = (part.cpu().numpy() for part in (self.keys, self.triples.values, self.triples.offsets))
        return keys, rows, offsets

    @cached_property
    def numbered(self) -> CheckedGraph:
        """The graph with the number of each stored entry as its weight."""
        csr = self.graph.csr
        return CheckedGraph(CSR(csr.indptr, csr.indices, torch.arange(csr.m, device=csr.indices.device)))

    def facts_of(self, edge: int) -> list[int]:
        """The fact rows of an edge, looked up on the host."""
        _, rows, offsets = self._on_host
        facts: list[int] = rows[offsets[edge] : offsets[edge + 1]].tolist()
        return facts

    def facts_between(self, node: int, other: int) -> list[int]:
        """The fact rows of the edge between two nodes, looked up on the host. The edge must exist."""
        low, high = min(node, other), max(node, other)
        return self.facts_of(int(np.searchsorted(self._on_host[0], low * self.n + high)))

    def edges_along(self, nodes: torch.Tensor) -> torch.Tensor:
        """i32[P, W]: the edge of every hop of paths [P, W + 1], -1 beyond a path's end. The edges must exist."""
        node, other = nodes[:, :-1].long(), nodes[:, 1:].long()
        keys = torch.minimum(node, other) * self.n + torch.maximum(node, other)
        return torch.where(other < 0, -1, torch.searchsorted(self.keys, keys)).int()


def facts_of(index: Index, choice: FactChoice) -> FactGraph:
    """The graph of the chosen facts, made once per choice."""
    kb = kb_of(index)
    if choice.draw is None:
        return index.loaded(f"facts {choice}", lambda _: fact_graph(kb, choice.sources))
    whole, seed = facts_of(index, FactChoice(choice.sources)), choice.draw
    return index.loaded(f"facts {choice}", lambda _: one_relation(whole, kb, seed))


def fact_graph(kb: KnowledgeBase, sources: tuple[int, ...]) -> FactGraph:
    """The graph of the facts of some sources. Takes O(E log E) time."""
    paths, n = kb.paths(sources), max(kb.n, 1)
    csr = paths.graph.csr
    row, column = row_of_entry(csr), csr.indices.long()
    keys = torch.unique((row * n + column)[row < column])  # ascending: the order of edge numbers
    triples = Ragged(paths.edges.values.long(), paths.edges.offsets)
    vectors = edge_vectors(kb, triples)
    signatures = _signatures(kb, paths.graph, keys, triples)
    return FactGraph(paths.graph, keys, triples, triples.offsets.diff(), vectors, signatures)


def one_relation(graph: FactGraph, kb: KnowledgeBase, seed: int) -> FactGraph:
    """The same graph with one fact per edge: number mix(seed, edge) modulo the count of its facts, in order."""
    draw = _mixed(graph.keys + _mixed(torch.full_like(graph.keys, seed))) & (2**62 - 1)
    drawn = graph.triples.values[graph.triples.offsets[:-1] + draw % graph.n_triples.clamp_min(1)]
    triples = Ragged(drawn, torch.arange(drawn.shape[0] + 1, device=drawn.device))
    return replace(graph, triples=triples, vectors=edge_vectors(kb, triples))


# --- vectors of edges --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExactVectors:
    """Stored edge vectors. rows: f16[P, D]."""

    rows: torch.Tensor

    def along(self, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(row numbers, rows): for the edges i32[., W] along paths, -1 beyond their ends, the rows of their vectors."""
        return edges, self.rows

    def vectors(self, edges: torch.Tensor) -> torch.Tensor:
        """f16[T, D]: the vectors of the given edges."""
        return self.rows[edges]


@dataclass(frozen=True)
class ComposedVectors:
    """Edge vectors that are computed on demand. triples: triples of each edge; head, relation, tail: i32[E], of
    triples; names, relations: unit rows [N, D], [R, D]."""

    triples: Ragged
    head: torch.Tensor
    relation: torch.Tensor
    tail: torch.Tensor
    names: torch.Tensor
    relations: torch.Tensor

    def along(self, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Edge rows along paths, see `ExactVectors.along`. Only edges on these paths get a vector."""
        distinct, row = torch.unique(edges, return_inverse=True)
        n_padding = int(distinct.shape[0] > 0 and distinct[0] < 0)
        return (row - n_padding).int(), self.vectors(distinct[n_padding:])

    def vectors(self, edges: torch.Tensor) -> torch.Tensor:
        """f16[T, D]: the vectors of the given edges."""
        vectors = self.names.new_zeros(edges.shape[0], self.names.shape[1], dtype=torch.float16)
        for first in range(0, edges.shape[0], _ROWS):
            part = edges[first : first + _ROWS].long()
            start, end = self.triples.offsets[part], self.triples.offsets[part + 1]
            owner, place = (torch.cat(parts) for parts in zip(*expand(start, end)))
            fact = self.triples.values[place]
            sums = self.names[self.head[fact].long()].float()
            sums += self.names[self.tail[fact].long()]
            sums += self.relations[self.relation[fact].long()]
            if fact.shape[0] > part.shape[0]:  # otherwise each edge has one fact
                sums = _sums(_units(sums), owner, offsets_of(end - start))
            vectors[first : first + _ROWS] = _units(sums).half()
        return vectors


def _sums(rows: torch.Tensor, owner: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The sum of the rows of each owner, added in row order, so the bits are the same on any device. On the CPU
    `index_add_` adds in order and is ten times as fast."""
    if is_cpu(rows.device):
        return rows.new_zeros(len(offsets) - 1, rows.shape[1]).index_add_(0, owner, rows)
    return sums_in_order(rows, offsets)


def _units(rows: torch.Tensor) -> torch.Tensor:
    """Rows scaled to length 1; zero for rows of length near 0."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(length > 1e-6, rows / length.clamp_min(1e-6), 0.0)


def edge_vectors(kb: KnowledgeBase, triples: Ragged) -> ExactVectors | ComposedVectors:
    """The vectors of edges with these facts."""
    exact = kb.vectors("kb_edge_vectors")
    if exact.shape[0] == kb.n_edges:
        return ExactVectors(_means(exact, triples))
    names, relations = kb.vectors("kb_name_vectors"), kb.vectors("kb_relation_vectors")
    head, relation, tail = (torch.from_numpy(part).to(names.device) for part in (kb.head, kb.relation, kb.tail))
    return ComposedVectors(triples, head, relation, tail, names, relations)


def _means(vectors: torch.Tensor, lists: Ragged) -> torch.Tensor:
    """f16[B, D]: the mean of the rows of each list, scaled to length 1; zero where it vanishes. No list is empty."""
    means = vectors.new_zeros(lists.batch, vectors.shape[1], dtype=torch.float16)
    for first in range(0, lists.batch, _ROWS):
        last = min(first + _ROWS, lists.batch)
        start, end = int(lists.offsets[first]), int(lists.offsets[last])
        rows = vectors[lists.values[start:end]].double()
        sums = torch.segment_reduce(rows, "sum", lengths=lists.offsets[first : last + 1].diff(), axis=0)
        length = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
        means[first:last] = torch.where(length > 1e-6, sums / length.clamp_min(1e-6), 0.0).half()
    return means


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """splitmix64 of i64 values, as i64 (Steele, Lea and Flood 2014)."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _MIX[0]
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _MIX[1]
    return x ^ ((x >> 31) & (2**33 - 1))


def _signatures(kb: KnowledgeBase, graph: PathGraph, keys: torch.Tensor, triples: Ragged) -> torch.Tensor:
    """i64[E, 2] for `FactGraph.signatures`. keys, triples: the ends and the facts of each edge."""
    edge, facts = row_of_value(triples), triples.values.cpu().numpy()
    subject, relation = (torch.from_numpy(c[facts].astype(np.int64)).to(keys.device) for c in (kb.head, kb.relation))
    forward = subject == keys[edge] // max(kb.n, 1)  # the subject is the lower end
    csr = graph.csr
    row, column, edge_of = row_of_entry(csr), csr.indices.long(), graph.edge.long()
    signatures = torch.zeros(csr.m, len(_SEEDS), dtype=torch.int64, device=row.device)
    for k, seed in enumerate(_SEEDS):
        sums = []
        for outward in (forward, ~forward):  # as seen from the lower end, then from the higher one
            bits = _mixed(_mixed(2 * relation + outward.long() + (seed << 20)))
            sums.append(torch.zeros_like(keys).index_add_(0, edge, bits))
        between = torch.where(row < column, sums[0][edge_of], sums[1][edge_of])
        signatures[:, k] = _mixed(between + _mixed(column + (seed << 24)))
    return signatures


# --- paths in words, as real edges, and where they come from -------------------------------------------


class Words:
    """Paths in words. Hops and places that several paths share are put in words once."""

    def __init__(self, kb: KnowledgeBase, facts: FactGraph):
        self._kb, self._facts = kb, facts
        self._hop, self._place, self._kinds = (
            cache(self._hop_in_words),
            cache(partial(_place, kb)),
            cache(_kinds_of_path),
        )

    def path(
        self, nodes: tuple[int, ...], places: tuple[tuple[int, ...], ...], edges: Sequence[int], topics: tuple[int, ...]
    ) -> FoundPath:
        """A path with all members of its clusters: "A - r -> {B; C} <- s - D". places: the members of each cluster;
        edges: of the graph, one per hop."""
        words, relations = [self._place(places[0])], []
        rows, kinds = dict[int, None](), set[frozenset[str]]()
        for node, other, edge, start, end in zip(nodes, nodes[1:], edges, places, places[1:]):
            relation, between, kinds_of_hop = self._hop(edge, node)
            relations.append(relation)
            words += [relation, self._place(end)]
            rows |= between
            kinds.add(kinds_of_hop)
            for members, leader, far in ((start, node, other), (end, other, node)):
                if len(members) > 1:
                    rows |= dict.fromkeys(_of_members(self._facts, members, far, skip=leader))
        listed = [*rows][:MAX_EDGES]
        sources = dict.fromkeys(self._kb.source[listed].tolist())
        names = dict.fromkeys(self._kb.sources[source].name for source in sources)
        kind, also = self._kinds(frozenset(kinds))
        text = " ".join(words), kind, "+".join(names), nodes, places, tuple(listed)
        return FoundPath(*text, relations=tuple(relations), also=also, topics=topics)

    def _hop_in_words(self, edge: int, start: int) -> tuple[str, dict[int, None], frozenset[str]]:
        """(relations, facts, kinds of the facts) of an edge as seen from a node."""
        between = self._facts.facts_of(edge)
        return (
            _relations(self._kb, between, start),
            dict.fromkeys(between),
            frozenset(_kind(self._kb, fact) for fact in between),
        )


def _kinds_of_path(hops: frozenset[frozenset[str]]) -> tuple[str, tuple[str, ...]]:
    """(kind of the weakest hop, other kinds that state every hop). A hop counts as the best kind that states it."""
    kind = max((min(hop, key=KINDS.index) for hop in hops), key=KINDS.index, default=KINDS[0])
    return kind, tuple(k for k in KINDS if k != kind and hops and all(k in hop for hop in hops))


def _of_members(facts: FactGraph, place: tuple[int, ...], end: int, skip: int) -> list[int]:
    """The facts between the shown members of a cluster, except `skip`, and the node `end`, to which all of them are
    linked."""
    members = [member for member in place[: MAX_MEMBERS + 1] if member != skip][:MAX_MEMBERS]
    return [fact for member in members for fact in facts.facts_between(member, end)]


def _kind(kb: KnowledgeBase, fact: int) -> str:
    """The kind of a fact: "kg", or "document" for extracted facts, which are only as reliable as documents."""
    return "kg" if kb.sources[int(kb.source[fact])].kind in CURATED else "document"


def _relations(kb: KnowledgeBase, between: list[int], start: int) -> str:
    """The relations of a hop, with their direction as seen from `start`."""
    texts: dict[bool, dict[str, None]] = {True: {}, False: {}}  # forward, and backward
    for fact in between:
        texts[int(kb.head[fact]) == start][kb.relation_texts[int(kb.relation[fact])]] = None
    sides = (("- ", texts[True], " ->"), ("<- ", texts[False], " -"))
    return " and ".join(f"{a}{' / '.join([*names][:MAX_RELATIONS])}{b}" for a, names, b in sides if names)


def _place(kb: KnowledgeBase, members: tuple[int, ...]) -> str:
    names = [kb.node_names[node] for node in members[:MAX_MEMBERS]]
    if len(members) == 1:
        return names[0]
    more = f"; and {len(members) - MAX_MEMBERS} more" if len(members) > MAX_MEMBERS else ""
    return f"{{{'; '.join(names)}{more}}}"


Walked = tuple[tuple[int, ...], tuple[int, ...]]  # nodes of the walk, and the topics of the question


@batched(GRAPH)
def worded_paths(index: Index, queries: list[Walked], choice: FactChoice) -> list[FoundPath | None]:
    """Each walk as a path in words; None if a hop is not an edge of the chosen sources."""
    kb, facts = kb_of(index), facts_of(index, choice)
    width = max(len(nodes) for nodes, _ in queries)
    rows = [[*nodes, *[-1] * (width - len(nodes))] for nodes, _ in queries]
    walks = torch.tensor(rows, dtype=torch.int32, device=facts.keys.device)
    node, other = walks[:, :-1].long(), walks[:, 1:].long()
    keys = torch.minimum(node, other) * facts.n + torch.maximum(node, other)
    edges = facts.edges_along(walks).clamp(max=facts.keys.shape[0] - 1)
    lines = torch.where(facts.keys[edges.long()] == keys, edges, -1).tolist()
    words, paths = Words(kb, facts), list[FoundPath | None]()
    for (nodes, topics), line in zip(queries, lines):
        hops = line[: len(nodes) - 1]
        places = tuple((node,) for node in nodes)
        stated = min(hops, default=-1) >= 0
        paths.append(words.path(nodes, places, hops, topics) if stated else None)
    return paths
