"""The case `ego`: the nodes within two hops of each of B seeds, and the subgraphs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import (
    Case,
    Checked,
    Config,
    adjacency,
    check_sample,
)
from gpu_rag.bench.inputs import csr_on, drawn, lists_in, lists_of, measured_graphs, part, seeded
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs
from gpu_rag.types import CSR, Blocks, Ragged

RADIUS = 2
HUBS = 100  # maximum number of neighbours of a seed

Ball = tuple[list[int], int]  # ascending nodes, and the number of entries between them


def cases(config: Config) -> Iterator[Case]:
    """Seeds with edges that are not hubs; on the generated graphs."""
    for name, csr in measured_graphs(config):
        degrees = csr.indptr.diff()
        nodes = ((degrees > 0) & (degrees <= HUBS)).nonzero()[:, 0].cpu()
        seeds = drawn(nodes, (config.pool,), seeded(config))
        graph = checked(csr_on(csr, torch.device(config.device)))
        yield _case(name, csr, graph, seeds, config)


def _case(name: str, csr: CSR, graph: CheckedGraph, seeds: torch.Tensor, config: Config) -> Case:
    device = graph.csr.indptr.device

    def inputs(start: int, count: int) -> Ragged:
        return lists_of(part(seeds, start, count)[:, None], device)

    def run(given: Ragged) -> Blocks:
        return induced_subgraphs(graph, ego_balls(graph, given, RADIUS, threads=config.threads))

    @cache
    def size(batch: int) -> tuple[int, int, int]:
        """The nodes and entries of the blocks, and the entries in the graph rows of these nodes."""
        blocks = run(inputs(0, batch))
        return blocks.csr.n, blocks.csr.m, int(graph.csr.indptr.diff()[blocks.global_ids.long()].sum())

    def nodes(start: int, count: int) -> list[int]:
        return part(seeds, start, count).tolist()

    widest = 8 * RADIUS * int(csr.indptr.diff().max())  # rough upper bound: the entries of a hub's row, for every hop
    return Case(
        op="ego",
        labels={"graph": name, "n": csr.n, "m": csr.m, "hops": RADIUS},
        inputs=inputs,
        run=run,
        check=lambda result, count: check(result, csr, nodes(0, count), RADIUS),
        bytes_of=lambda batch: ego_bytes(*size(batch)),
        memory_of=lambda batch: batch * widest,
        peers=lambda: [make(csr, nodes, RADIUS) for make in peer_file("ego").PEERS],
    )


def ego_bytes(n: int, m: int, read: int) -> int:
    """Bytes to read the rows of all nodes of a ball once (4 an entry, 8 a row) and write the block (4 and 16)."""
    return 4 * read + 8 * n + 4 * m + 16 * n


def check(result: Any, csr: CSR, seeds: list[int], hops: int) -> Checked:
    """Check that a sample of balls equals SciPy's balls; a peer's result is a list of `Ball`."""
    balls, cut = result, cut_by_scipy(csr, hops)
    if isinstance(result, Blocks):
        entries = result.csr.indptr[result.offsets].diff().tolist()
        balls = list(zip(lists_in(Ragged(result.global_ids, result.offsets)), entries))
    if len(balls) != len(seeds):
        return Checked(f"{len(balls)} balls for {len(seeds)} seeds")

    def reason(b: int) -> str:
        return "" if balls[b] == cut(seeds[b]) else f"the ball of question {b} is another one"

    return check_sample(len(seeds), reason)


def cut_by_scipy(csr: CSR, hops: int) -> Callable[[int], Ball]:
    """A function that cuts the ball of a seed: rows of the sparse matrix, then selected rows and columns."""
    matrix = adjacency(csr)

    def ball_of(seed: int) -> Ball:
        ball = np.array([seed])
        for _ in range(hops):
            ball = np.union1d(ball, matrix[ball].indices)
        return ball.tolist(), matrix[ball][:, ball].nnz

    return ball_of
