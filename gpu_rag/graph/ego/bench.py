"""The case `ego`: the nodes within two hops (or `--hops`) of each of B seeds, and the subgraphs on them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.bench.case import MOST_ALONE, Case, Checked, Config, Peer, missing_peer
from gpu_rag.bench.graphs import csr_on
from gpu_rag.bench.measure import torch_threads
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs
from gpu_rag.graph.pagerank.bench import measured_graphs
from gpu_rag.graph.pagerank.bench_reference import adjacency
from gpu_rag.types import CSR, Blocks, Ragged

RADIUS = (2,)
HUBS = 100  # a seed has at most so many neighbours
NETWORKX_NODES = 100_000  # its graphs are dictionaries: larger ones take minutes to build

Ball = tuple[list[int], int]  # ascending nodes, and how many entries lie between them


def cases(config: Config) -> Iterator[Case]:
    """Seeds with edges that are no hubs: the graph of the index and the generated ones."""
    for name, csr in measured_graphs(config):
        degrees = csr.indptr.diff()
        nodes = ((degrees > 0) & (degrees <= HUBS)).nonzero()[:, 0].cpu()
        generator = torch.Generator().manual_seed(config.seed)
        seeds = nodes[torch.randint(len(nodes), (config.pool,), generator=generator)]
        graph = checked(csr_on(csr, torch.device(config.device)))
        for hops in config.hops or RADIUS:
            yield _case(name, csr, graph, seeds, hops, config)


def _case(name: str, csr: CSR, graph: CheckedGraph, seeds: torch.Tensor, hops: int, config: Config) -> Case:
    device = graph.csr.indptr.device

    def inputs(start: int, count: int) -> Ragged:
        return Ragged(seeds[start : start + count].to(device), torch.arange(count + 1, device=device))

    def run(asked: Ragged) -> Blocks:
        balls = ego_balls(graph, asked, hops, threads=config.threads)
        return induced_subgraphs(graph, balls)

    @cache
    def size(batch: int) -> tuple[int, int, int]:
        """Nodes and entries of the blocks, and the entries of their nodes' rows in the graph."""
        blocks = run(inputs(0, batch))
        return blocks.csr.n, blocks.csr.m, int(graph.csr.indptr.diff()[blocks.global_ids.long()].sum())

    widest = 8 * hops * int(csr.indptr.diff().max())  # far from exact: the entries of a hub's row, for every hop
    per_question = widest if hops <= 2 else 8 * csr.m  # farther balls are most of the graph

    return Case(
        "ego",
        pick_implementation(device),
        {"graph": name, "n": csr.n, "m": csr.m, "hops": hops},
        inputs,
        run,
        lambda result, count: check(result, csr, seeds[:count].tolist(), hops),
        lambda batch: ego_bytes(*size(batch)),
        lambda batch: batch * per_question,
        lambda: [make(csr, seeds, hops) for make in (_igraph, _networkx, _scipy, _pyg)],
    )


def ego_bytes(n: int, m: int, read: int) -> int:
    """The rows of all nodes of a ball read once (4 bytes an entry, 8 a row), the block written (4 and 16)."""
    return 4 * read + 8 * n + 4 * m + 16 * n


def check(result: Any, csr: CSR, seeds: list[int], hops: int) -> Checked:
    """A sample of balls equals a search by sets; a peer's result is a list of `Ball`."""
    if isinstance(result, Blocks):
        ids = result.global_ids.cpu().split(result.offsets.diff().tolist())
        entries = result.csr.indptr[result.offsets].diff().tolist()
        found = [(nodes.tolist(), count) for nodes, count in zip(ids, entries)]
    else:
        found = result
    if len(found) != len(seeds):
        return Checked(False, f"{len(found)} balls for {len(seeds)} seeds")
    for b in sorted({0, len(seeds) // 2, len(seeds) - 1}):
        if (list(found[b][0]), found[b][1]) != searched(csr, seeds[b], hops):
            return Checked(False, f"the ball of question {b} is another one")
    return Checked(True)


def searched(csr: CSR, seed: int, hops: int) -> Ball:
    """The ball of one seed by sets of neighbours."""
    indptr, indices = csr.indptr.cpu(), csr.indices.cpu()

    def row(v: int) -> list[int]:
        return indices[indptr[v] : indptr[v + 1]].tolist()

    ball = front = {seed}
    for _ in range(hops):
        front = {u for v in front for u in row(v)} - ball
        ball = ball | front
    return sorted(ball), sum(len(ball.intersection(row(v))) for v in ball)


def _igraph(csr: CSR, seeds: torch.Tensor, hops: int) -> Peer:
    if find_spec("igraph") is None:
        return missing_peer("igraph", "igraph")
    import igraph

    ends = adjacency(csr).tocoo()
    graph = igraph.Graph(csr.n, edges=np.stack([ends.row, ends.col], 1), directed=True)

    def run(asked: list[int]) -> list[Ball]:
        found = []
        for ball in graph.neighborhood(asked, order=hops, mode="out"):
            found.append((sorted(ball), graph.induced_subgraph(ball).ecount()))
        return found

    return Peer("igraph", lambda s, count: seeds[s : s + count].tolist(), run, most=MOST_ALONE, alone=True)


def _networkx(csr: CSR, seeds: torch.Tensor, hops: int) -> Peer:
    if find_spec("networkx") is None:
        return missing_peer("networkx", "networkx")
    if csr.n > NETWORKX_NODES:
        return Peer("networkx", note=f"not timed above {NETWORKX_NODES:,} nodes")
    import networkx as nx

    graph = nx.from_scipy_sparse_array(adjacency(csr), create_using=nx.DiGraph)

    def run(asked: list[int]) -> list[Ball]:
        balls = [nx.ego_graph(graph, seed, radius=hops) for seed in asked]
        return [(sorted(ball), ball.number_of_edges()) for ball in balls]

    return Peer("networkx ego_graph", lambda s, count: seeds[s : s + count].tolist(), run, most=MOST_ALONE, alone=True)


def _scipy(csr: CSR, seeds: torch.Tensor, hops: int) -> Peer:
    """Products of the seeds' rows with the sparse matrix, then rows and columns picked out."""
    matrix = adjacency(csr)

    def run(asked: list[int]) -> list[Ball]:
        found = []
        for seed in asked:
            ball = np.array([seed])
            for _ in range(hops):
                ball = np.union1d(ball, matrix[ball].indices)
            found.append((ball.tolist(), matrix[ball][:, ball].nnz))
        return found

    return Peer("scipy", lambda s, count: seeds[s : s + count].tolist(), run, most=MOST_ALONE, alone=True)


def _pyg(csr: CSR, seeds: torch.Tensor, hops: int) -> Peer:
    """PyG's k_hop_subgraph, which goes over all edges for each hop of each seed."""
    if find_spec("torch_geometric") is None:
        return missing_peer("PyG k_hop_subgraph", "torch-geometric")
    from torch_geometric.utils import k_hop_subgraph

    edges = torch.stack([row_of_entry(csr).cpu(), csr.indices.cpu().long()])

    def run(asked: list[int]) -> list[Ball]:
        found = []
        with torch_threads(1):
            for seed in asked:
                ball, inside, _, _ = k_hop_subgraph(seed, hops, edges, num_nodes=csr.n, flow="target_to_source")
                found.append((ball.tolist(), inside.shape[1]))
        return found

    return Peer("PyG k_hop_subgraph", lambda s, count: seeds[s : s + count].tolist(), run, most=MOST_ALONE, alone=True)
