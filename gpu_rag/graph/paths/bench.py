"""The case `paths`: the best paths between two topics, D = 2 (or `--hops`) hops from each, of B questions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

from gpu_rag.bench.case import Case, Config, Peer
from gpu_rag.bench.graphs import graph_of
from gpu_rag.bench.inputs import check_memory, drawn, linked_nodes, lists_of, seeded, unit_rows
from gpu_rag.bench.peers import alone, peer, too_large
from gpu_rag.graph.paths import (
    Ends,
    PathGraph,
    PathSet,
    Window,
    path_graph,
    pick_implementation,
    score_paths,
    search_paths,
)
from gpu_rag.graph.paths.bench_reference import BEAM, TILE, Loops, Scored, World, check, ranked
from gpu_rag.types import CSR

DIMS = 64
DEPTH = (2,)
COUNTED = 8  # questions that the candidates of a question are counted on
NETWORKX_NODES = 5_000  # four hops by Python generators take seconds a question on larger graphs with hubs
IGRAPH_NODES = 200_000
NOTE = "looks at every path, without a beam"


def cases(config: Config) -> Iterator[Case]:
    """Random pairs of topics in a generated graph, every size and kind."""
    for n, kind in itertools.product(config.sizes, config.graphs):
        csr = graph_of(kind, n, config.seed)
        check_memory(f"vectors of {csr.m // 2:,} edges", 2 * csr.m * 4 * DIMS, config)
        world = world_of(csr, config)
        for depth in config.hops or DEPTH:
            yield _case(kind, replace(world, depth=depth), config)


def world_of(csr: CSR, config: Config) -> World:
    """Random vectors for the edges and the pool of questions, and two different topics for each that are not alone."""
    generator = seeded(config)
    graph = path_graph(CSR(csr.indptr, csr.indices))
    linked = linked_nodes(csr)
    pairs = drawn(linked, (config.pool, 2), generator)
    alike = pairs[:, 0] == pairs[:, 1]
    pairs[alike, 1] = linked[(torch.searchsorted(linked, pairs[alike, 1]) + 1) % len(linked)]
    vectors = unit_rows(int(graph.edge.max()) + 1, DIMS, generator)
    return World(graph, vectors, unit_rows(config.pool, DIMS, generator), pairs, DEPTH[0])


def _case(kind: str, world: World, config: Config) -> Case:
    here, candidates = world.to(config.device), _candidates(world)

    def run(questions: torch.Tensor) -> list[tuple[PathSet, torch.Tensor]]:
        return [searched(here, tile, config.threads) for tile in questions.split(TILE)]

    return Case(
        op="paths",
        implementation=pick_implementation(here.graph.device),
        labels={
            "graph": kind, "n": world.graph.n, "m": world.graph.csr.m, "hops": world.depth, "k": BEAM, "dims": DIMS,
        },
        inputs=lambda start, count: torch.arange(start, start + count, device=here.topics.device),
        run=run,
        check=lambda result, count: check(result, count, world),
        bytes_of=lambda batch: round(batch * candidates * (8 + 4 * DIMS)),
        memory_of=lambda batch: round(min(batch, TILE) * candidates * 200),
        peers=lambda: [_igraph(world), _networkx(world)],
    )  # fmt: skip


def searched(
    world: World, questions: torch.Tensor, threads: int = 1, sizes: list[int] | None = None
) -> tuple[PathSet, torch.Tensor]:
    """The paths of some questions, and their scores. sizes: gets how many paths each pruning was given."""
    count, device = len(questions), questions.device
    topics, queries = lists_of(world.topics[questions], device), world.queries[questions]
    closed = torch.zeros(count, dtype=torch.bool, device=device)
    least = torch.zeros(count, dtype=torch.int64, device=device)
    scores = [least.double()]

    def prune(paths: PathSet) -> PathSet:
        if sizes is not None:
            sizes.append(paths.size)
        kept, scores[0] = score_paths(paths, queries, world.vectors, topics, beam=BEAM, threads=threads)
        return kept

    window = Window(least, least + 2 * world.depth)
    found = search_paths(world.graph, topics, world.depth, Ends(closed, closed), window, prune, threads=threads)
    return found, scores[0]


def _candidates(world: World) -> float:
    """Paths that are scored for one question, on average of the first ones."""
    sizes: list[int] = []
    searched(world, torch.arange(COUNTED), sizes=sizes)
    return max(1.0, sum(sizes) / COUNTED)


def _every_path(world: World, paths: Callable[[int, int], Iterable[list[int]]]) -> Peer:
    """A peer that looks at all `paths` between two nodes, and ranks them."""
    loops = Loops(world)

    def one(question: int) -> Scored:
        return ranked(loops, question, [tuple(path) for path in paths(*world.topics[question].tolist())])

    return alone(lambda start, count: range(start, start + count), one, NOTE)


@peer("igraph", needs="igraph")
def _igraph(world: World) -> Peer:
    if world.graph.n > IGRAPH_NODES:
        return too_large(IGRAPH_NODES)
    import igraph

    graph = igraph.Graph(world.graph.n, edges=_pairs(world.graph))
    return _every_path(world, lambda one, other: graph.get_all_simple_paths(one, to=other, maxlen=2 * world.depth))


@peer("networkx", needs="networkx")
def _networkx(world: World) -> Peer:
    if world.graph.n > NETWORKX_NODES:
        return too_large(NETWORKX_NODES)
    import networkx as nx

    graph = nx.Graph(_pairs(world.graph).tolist())
    return _every_path(world, lambda one, other: nx.all_simple_paths(graph, one, other, cutoff=2 * world.depth))


def _pairs(graph: PathGraph) -> np.ndarray:
    """The edges as rows (smaller, larger)."""
    rows = torch.repeat_interleave(torch.arange(graph.n), graph.csr.indptr.diff())
    kept = rows < graph.csr.indices
    return torch.stack([rows[kept], graph.csr.indices[kept].long()], 1).numpy()
