"""The case `bubble`: the first trees that join three groups of anchors, in a local graph for each of B questions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.bubble import UNREACHED

from gpu_rag.bench.case import Case, Checked, Config, check_sample
from gpu_rag.bench.inputs import csr_on, drawn, linked_nodes, lists_of, measured_graphs, part, seeded
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.bubble import Bubbles, bubble_expansion
from gpu_rag.graph.bubble.events import fixpoint
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs, local_nodes
from gpu_rag.graph.ragged import row_of_value
from gpu_rag.types import CSR, Blocks, Ragged

GROUPS = 3
ANCHORS = 10  # per group
RADIUS = 3  # radius of the ball around the anchors, which is the local graph
LIMIT = 2000  # nodes of it at most
STEPS = 1 << 14  # costs are 1 to STEPS


@dataclass(frozen=True)
class Given:
    """Questions with their local graphs, prepared before the clock starts."""

    blocks: Blocks
    costs: torch.Tensor
    anchors: Ragged
    groups: Ragged

    def question(self, b: int) -> Given:
        """Question b alone."""
        blocks, lo, hi = self.blocks, *self.blocks.offsets[b : b + 2].tolist()
        first, last = blocks.csr.indptr[[lo, hi]].tolist()
        csr = CSR(blocks.csr.indptr[lo : hi + 1] - first, blocks.csr.indices[first:last] - lo)
        alone = Blocks(csr, blocks.offsets[b : b + 2] - lo, blocks.global_ids[lo:hi])
        return Given(alone, self.costs[lo:hi], part(self.anchors, b, 1), part(self.groups, b, 1))


def cases(config: Config) -> Iterator[Case]:
    """Random anchors with edges, random costs; on the generated graphs."""
    device = torch.device(config.device)
    for name, csr in measured_graphs(config):
        graph = checked(csr_on(csr, device))
        anchors = lists_of(drawn(linked_nodes(csr), (config.pool, GROUPS * ANCHORS), seeded(config)), device)
        yield _case(name, graph, anchors, ego_balls(graph, anchors, RADIUS, limit=LIMIT), config)


def cost_of(question: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
    """A pseudo-random cost of 1 to STEPS for each pair."""
    return 1 + ((question * 7919 + node) * 2654435761 >> 7) % STEPS


def _case(name: str, graph: CheckedGraph, anchors: Ragged, balls: Ragged, config: Config) -> Case:
    def inputs(start: int, count: int) -> Given:
        nodes, own = part(balls, start, count), part(anchors, start, count)
        groups = Ragged(torch.arange(own.values.shape[0], device=own.values.device) % GROUPS, own.offsets)
        costs = cost_of(row_of_value(nodes) + start, nodes.values.long())
        return Given(induced_subgraphs(graph, nodes), costs, own, groups)

    @cache
    def size(batch: int) -> tuple[int, int]:
        csr = inputs(0, batch).blocks.csr
        return csr.n, csr.m

    return Case(
        op="bubble",
        labels={"graph": name, "n": graph.csr.n, "m": graph.csr.m, "k": LIMIT},
        inputs=inputs,
        run=lambda g: bubble_expansion(g.blocks, g.costs, g.anchors, g.groups, threads=config.threads),
        check=lambda result, count: check(result, inputs(0, count)),
        bytes_of=lambda batch: bubble_bytes(*size(batch)),
        memory_of=lambda batch: 40 * GROUPS * sum(size(batch)),
        peers=lambda: [make(inputs) for make in peer_file("bubble").PEERS],
    )


def bubble_bytes(n: int, m: int) -> int:
    """Bytes to read every block once (4 an entry, 16 a row) and to write a state of 16 bytes a row and group."""
    return 4 * m + (16 + 16 * GROUPS) * n


def check(result: Any, given: Given) -> Checked:
    """Check a sample: trees must equal the trees of the torch fixpoint; a peer's distances must equal its distances."""
    same = _same_trees if isinstance(result, Bubbles) else _same_distances

    def reason(b: int) -> str:
        return "" if same(result, given.question(b), b) else f"question {b} is not what the fixpoint gives"

    return check_sample(given.anchors.batch, reason)


def _same_trees(result: Bubbles, given: Given, b: int) -> bool:
    exact = bubble_expansion(given.blocks, given.costs, given.anchors, given.groups, implementation="torch")
    first, last = result.offsets[b : b + 2].tolist()
    offsets = result.nodes.offsets[first : last + 1]
    return (
        last > first
        and torch.equal(result.nodes.values[offsets[0] : offsets[-1]], exact.nodes.values)
        and torch.equal(offsets - offsets[0], exact.nodes.offsets)
        and torch.equal(result.distance[first:last], exact.distance)
    )


def _same_distances(result: Any, given: Given, b: int) -> bool:
    state = fixpoint(given.blocks, given.costs, local_nodes(given.blocks, given.anchors, "anchors"), given.groups)
    exact = torch.where(state == UNREACHED, torch.inf, (state >> 32).double())
    return np.array_equal(np.asarray(result[b], np.float64), exact.cpu().numpy())
