"""Peers of `gpu-rag bench` for the cases of `ego`: other libraries at the same work."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu_rag.bench.case import Peer, adjacency
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.ego.bench import Ball, cut_by_scipy
from gpu_rag.types import CSR

from . import NETWORKX_NODES, alone, igraph_of, peer

Inputs = Callable[[int, int], list[int]]


@peer("igraph", needs="igraph")
def by_igraph(csr: CSR, nodes: Inputs, hops: int) -> Peer:
    graph = igraph_of(adjacency(csr))

    def one(seed: int) -> Ball:
        ball = graph.neighborhood(seed, order=hops, mode="out")
        return sorted(ball), graph.induced_subgraph(ball).ecount()

    return alone(nodes, one)


@peer("networkx ego_graph", needs="networkx")
def by_networkx(csr: CSR, nodes: Inputs, hops: int) -> Peer:
    if csr.n > NETWORKX_NODES:
        return Peer(note=f"not timed above {NETWORKX_NODES:,} nodes")
    import networkx as nx

    graph = nx.from_scipy_sparse_array(adjacency(csr), create_using=nx.DiGraph)

    def one(seed: int) -> Ball:
        ball = nx.ego_graph(graph, seed, radius=hops)
        return sorted(ball), ball.number_of_edges()

    return alone(nodes, one)


@peer("scipy")
def by_scipy(csr: CSR, nodes: Inputs, hops: int) -> Peer:
    return alone(nodes, cut_by_scipy(csr, hops))


@peer("PyG k_hop_subgraph", needs="torch_geometric")
def by_pyg(csr: CSR, nodes: Inputs, hops: int) -> Peer:
    """PyG's k_hop_subgraph, which goes over all edges for each hop of each seed."""
    from torch_geometric.utils import k_hop_subgraph

    edges = torch.stack([row_of_entry(csr).cpu(), csr.indices.cpu().long()])

    def one(seed: int) -> Ball:
        ball, inside, _, _ = k_hop_subgraph(seed, hops, edges, num_nodes=csr.n, flow="target_to_source")
        return ball.tolist(), inside.shape[1]

    return alone(nodes, one)


PEERS = (by_igraph, by_networkx, by_scipy, by_pyg)
