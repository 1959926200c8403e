"""The case `paths`: the best paths between two topics, D = 2 (or `--hops`) hops from each, for B questions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import Case, Checked, Config, check_sample
from gpu_rag.bench.inputs import (
    POWER_LAW,
    check_memory,
    csr_on,
    drawn,
    linked_nodes,
    lists_of,
    power_law,
    seeded,
    unit_rows,
)
from gpu_rag.bench.peers import peer_file
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
from gpu_rag.types import CSR

DIMS = 64
DEPTH = (2,)
COUNTED = 8  # questions used to count candidates
BEAM = 100
TILE = 64  # questions searched together
ERROR = 1e-6  # score tolerance: a peer's vectors are not on the grid
GRID = 2.0**22  # components are rounded to multiples of its inverse, as the op documents

Path = tuple[int, ...]
Scored = list[tuple[float, Path]]


@dataclass(frozen=True)
class World:
    """A graph, a unit vector for each edge and for each question of the pool, its two topics i64[pool, 2], and the
    number of hops that are searched from each."""

    graph: PathGraph
    vectors: torch.Tensor
    queries: torch.Tensor
    topics: torch.Tensor
    depth: int

    def to(self, device: str) -> World:
        """The same world on a device."""
        graph = PathGraph(csr_on(self.graph.csr, torch.device(device)), self.graph.edge.to(device))
        return World(graph, self.vectors.to(device), self.queries.to(device), self.topics.to(device), self.depth)


def cases(config: Config) -> Iterator[Case]:
    """Random pairs of topics in a generated graph, for every size."""
    for n in config.sizes:
        csr = power_law(n, config.seed)
        check_memory(f"vectors of {csr.m // 2:,} edges", 2 * csr.m * 4 * DIMS, config)
        world = world_of(csr, config)
        for depth in config.hops or DEPTH:
            yield _case(replace(world, depth=depth), config)


def world_of(csr: CSR, config: Config) -> World:
    """Random vectors for the edges and the pool of questions, and two different topics with edges for each question."""
    generator = seeded(config)
    graph = path_graph(CSR(csr.indptr, csr.indices))
    linked = linked_nodes(csr)
    pairs = drawn(linked, (config.pool, 2), generator)
    alike = pairs[:, 0] == pairs[:, 1]
    pairs[alike, 1] = linked[(torch.searchsorted(linked, pairs[alike, 1]) + 1) % len(linked)]
    vectors = unit_rows(int(graph.edge.max()) + 1, DIMS, generator)
    return World(graph, vectors, unit_rows(config.pool, DIMS, generator), pairs, DEPTH[0])


def _case(world: World, config: Config) -> Case:
    own_world, candidates = world.to(config.device), _candidates(world)

    def run(questions: torch.Tensor) -> list[tuple[PathSet, torch.Tensor]]:
        return [searched(own_world, tile, config.threads) for tile in questions.split(TILE)]

    return Case(
        op="paths",
        implementation=pick_implementation(own_world.graph.device),
        labels={
            "graph": POWER_LAW, "n": world.graph.n, "m": world.graph.csr.m, "hops": world.depth, "k": BEAM,
            "dims": DIMS,
        },
        inputs=lambda start, count: torch.arange(start, start + count, device=own_world.topics.device),
        run=run,
        check=lambda result, count: check(result, count, world),
        bytes_of=lambda batch: round(batch * candidates * (8 + 4 * DIMS)),
        memory_of=lambda batch: round(min(batch, TILE) * candidates * 200),
        peers=lambda: [peer_file("paths").by_igraph(world), peer_file("paths").by_networkx(world)],
    )  # fmt: skip


def searched(
    world: World, questions: torch.Tensor, threads: int = 1, sizes: list[int] | None = None
) -> tuple[PathSet, torch.Tensor]:
    """The paths of some questions, and their scores. sizes: receives the number of paths before each pruning."""
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
    best = search_paths(world.graph, topics, world.depth, Ends(closed, closed), window, prune, threads=threads)
    return best, scores[0]


def _candidates(world: World) -> float:
    """The mean number of scored paths for one question, over the first questions."""
    sizes: list[int] = []
    searched(world, torch.arange(COUNTED), sizes=sizes)
    return max(1.0, sum(sizes) / COUNTED)


class Loops:
    """The same search as loops over sets, directly from the definition."""

    def __init__(self, world: World):
        self.world = world
        graph = world.graph
        self.indptr, self.indices = graph.csr.indptr.numpy(), graph.csr.indices.numpy()
        self.edge = graph.edge.numpy()

    def edge_between(self, a: int, b: int) -> int:
        """The edge's number, or -1."""
        first, last = self.indptr[a], self.indptr[a + 1]
        entry = first + int(np.searchsorted(self.indices[first:last], b))
        return int(self.edge[entry]) if entry < last and self.indices[entry] == b else -1

    def edges(self, path: Path) -> list[int]:
        """The edges along a path, -1 for a missing edge."""
        return [self.edge_between(a, b) for a, b in itertools.pairwise(path)]

    def score(self, question: int, path: Path) -> float:
        """0.7 cos(question, mean of the edges' vectors) + 0.3 Jaccard(topics, nodes); NaN if a step is no edge."""
        if min(self.edges(path)) < 0:
            return math.nan
        rows = np.rint(self.world.vectors.numpy()[self.edges(path)].astype(np.float64) * GRID).sum(0)
        query = np.rint(self.world.queries.numpy()[question].astype(np.float64) * GRID)
        norm = np.sqrt((rows @ rows) * (query @ query))
        topics = set(self.world.topics[question].tolist())
        cosine = rows @ query / norm if norm > 0 else 0.0
        return float(0.7 * cosine + 0.3 * (len(topics & set(path)) / len(topics | set(path))))

    def best(self, question: int, paths: list[Path]) -> Scored:
        """The paths in the beam, ascending by nodes."""
        ranked = sorted((-self.score(question, path), path) for path in paths)[:BEAM]
        return sorted(((-score, path) for score, path in ranked), key=lambda pair: pair[1])

    def search(self, question: int) -> Scored:
        """Search paths from both topics, join those that meet, and keep the best."""
        one, other = self.world.topics[question].tolist()
        sides: dict[int, list[list[Path]]] = {topic: [[(topic,)]] for topic in (one, other)}
        for hops in sides.values():
            for _ in range(self.world.depth):
                longer: list[Path] = [
                    (*path, node)
                    for path in hops[-1]
                    for node in self.indices[self.indptr[path[-1]] : self.indptr[path[-1] + 1]].tolist()
                    if node not in path and node not in (one, other)
                ]
                hops.append([path for _, path in self.best(question, longer)])
        paths: list[Path] = [(one, other)] if self.edge_between(one, other) >= 0 else []
        for h in range(1, self.world.depth + 1):
            ends = sides[other][h] + (sides[other][h - 1] if h > 1 else [])
            for left, right in itertools.product(sides[one][h], ends):
                if left[-1] == right[-1] and not set(left[:-1]) & set(right[:-1]):
                    paths.append(left + right[-2::-1])
        return self.best(question, paths)


