"""Peers of `gpu-rag bench` for the cases of `bubble`: other libraries at the same work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_rag.bench.case import Peer
from gpu_rag.graph.bubble.bench import GROUPS, Given
from gpu_rag.graph.ego import local_nodes

from . import alone, peer

NOTE = "distances of every group to every node, no trees"


Inputs = Callable[[int, int], Given]


def matrices(inputs: Inputs) -> Callable[[int, int], list[tuple[Any, list[list[int]]]]]:
    """Each question as a CSR of scipy, whose entries are the costs of their columns, and the anchors of each group."""

    def convert(one: Given) -> tuple[Any, list[list[int]]]:
        from scipy.sparse import csr_matrix

        csr, columns = one.blocks.csr, one.blocks.csr.indices.long()
        rows = local_nodes(one.blocks, one.anchors, "anchors").values
        arrays = (one.costs[columns].double().cpu(), csr.indices.cpu(), csr.indptr.cpu())
        matrix = csr_matrix(tuple(a.numpy() for a in arrays), shape=(csr.n, csr.n))
        return matrix, [rows[one.groups.values == g].unique().tolist() for g in range(GROUPS)]

    def converted(start: int, count: int) -> list[tuple[Any, list[list[int]]]]:
        given = inputs(start, count)
        return [convert(given.question(b)) for b in range(count)]

    return converted


@peer("scipy dijkstra")
def by_scipy(inputs: Inputs) -> Peer:
    from scipy.sparse.csgraph import dijkstra

    def one(question: tuple[Any, list[list[int]]]) -> np.ndarray:
        matrix, groups = question
        return np.stack([dijkstra(matrix, indices=rows, min_only=True) for rows in groups])

    return alone(matrices(inputs), one, NOTE)


@peer("igraph distances", needs="igraph", one_thread=True)
def by_igraph(inputs: Inputs) -> Peer:
    """Dijkstra of igraph from an added node per group, which is joined to its anchors at no cost."""
    import igraph

    def convert(matrix: Any, groups: list[list[int]]) -> tuple[Any, list[float], int]:
        n, entries = matrix.shape[0], matrix.tocoo()
        edges = np.stack([entries.row, entries.col], 1).tolist()
        edges += [[n + g, row] for g, rows in enumerate(groups) for row in rows]
        weight = entries.data.tolist() + [0.0] * sum(map(len, groups))
        return igraph.Graph(n + GROUPS, edges=edges, directed=True), weight, n

    def one(question: tuple[Any, list[float], int]) -> np.ndarray:
        graph, weight, n = question
        return np.array(graph.distances(range(n, n + GROUPS), range(n), weights=weight))

    return alone(lambda *span: [convert(*question) for question in matrices(inputs)(*span)], one, NOTE)


@peer("networkx", needs="networkx")
def by_networkx(inputs: Inputs) -> Peer:
    import networkx as nx

    def graphs(start: int, count: int) -> list[tuple[Any, list[list[int]]]]:
        made = matrices(inputs)(start, count)
        return [(nx.from_scipy_sparse_array(matrix, create_using=nx.DiGraph), groups) for matrix, groups in made]

    def one(question: tuple[Any, list[list[int]]]) -> np.ndarray:
        graph, groups = question
        distance = np.full((GROUPS, len(graph)), np.inf)
        for g, rows in enumerate(groups):
            for node, far in nx.multi_source_dijkstra_path_length(graph, set(rows)).items():
                distance[g, node] = far
        return distance

    return alone(graphs, one, NOTE)


PEERS = (by_scipy, by_igraph, by_networkx)
