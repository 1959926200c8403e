"""The case `blocks-pagerank`: personalized PageRank on a separate subgraph for each of B questions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import Case, Checked, Config, sampled
from gpu_rag.bench.inputs import csr_on, measured_graphs, moved, part
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs, local_nodes
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.pagerank.bench import (
    TOL,
    dense_columns,
    seeded_questions,
    solve_exactly,
)
from gpu_rag.types import CSR, Blocks, Ragged

RADIUS = 3  # radius of the ball around a question's seeds, which is its subgraph
LIMIT = 2000  # maximum nodes of a subgraph

Given = tuple[Blocks, Ragged, Ragged]


def cases(config: Config) -> Iterator[Case]:
    """Balls around the seeds, made before the clock starts; on the index graph and the generated graphs."""
    device = torch.device(config.device)
    for name, csr in measured_graphs(config):
        graph = checked(csr_on(csr, device))
        seeds, weights = (moved(lists, device) for lists in seeded_questions(csr, config.pool, config.seed))
        balls = ego_balls(graph, seeds, RADIUS, limit=LIMIT)
        for damping in config.dampings:
            yield _case(name, graph, (balls, seeds, weights), damping, config)


def _case(name: str, graph: CheckedGraph, pool: tuple[Ragged, ...], damping: float, config: Config) -> Case:
    def inputs(start: int, count: int) -> Given:
        balls, seeds, weights = (part(lists, start, count) for lists in pool)
        return induced_subgraphs(graph, balls), seeds, weights

    @cache
    def size(batch: int) -> tuple[int, int]:
        csr = inputs(0, batch)[0].csr
        return csr.n, csr.m

    def converted(start: int, count: int) -> list[tuple[CSR, np.ndarray]]:
        given = inputs(start, count)
        return [_local(given, b) for b in range(count)]

    return Case(
        op="blocks-pagerank",
        labels={"graph": name, "n": graph.csr.n, "m": graph.csr.m, "damping": damping, "k": LIMIT},
        inputs=inputs,
        run=lambda given: blocks_pagerank(*given, damping=damping, tol=TOL, threads=config.threads),
        check=lambda result, count: check(result, inputs(0, count), damping),
        bytes_of=lambda batch: blocks_bytes(*size(batch), graph.csr.weight is not None),
        memory_of=lambda batch: 60 * sum(size(batch)),
        peers=lambda: [make(converted, damping) for make in peer_file("local_pagerank").PEERS],
    )


def blocks_bytes(n: int, m: int, weighted: bool) -> int:
    """Bytes to read each block once (4 an entry, 8 with weights; 8 a row), and to read and write its values."""
    return (8 if weighted else 4) * m + 16 * n


def block_graph(blocks: Blocks, b: int) -> CSR:
    """Block b as a separate matrix."""
    lo, hi = blocks.offsets[b : b + 2].tolist()
    first, last = blocks.csr.indptr[[lo, hi]].tolist()
    weight = None if blocks.csr.weight is None else blocks.csr.weight[first:last]
    return CSR(blocks.csr.indptr[lo : hi + 1] - first, blocks.csr.indices[first:last] - lo, weight)


def _local(given: Given, b: int) -> tuple[CSR, np.ndarray]:
    """The graph of block b and its restart distribution f64[n], on the CPU."""
    blocks, seeds, weights = given
    cpu = torch.device("cpu")
    csr = csr_on(block_graph(blocks, b), cpu)
    own_seeds = part(local_nodes(blocks, seeds, "seeds"), b, 1)
    nodes = moved(Ragged(own_seeds.values - blocks.offsets[b], own_seeds.offsets), cpu)
    return csr, dense_columns(nodes, moved(part(weights, b, 1), cpu), np.zeros(1, np.int64), csr.n, np.float64)[:, 0]


def check(result: Any, given: Given, damping: float) -> Checked:
    """Check that blocks sum to 1, and that a sample is within TOL of an f64 solution. result: Ragged, or lists."""
    sizes = given[0].offsets.diff().tolist()
    lists = result.values.cpu().split(sizes) if isinstance(result, Ragged) else [torch.tensor(r) for r in result]
    if [len(values) for values in lists] != sizes:
        return Checked("the blocks have other sizes")
    worst = max(abs(float(values.double().sum()) - 1) for values in lists)
    if not worst <= 1e-5:
        return Checked(f"a block misses the sum of 1 by {worst:.2g}")
    error = 0.0
    for b in sampled(len(sizes)):
        csr, pi = _local(given, b)
        exact = solve_exactly(csr, pi[:, None], damping)[:, 0]
        error = max(error, float(np.abs(lists[b].double().numpy() - exact).sum()))
    return Checked("" if error <= TOL else f"the L1 error {error:.2g} is above {TOL:g}", error)
