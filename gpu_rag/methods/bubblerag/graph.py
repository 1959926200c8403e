"""The graph in which BubbleRAG grows trees, with entities and relations as nodes. The stage `relation_graph` writes
it. It also holds the table of cosines that expansion and ranking share.

Components are rounded to the grid of `graph.common.dots`, where an f64 sum of their products has no rounding. So a
matrix product over all nodes and single products of the wanted pairs give the same numbers; the cheaper one is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from gpu_rag_kernels.dispatch import is_cpu

from gpu_rag.graph.bubble import STEPS, node_costs
from gpu_rag.graph.common.dots import check_unit_rows, exact_dots, on_grid
from gpu_rag.graph.ego import CheckedGraph, checked
from gpu_rag.graph.pagerank import PageRankGraph
from gpu_rag.graph.ragged import some_lists
from gpu_rag.index.index import Index
from gpu_rag.index.walk import host_arrays, relation_parts
from gpu_rag.types import CSR, Ragged

ROWS = 4096  # nodes per product
Pairs = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
MOST = 1 << 26  # entries of a table, 256 MiB


@dataclass(frozen=True)
class BubbleGraph:
    """N entities and R relations as the nodes [entities | relations] of one graph: relation r is node N + r.

    graph: an entry joins a relation with its subject and with its object, in both directions; no weights. So one entity
    is two steps from another. A relation of an entity with itself has one neighbour.
    passages: N + R lists of i32, ascending: for an entity the passages that mention it, for a relation those that state
    it. entity_vectors f32|f16[N, D], relation_vectors f32|f16[R, D]: unit rows, of the written name and of "subject
    label object"; see `Index.vectors`. All are on the device of the index.
    """

    graph: CheckedGraph
    passages: Ragged
    entity_vectors: torch.Tensor
    relation_vectors: torch.Tensor

    @property
    def n_entities(self) -> int:
        """Number of entities N. Relation row r is node N + r."""
        return int(self.entity_vectors.shape[0])

    @property
    def n(self) -> int:
        """Number of nodes N + R."""
        return self.graph.csr.n


def bubble_graph(index: Index) -> BubbleGraph:
    """The graph of an index, made once. Raises MissingLayer, IndexCorrupt."""
    return index.loaded("bubble", _load)


def _load(index: Index) -> BubbleGraph:
    entities, relations = map(index.vectors, ("entity_vectors", "relation_vectors"))
    arrays = relation_parts(host_arrays(walk_graph(index).pull), len(entities) + len(relations))
    parts = {name: torch.from_numpy(array).to(index.device) for name, array in arrays.items()}
    graph, passages = CSR(parts["indptr"], parts["indices"]), Ragged(parts["values"], parts["offsets"])
    return BubbleGraph(checked(graph), passages, entities, relations)


def walk_graph(index: Index) -> PageRankGraph:
    """The graph over [entities | relations | passages] for random walks. It has the edges of `BubbleGraph` and an edge
    between a node and each of its passages. TITLE_WEIGHT is added to an edge from an entity to a passage with its name
    as title."""
    return index.walk("relation_graph")


def is_relation(index: Index, node: int) -> bool:
    """Whether a node is a relation."""
    return node >= index.n_entities


def node_texts(index: Index, nodes: Iterable[int]) -> list[str]:
    """The text of each node: an entity's written name, or "subject - label - object"."""
    rows, (subjects, objects) = np.fromiter(nodes, np.int64), index.relation_ends
    stated = rows >= index.n_entities
    relations = rows[stated] - index.n_entities
    names = index.entity_names.take(np.concatenate([rows[~stated], subjects[relations], objects[relations]]))
    n, m = len(rows) - len(relations), len(relations)
    entities, facts = iter(names[:n]), zip(names[n : n + m], index.relation_labels.take(relations), names[n + m :])
    return [" - ".join(next(facts)) if is_fact else next(entities) for is_fact in stated.tolist()]


def node_titles(index: Index, nodes: Iterable[int]) -> list[str]:
    """The title of the first passage that mentions or states each node; "" if none does."""
    rows, (passages, first) = np.fromiter(nodes, np.int64), _places(index)
    has_one = first[rows] < first[rows + 1]
    titles = iter(index.passage_titles.take(passages[first[rows[has_one]]]))
    return [next(titles) if has else "" for has in has_one.tolist()]


