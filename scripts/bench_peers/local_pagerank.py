"""Peers of `gpu-rag bench` for the cases of `local_pagerank`: other libraries at the same work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_rag.bench.case import Peer, adjacency, alone, igraph_of, peer
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.pagerank.bench import pull_matrix
from gpu_rag.types import CSR

Converted = Callable[[int, int], list[tuple[CSR, np.ndarray]]]  # graph and restart distribution f64[n] of each question


@peer("igraph prpack", needs="igraph", one_thread=True)
def by_igraph(converted: Converted, damping: float) -> Peer:
    """PageRank of igraph, one subgraph after another."""

    def graphs(start: int, count: int) -> list[tuple[Any, list[float], list[float] | None]]:
        result = []
        for csr, pi in converted(start, count):
            matrix = adjacency(csr)
            result.append((igraph_of(matrix), pi.tolist(), None if csr.weight is None else matrix.data.tolist()))
        return result

    return alone(graphs, lambda given: peer_file("pagerank").prpack(damping, True, *given))


@peer("networkx", needs="networkx")
def by_networkx(converted: Converted, damping: float) -> Peer:
    """PageRank of networkx, one subgraph after another; each call converts the graph."""
    import networkx as nx

    def graphs(start: int, count: int) -> list[tuple[Any, dict[int, float]]]:
        made = converted(start, count)
        return [
            (nx.from_scipy_sparse_array(adjacency(csr), create_using=nx.DiGraph), dict(enumerate(pi.tolist())))
            for csr, pi in made
        ]

    return alone(graphs, lambda given: peer_file("pagerank").networkx_pagerank(damping, *given))


@peer("scipy CSR @ vector")
def by_scipy(converted: Converted, damping: float) -> Peer:
    """Power iteration in f32, one subgraph after another, without a check of the error."""

    def matrices(start: int, count: int) -> list[tuple[Any, np.ndarray, np.ndarray]]:
        return [(*pull_matrix(adjacency(csr)), pi.astype(np.float32)) for csr, pi in converted(start, count)]

    return alone(matrices, lambda given: peer_file("pagerank").power_iteration(damping, *given))


PEERS = (by_igraph, by_networkx, by_scipy)
