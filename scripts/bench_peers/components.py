"""Peers of `gpu-rag bench` for the cases of `components`: other libraries at the same work."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_rag.bench.case import NETWORKX_NODES, Peer, igraph_of, peer, too_large
from gpu_rag.graph.components.bench import everything, scipy_labels


@peer("scipy")
def by_scipy(matrix: Any) -> Peer:
    return Peer("", everything, lambda _: scipy_labels(matrix))


@peer("igraph", needs="igraph")
def by_igraph(matrix: Any) -> Peer:
    graph = igraph_of(matrix, directed=False)
    return Peer("", everything, lambda _: graph.connected_components().membership)


@peer("networkx", needs="networkx")
def by_networkx(matrix: Any) -> Peer:
    if matrix.shape[0] > NETWORKX_NODES:
        return too_large(NETWORKX_NODES)
    import networkx as nx

    graph = nx.from_scipy_sparse_array(matrix)

    def run(_: None) -> np.ndarray:
        label = np.zeros(matrix.shape[0], np.int64)
        for number, nodes in enumerate(nx.connected_components(graph)):
            label[list(nodes)] = number
        return label

    return Peer("", everything, run)
