"""The case `paths`: the best paths between two topics, D = 2 (or `--hops`) hops from each, of B questions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch

from gpu_rag.bench.case import MOST_ALONE, Case, Config, Peer, missing_peer
from gpu_rag.bench.graphs import graph_of
from gpu_rag.bench.measure import torch_threads
from gpu_rag.errors import UsageError
from gpu_rag.graph.memory import free_bytes
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
from gpu_rag.graph.paths.bench_reference import BEAM, TILE, Everything, Loops, World, check, ranked
from gpu_rag.types import CSR, Ragged

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
        needed, free = 2 * csr.m * 4 * DIMS, free_bytes(torch.device(config.device))
        if needed > free:
            given = f"the vectors of {csr.m // 2:,} edges: {needed / 1e9:.1f} GB"
            raise UsageError("the vectors do not fit", given=given, expected=f"at most {free / 1e9:.1f} GB")
        world = world_of(csr, config)
        for depth in config.hops or DEPTH:
            yield _case(kind, replace(world, depth=depth), config)


def world_of(csr: CSR, config: Config) -> World:
    """Random vectors for the edges and the pool of questions, and two different topics for each that are not alone."""
    generator = torch.Generator().manual_seed(config.seed)
    graph = path_graph(CSR(csr.indptr, csr.indices))
    linked = (csr.indptr.diff() > 0).nonzero()[:, 0]
    pairs = linked[torch.randint(len(linked), (config.pool, 2), generator=generator)]
    alike = pairs[:, 0] == pairs[:, 1]
    pairs[alike, 1] = linked[(torch.searchsorted(linked, pairs[alike, 1]) + 1) % len(linked)]
    vectors, queries = (
        torch.nn.functional.normalize(torch.randn(rows, DIMS, generator=generator))
        for rows in (int(graph.edge.max()) + 1, config.pool)
    )
    return World(graph, vectors, queries, pairs, DEPTH[0])


def _case(kind: str, world: World, config: Config) -> Case:
    held = world.to(config.device)
    implementation = pick_implementation(held.graph.device)
    candidates = _candidates(world)

    def run(asked: torch.Tensor) -> list[tuple[PathSet, torch.Tensor]]:
        with torch_threads(config.threads):
            tiles = [asked[i : i + TILE] for i in range(0, len(asked), TILE)]
            return [searched(held, tile, config.threads) for tile in tiles]

    return Case(
        "paths",
        implementation,
        {"graph": kind, "n": world.graph.n, "m": world.graph.csr.m, "hops": world.depth, "k": BEAM, "dims": DIMS},
        lambda start, count: torch.arange(start, start + count, device=held.topics.device),
        run,
        lambda result, count: check(result, count, world),
        lambda batch: round(batch * candidates * (8 + 4 * DIMS)),
        lambda batch: round(min(batch, TILE) * candidates * 200),
        lambda: [_igraph(world), _networkx(world)],
    )


def searched(
    world: World, asked: torch.Tensor, threads: int = 1, sizes: list[int] | None = None
) -> tuple[PathSet, torch.Tensor]:
    """The paths of some questions, and their scores. sizes: gets how many paths each pruning was given."""
    count, device = len(asked), asked.device
    offsets = torch.arange(count + 1, device=device) * 2
    topics, queries = Ragged(world.topics[asked].flatten(), offsets), world.queries[asked]
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


def _igraph(world: World) -> Peer:
    if find_spec("igraph") is None:
        return missing_peer("igraph", "igraph")
    if world.graph.n > IGRAPH_NODES:
        return Peer("igraph", note=f"not timed above {IGRAPH_NODES:,} nodes")
    import igraph

    loops = Loops(world)
    graph = igraph.Graph(world.graph.n, edges=_pairs(world.graph))

    def run(asked: list[int]) -> Everything:
        rows = []
        for question in asked:
            one, other = world.topics[question].tolist()
            found = graph.get_all_simple_paths(one, to=other, maxlen=2 * world.depth)
            rows.append(ranked(world, loops, question, [tuple(path) for path in found]))
        return Everything(rows)

    return Peer(
        "igraph", lambda start, count: list(range(start, start + count)), run, NOTE, most=MOST_ALONE, alone=True
    )


def _networkx(world: World) -> Peer:
    if find_spec("networkx") is None:
        return missing_peer("networkx", "networkx")
    if world.graph.n > NETWORKX_NODES:
        return Peer("networkx", note=f"not timed above {NETWORKX_NODES:,} nodes")
    import networkx as nx

    loops = Loops(world)
    graph = nx.Graph(_pairs(world.graph).tolist())

    def run(asked: list[int]) -> Everything:
        rows = []
        for question in asked:
            one, other = world.topics[question].tolist()
            found = [tuple(path) for path in nx.all_simple_paths(graph, one, other, cutoff=2 * world.depth)]
            rows.append(ranked(world, loops, question, found))
        return Everything(rows)

    return Peer(
        "networkx", lambda start, count: list(range(start, start + count)), run, NOTE, most=MOST_ALONE, alone=True
    )


def _questions(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def _pairs(graph: PathGraph) -> np.ndarray:
    """The edges as rows (smaller, larger)."""
    rows = torch.repeat_interleave(torch.arange(graph.n), graph.csr.indptr.diff())
    kept = rows < graph.csr.indices
    return torch.stack([rows[kept], graph.csr.indices[kept].long()], 1).numpy()
