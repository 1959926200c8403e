"""The one table of cosines behind bubble expansion and its ranking: cos(question, node), exact to the bit.

Components lie on the grid of `graph.common.dots`, where an f64 sum of their products has no rounding: a matrix product
over all nodes and single products of the wanted pairs give the same numbers, whichever is cheaper.
"""

from __future__ import annotations

import torch

from gpu_rag.graph.bubble.local import STEPS, node_costs
from gpu_rag.graph.common.dots import check_unit_rows, exact_dots, on_grid
from gpu_rag.methods.bubblerag.graph import BubbleGraph

ROWS = 4096  # nodes of one product
MOST = 1 << 26  # entries of a table at most, 256 MiB


class Cosines:
    """cos(q, v) for B questions and the nodes of a graph. queries: f32[B, D], unit rows. Raises BadInput."""

    def __init__(self, graph: BubbleGraph, queries: torch.Tensor):
        check_unit_rows(queries, "queries")
        self._graph, self._queries = graph, queries
        self._table: torch.Tensor | None = None

    def of(self, question: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
        """f64[P]: the cosines of pairs, i64[P] each."""
        found = torch.empty(node.shape[0], dtype=torch.float64, device=node.device)
        for vectors, at, rows in self._parts(node):
            found[at] = exact_dots(self._queries, question[at], vectors, rows)
        return found

    def costs(self, question: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
        """i32[P]: what entering a node costs, 1 + floor((1 - cos) * 2^14), see `node_costs`."""
        size = self._queries.shape[0] * self._graph.n
        if self._table is None and node.shape[0] >= self._graph.n and size <= MOST:
            self._table = self._costs_of_all()
        if self._table is not None:
            return self._table[question, node]
        found = torch.empty(node.shape[0], dtype=torch.int32, device=node.device)
        for vectors, at, rows in self._parts(node):
            found[at] = node_costs(self._queries, vectors, question[at], rows)
        return found

    def _parts(self, node: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(vectors, places in `node`, rows of the vectors) of the entities and of the relations among the nodes."""
        n = self._graph.n_entities
        entity, relation = (node < n).nonzero()[:, 0], (node >= n).nonzero()[:, 0]
        vectors = (self._graph.entity_vectors, self._graph.relation_vectors)
        return [(vectors[0], entity, node[entity]), (vectors[1], relation, node[relation] - n)]

    def _costs_of_all(self) -> torch.Tensor:
        """i32[B, N + R], by products of ROWS nodes."""
        queries = on_grid(self._queries)
        table = torch.empty((queries.shape[0], self._graph.n), dtype=torch.int32, device=queries.device)
        first = 0
        for vectors in (self._graph.entity_vectors, self._graph.relation_vectors):
            for rows in vectors.split(ROWS):
                cosine = queries @ on_grid(rows).T
                table[:, first : first + len(rows)] = ((1 - cosine.clamp(-1, 1)) * STEPS).floor() + 1
                first += len(rows)
        return table