def ranked(loops: Loops, question: int, paths: list[Path]) -> Scored:
    """The best BEAM of all paths, scored together by numpy."""
    if not paths:
        return []
    vectors, query = loops.world.vectors.numpy(), loops.world.queries.numpy()[question].astype(np.float64)
    total = np.stack([vectors[loops.edges(path)].sum(0, dtype=np.float64) for path in paths])
    cosine = total @ query / np.sqrt((total * total).sum(1) * (query @ query))
    scores = 0.7 * cosine + 0.3 * (2 / np.array([len(path) for path in paths]))
    return sorted(zip(scores.tolist(), paths), key=lambda pair: (-pair[0], pair[1]))[:BEAM]


def check(result: Any, count: int, world: World) -> Checked:
    """Check that scores belong to their paths, and that the paths equal those of the loops. A peer returns a list of
    the best of all paths for each question, and may find better ones."""
    loops, pruned = Loops(world), not isinstance(result[0], list)
    rows = _listed(result, count) if pruned else result
    if len(rows) != count:
        return Checked(f"{len(rows)} questions instead of {count}")

    def reason(question: int) -> str:
        answers, wanted = rows[question], loops.search(question)
        if pruned and [path for _, path in answers] != [path for _, path in wanted]:
            return f"question {question} has other paths than the loops find"
        if not all(abs(loops.score(question, path) - score) <= ERROR for score, path in answers):
            return f"question {question} has a path with another score than its own"
        best, least = (max((score for score, _ in paths), default=-1.0) for paths in (answers, wanted))
        return "" if best >= least - ERROR else f"question {question} has a worse best path than the loops find"

    return check_sample(count, reason)


def _listed(result: list[tuple[PathSet, torch.Tensor]], count: int) -> list[Scored]:
    rows: list[Scored] = [[] for _ in range(count)]
    for tile, (paths, scores) in enumerate(result):
        for b, nodes, score in zip(paths.question.tolist(), paths.nodes.tolist(), scores.tolist()):
            if b + tile * TILE < count:
                rows[b + tile * TILE].append((score, tuple(node for node in nodes if node >= 0)))
    return rows
