"""The case `blocks-pagerank`: personalized PageRank on a subgraph of its own for each of B questions."""

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
from gpu_rag.graph.common.blocks import local_nodes
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.pagerank.bench import TOL, measured_graphs, part, seeded_questions
from gpu_rag.graph.pagerank.bench_peers import n_power_steps, single_openmp_thread
from gpu_rag.graph.pagerank.bench_reference import adjacency, dense_columns, row_normalised, solve_exactly
from gpu_rag.types import CSR, Blocks, Ragged

RADIUS = 3  # of the ball around a question's seeds that is its subgraph
LIMIT = 2000  # nodes of a subgraph at most

Asked = tuple[Blocks, Ragged, Ragged]


def cases(config: Config) -> Iterator[Case]:
    """Balls around the seeds, cut out before the clock starts: the graph of the index and the generated ones."""
    device = torch.device(config.device)
    for name, csr in measured_graphs(config):
        graph = checked(csr_on(csr, device))
        asked = seeded_questions(csr, config.pool, config.seed)
        seeds, weights = (Ragged(lists.values.to(device), lists.offsets.to(device)) for lists in asked)
        balls = ego_balls(graph, seeds, RADIUS, limit=LIMIT)
        for damping in config.dampings:
            yield _case(name, graph, balls, seeds, weights, damping, config)


def _case(
    name: str, graph: CheckedGraph, balls: Ragged, seeds: Ragged, weights: Ragged, damping: float, config: Config
) -> Case:
    def inputs(start: int, count: int) -> Asked:
        blocks = induced_subgraphs(graph, part(balls, start, count))
        return blocks, part(seeds, start, count), part(weights, start, count)

    def run(asked: Asked) -> Ragged:
        return blocks_pagerank(*asked, damping=damping, tol=TOL, threads=config.threads)

    @cache
    def size(batch: int) -> tuple[int, int]:
        csr = inputs(0, batch)[0].csr
        return csr.n, csr.m

    return Case(
        "blocks-pagerank",
        pick_implementation(graph.csr.indptr.device),
        {"graph": name, "n": graph.csr.n, "m": graph.csr.m, "damping": damping, "k": LIMIT},
        inputs,
        run,
        lambda result, count: check(result, inputs(0, count), damping),
        lambda batch: blocks_bytes(*size(batch), graph.csr.weight is not None),
        lambda batch: 60 * sum(size(batch)),
        lambda: _peers(inputs, damping, config.threads),
    )


def blocks_bytes(n: int, m: int, weighted: bool) -> int:
    """Each block read once (4 bytes an entry, 8 with weights; 8 a row), its values and restart written and read."""
    return (8 if weighted else 4) * m + 16 * n


def block_graph(blocks: Blocks, b: int) -> CSR:
    """Block b as a matrix of its own, on the CPU."""
    lo, hi = blocks.offsets[b : b + 2].tolist()
    indptr = blocks.csr.indptr[lo : hi + 1].cpu()
    first, last = int(indptr[0]), int(indptr[-1])
    weight = None if blocks.csr.weight is None else blocks.csr.weight[first:last].cpu()
    return CSR(indptr - first, blocks.csr.indices[first:last].cpu() - lo, weight)


def _local(asked: Asked, b: int) -> tuple[CSR, np.ndarray]:
    """The graph of block b and its restart distribution f64[n]."""
    blocks, seeds, weights = asked
    csr = block_graph(blocks, b)
    rows = local_nodes(blocks, seeds, "seeds")
    one, mass = part(rows, b, 1), part(weights, b, 1)
    here = Ragged((one.values - blocks.offsets[b]).cpu(), one.offsets.cpu())
    pi = dense_columns(here, Ragged(mass.values.cpu(), mass.offsets.cpu()), np.zeros(1, np.int64), csr.n, np.float64)
    return csr, pi[:, 0]


