"""The case `bubble`: the first trees that join three groups of anchors, in a local graph for each of B questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.bubble import UNREACHED
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.bench.case import MOST_ALONE, Case, Checked, Config, Peer, missing_peer
from gpu_rag.bench.graphs import csr_on
from gpu_rag.graph.bubble import Bubbles, bubble_expansion
from gpu_rag.graph.bubble.events import fixpoint
from gpu_rag.graph.common.blocks import local_nodes
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs
from gpu_rag.graph.pagerank.bench import measured_graphs, part
from gpu_rag.graph.pagerank.bench_peers import single_openmp_thread
from gpu_rag.graph.ragged import row_of_value
from gpu_rag.types import CSR, Blocks, Ragged

GROUPS = 3
ANCHORS = 10  # of a group
RADIUS = 3  # of the ball around the anchors that is the local graph
LIMIT = 2000  # nodes of it at most
STEPS = 1 << 14  # costs are 1 to STEPS
NOTE = "distances of every group to every node, no trees"


@dataclass(frozen=True)
class Asked:
    """Questions with their local graphs, cut out before the clock starts."""

    blocks: Blocks
    costs: torch.Tensor
    anchors: Ragged
    groups: Ragged


def cases(config: Config) -> Iterator[Case]:
    """Random anchors with edges, random costs: the graph of the index and the generated ones."""
    device = torch.device(config.device)
    for name, csr in measured_graphs(config):
        graph = checked(csr_on(csr, device))
        generator = torch.Generator().manual_seed(config.seed)
        linked, each = csr.indptr.diff().nonzero()[:, 0].cpu(), GROUPS * ANCHORS
        nodes = linked[torch.randint(len(linked), (config.pool * each,), generator=generator)]
        offsets = torch.arange(0, config.pool * each + 1, each)
        anchors = Ragged(nodes.to(device), offsets.to(device))
        balls = ego_balls(graph, anchors, RADIUS, limit=LIMIT)
        yield _case(name, graph, anchors, balls, config)


def cost_of(question: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
    """Some cost of 1 to STEPS for each pair."""
    return 1 + ((question * 7919 + node) * 2654435761 >> 7) % STEPS


def _case(name: str, graph: CheckedGraph, anchors: Ragged, balls: Ragged, config: Config) -> Case:
    def inputs(start: int, count: int) -> Asked:
        nodes, own = part(balls, start, count), part(anchors, start, count)
        groups = Ragged(torch.arange(own.values.shape[0], device=own.values.device) % GROUPS, own.offsets)
        costs = cost_of(row_of_value(nodes) + start, nodes.values.long())
        return Asked(induced_subgraphs(graph, nodes), costs, own, groups)

    def run(asked: Asked) -> Bubbles:
        return bubble_expansion(asked.blocks, asked.costs, asked.anchors, asked.groups, threads=config.threads)

    @cache
    def size(batch: int) -> tuple[int, int]:
        csr = inputs(0, batch).blocks.csr
        return csr.n, csr.m

    return Case(
        "bubble",
        pick_implementation(graph.csr.indptr.device),
        {"graph": name, "n": graph.csr.n, "m": graph.csr.m, "k": LIMIT},
        inputs,
        run,
        lambda result, count: check(result, inputs(0, count)),
        lambda batch: bubble_bytes(*size(batch)),
        lambda batch: 40 * GROUPS * sum(size(batch)),
        lambda: [_scipy(inputs), _igraph(inputs), _networkx(inputs)],
    )


def bubble_bytes(n: int, m: int) -> int:
    """Every block read once (4 bytes an entry, 16 a row with its cost), a state of 16 bytes a row and group written."""
    return 4 * m + (16 + 16 * GROUPS) * n


def check(result: Any, asked: Asked) -> Checked:
    """The trees of a sample of questions are those of the fixpoint in torch; distances of a peer are its distances."""
    count = asked.anchors.batch
    for b in sorted({0, count // 2, count - 1}):
        one = _one(asked, b)
        if isinstance(result, Bubbles):
            exact = bubble_expansion(one.blocks, one.costs, one.anchors, one.groups, implementation="torch")
            first, last = result.offsets[b : b + 2].tolist()
            at = result.nodes.offsets[first : last + 1]
            same = torch.equal(result.nodes.values[at[0] : at[-1]], exact.nodes.values)
            same = same and torch.equal(at - at[0], exact.nodes.offsets) and last > first
            same = same and torch.equal(result.distance[first:last], exact.distance)
        else:
            state = fixpoint(one.blocks, one.costs, local_nodes(one.blocks, one.anchors, "anchors"), one.groups)
            exact_distance = torch.where(state == UNREACHED, torch.inf, (state >> 32).double())
            same = np.array_equal(np.asarray(result[b], np.float64), exact_distance.cpu().numpy())
        if not same:
            return Checked(False, f"question {b} is not what the fixpoint gives")
    return Checked(True)


def _one(asked: Asked, b: int) -> Asked:
    """Question b by itself."""
    blocks = asked.blocks
    lo, hi = blocks.offsets[b : b + 2].tolist()
    first, last = blocks.csr.indptr[[lo, hi]].tolist()
    csr = CSR(blocks.csr.indptr[lo : hi + 1] - first, blocks.csr.indices[first:last] - lo)
    ids = Ragged(blocks.global_ids[lo:hi], blocks.offsets[b : b + 2] - lo)
    return Asked(
        Blocks(csr, ids.offsets, ids.values), asked.costs[lo:hi], part(asked.anchors, b, 1), part(asked.groups, b, 1)
    )


Converted = Callable[[int, int], list[tuple[Any, list[list[int]]]]]


def _matrices(inputs: Callable[[int, int], Asked]) -> Converted:
    """Of every question: scipy's CSR with the cost of a column as its entry, and the rows of each group's anchors."""

    def converted(start: int, count: int) -> list[tuple[Any, list[list[int]]]]:
        from scipy.sparse import csr_matrix

        asked, found = inputs(start, count), []
        for b in range(count):
            one = _one(asked, b)
            csr, columns = one.blocks.csr, one.blocks.csr.indices.long()
            rows = local_nodes(one.blocks, one.anchors, "anchors").values
            arrays = (one.costs[columns].double().cpu(), csr.indices.cpu(), csr.indptr.cpu())
            matrix = csr_matrix(tuple(a.numpy() for a in arrays), shape=(csr.n, csr.n))
            found.append((matrix, [rows[one.groups.values == g].unique().tolist() for g in range(GROUPS)]))
        return found

    return converted


def _scipy(inputs: Callable[[int, int], Asked]) -> Peer:
    from scipy.sparse.csgraph import dijkstra

    def run(asked: list[tuple[Any, list[list[int]]]]) -> list[Any]:
        return [np.stack([dijkstra(m, indices=rows, min_only=True) for rows in groups]) for m, groups in asked]

    return Peer("scipy dijkstra", _matrices(inputs), run, note=NOTE, most=MOST_ALONE, alone=True)


def _igraph(inputs: Callable[[int, int], Asked]) -> Peer:
    """igraph's Dijkstra from one more node a group, joined to its anchors at no cost."""
    if find_spec("igraph") is None:
        return missing_peer("igraph distances", "igraph")
    if not single_openmp_thread():
        return Peer("igraph distances", note="not timed: set OMP_NUM_THREADS to 1, more threads slow igraph down")
    import igraph

    convert = _matrices(inputs)

    def graphs(start: int, count: int) -> list[tuple[Any, list[float], int]]:
        found = []
        for matrix, groups in convert(start, count):
            n, entries = matrix.shape[0], matrix.tocoo()
            edges = np.stack([entries.row, entries.col], 1).tolist()
            edges += [[n + g, row] for g, rows in enumerate(groups) for row in rows]
            weight = entries.data.tolist() + [0.0] * sum(map(len, groups))
            found.append((igraph.Graph(n + GROUPS, edges=edges, directed=True), weight, n))
        return found

    def run(asked: list[tuple[Any, list[float], int]]) -> list[Any]:
        return [np.array(graph.distances(range(n, n + GROUPS), range(n), weights=weight)) for graph, weight, n in asked]

    return Peer("igraph distances", graphs, run, note=NOTE, most=MOST_ALONE, alone=True)


def _networkx(inputs: Callable[[int, int], Asked]) -> Peer:
    if find_spec("networkx") is None:
        return missing_peer("networkx", "networkx")
    import networkx as nx

    convert = _matrices(inputs)

    def graphs(start: int, count: int) -> list[tuple[Any, list[list[int]]]]:
        return [
            (nx.from_scipy_sparse_array(matrix, create_using=nx.DiGraph), groups)
            for matrix, groups in convert(start, count)
        ]

    def run(asked: list[tuple[Any, list[list[int]]]]) -> list[Any]:
        found = []
        for graph, groups in asked:
            distance = np.full((GROUPS, len(graph)), np.inf)
            for g, rows in enumerate(groups):
                for node, far in nx.multi_source_dijkstra_path_length(graph, set(rows)).items():
                    distance[g, node] = far
            found.append(distance)
        return found

    return Peer("networkx", graphs, run, note=NOTE, most=MOST_ALONE, alone=True)