def passages_of(index: Index, nodes: Iterable[int]) -> set[int]:
    """Rows of the passages that mention or state one of these nodes."""
    passages = bubble_graph(index).passages
    rows = torch.tensor(sorted(set(nodes)), dtype=torch.int64, device=passages.values.device)
    return set(some_lists(passages, rows).values.tolist())


def rarity(index: Index, node: int) -> float:
    """log(1 + passages / passages of the node): rare nodes carry more information."""
    _, first = _places(index)
    return math.log1p(index.n_passages / max(int(first[node + 1] - first[node]), 1))


def starts_of(index: Index) -> tuple[np.ndarray, np.ndarray]:
    """The first entry and the first passage of each node, i64[N + R + 1] each, on the host: the number of entries
    of some nodes is then known without a wait for a device."""
    starts = index.loaded("bubble starts", lambda index: bubble_graph(index).graph.csr.indptr.cpu().numpy())
    return starts, _places(index)[1]


def _places(index: Index) -> tuple[np.ndarray, np.ndarray]:
    """(values, offsets) of `BubbleGraph.passages` on the host."""

    def load(index: Index) -> tuple[np.ndarray, np.ndarray]:
        passages = bubble_graph(index).passages
        return passages.values.cpu().numpy(), passages.offsets.cpu().numpy()

    return index.loaded("bubble_passages", load)


def n_passages_of(index: Index) -> np.ndarray:
    """i64[N + R]: the number of passages of each node."""
    return index.loaded("bubble passages of nodes", lambda _: np.diff(_places(index)[1]))


class Cosines:
    """cos(q, v) for B questions and the nodes of a graph. queries: f32[B, D], unit rows. Raises BadInput."""

    def __init__(self, graph: BubbleGraph, queries: torch.Tensor):
        check_unit_rows(queries, "queries")
        self._graph, self._queries = graph, queries
        self._table: torch.Tensor | None = None

    def cosines(self, question: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
        """f64[P]: the cosines of pairs, i64[P] each."""
        return self._each(exact_dots, question, node, torch.float64)

    def costs(self, question: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
        """i32[P]: the cost of entering a node, 1 + floor((1 - cos) * 2^14), see `node_costs`. A CPU looks many pairs
        up in a table; on a GPU two launches for any pairs are faster than products with all nodes."""
        size = self._queries.shape[0] * self._graph.n
        if self._table is None and is_cpu(node.device) and node.shape[0] >= self._graph.n and size <= MOST:
            self._table = self._costs_of_all()
        if self._table is not None:
            return self._table[question, node]

        def costs(queries: torch.Tensor, i: torch.Tensor, vectors: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return node_costs(queries, vectors, i, j)

        return self._each(costs, question, node, torch.int32)

    def _each(self, products: Pairs, question: torch.Tensor, node: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """products(queries, question, vectors, rows) for entities and for relations, each with its own vectors.

        On a GPU every node is looked up in both tables, with row 0 in place of nodes of the other kind. Splitting them
        would make the host wait for their number.
        """
        n, values = self._graph.n_entities, torch.empty(node.shape[0], dtype=dtype, device=node.device)
        for vectors, mine, first in (
            (self._graph.entity_vectors, node < n, 0), (self._graph.relation_vectors, node >= n, n)
        ):  # fmt: skip
            if node.device.type == "cpu":
                positions = mine.nonzero()[:, 0]
                values[positions] = products(self._queries, question[positions], vectors, node[positions] - first)
            elif len(vectors):
                rows = torch.where(mine, node - first, 0)
                values = torch.where(mine, products(self._queries, question, vectors, rows), values)
        return values

    def _costs_of_all(self) -> torch.Tensor:
        """i32[B, N + R], computed in products of ROWS nodes."""
        queries = on_grid(self._queries)
        table = torch.empty((queries.shape[0], self._graph.n), dtype=torch.int32, device=queries.device)
        first = 0
        for vectors in (self._graph.entity_vectors, self._graph.relation_vectors):
            for rows in vectors.split(ROWS):
                cosine = queries @ on_grid(rows).T
                table[:, first : first + len(rows)] = ((1 - cosine.clamp(-1, 1)) * STEPS).floor() + 1
                first += len(rows)
        return table