def check(result: Any, asked: Asked, damping: float) -> Checked:
    """Blocks sum to 1, and a sample of them is within TOL of a solution in f64. result: Ragged, or a list a block."""
    blocks = asked[0]
    count = blocks.offsets.shape[0] - 1
    sizes = blocks.offsets.diff().tolist()
    held = list(result.values.cpu().split(sizes)) if isinstance(result, Ragged) else [torch.tensor(r) for r in result]
    if [len(values) for values in held] != sizes:
        return Checked(False, "the blocks have other sizes")
    worst = max(abs(float(values.double().sum()) - 1) for values in held)
    if not worst <= 1e-5:
        return Checked(False, f"a block misses the sum of 1 by {worst:.2g}")
    error = 0.0
    for b in sorted({0, count // 2, count - 1}):
        csr, pi = _local(asked, b)
        exact = solve_exactly(csr, pi[:, None], damping)[:, 0]
        error = max(error, float(np.abs(held[b].double().numpy() - exact).sum()))
    if not error <= TOL:
        return Checked(False, f"the L1 error {error:.2g} is above {TOL:g}", error)
    return Checked(True, "", error)


def _peers(inputs: Any, damping: float, threads: int) -> list[Peer]:
    def converted(start: int, count: int) -> list[tuple[CSR, np.ndarray]]:
        asked = inputs(start, count)
        return [_local(asked, b) for b in range(count)]

    return [_igraph(converted, damping), _networkx(converted, damping), _scipy(converted, damping)]


def _igraph(converted: Any, damping: float) -> Peer:
    """igraph's prpack, one subgraph after another."""
    if find_spec("igraph") is None:
        return missing_peer("igraph prpack", "igraph")
    if not single_openmp_thread():
        return Peer("igraph prpack", note="not timed: set OMP_NUM_THREADS to 1, more threads slow igraph down")
    import igraph

    def graphs(start: int, count: int) -> list[tuple[Any, Any, list[float]]]:
        found = []
        for csr, pi in converted(start, count):
            ends = adjacency(csr).tocoo()
            graph = igraph.Graph(csr.n, edges=np.stack([ends.row, ends.col], 1), directed=True)
            found.append((graph, None if csr.weight is None else ends.data.tolist(), pi.tolist()))
        return found

    def run(asked: list[tuple[Any, Any, list[float]]]) -> list[list[float]]:
        return [
            graph.personalized_pagerank(reset=reset, damping=damping, weights=weight, implementation="prpack")
            for graph, weight, reset in asked
        ]

    return Peer("igraph prpack", graphs, run, most=MOST_ALONE, alone=True)


def _networkx(converted: Any, damping: float) -> Peer:
    """networkx.pagerank, one subgraph after another; it converts the graph in every call."""
    if find_spec("networkx") is None:
        return missing_peer("networkx", "networkx")
    import networkx as nx

    def graphs(start: int, count: int) -> list[tuple[Any, dict[int, float]]]:
        return [
            (nx.from_scipy_sparse_array(adjacency(csr), create_using=nx.DiGraph), dict(enumerate(pi.tolist())))
            for csr, pi in converted(start, count)
        ]

    def run(asked: list[tuple[Any, dict[int, float]]]) -> list[list[float]]:
        enough = TOL * (1 - damping) / max(damping, 1e-12)
        return [
            list(nx.pagerank(g, damping, personalization=pi, tol=enough / len(g), max_iter=10_000).values())
            for g, pi in asked
        ]

    return Peer("networkx", graphs, run, most=MOST_ALONE, alone=True)


def _scipy(converted: Any, damping: float) -> Peer:
    """scipy's CSR times a vector, subgraph after subgraph: power iteration in f32 without any look at the error."""
    steps = n_power_steps(damping, TOL)

    def matrices(start: int, count: int) -> list[tuple[Any, Any, Any]]:
        found = []
        for csr, pi in converted(start, count):
            pull, dangling = row_normalised(adjacency(csr))
            found.append((pull.astype(np.float32), np.flatnonzero(dangling), pi.astype(np.float32)))
        return found

    def run(asked: list[tuple[Any, Any, Any]]) -> list[Any]:
        values = []
        for pull, lost, pi in asked:
            p = pi
            for _ in range(steps):
                p = np.float32(1 - damping) * pi + np.float32(damping) * (pull @ p + p[lost].sum() * pi)
            values.append(p)
        return values

    return Peer("scipy CSR @ vector", matrices, run, most=MOST_ALONE, alone=True)
