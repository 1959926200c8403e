"""The world that the case `paths` is measured on, the same search by loops, and the check of a result."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import Checked
from gpu_rag.bench.graphs import csr_on
from gpu_rag.graph.paths import PathGraph, PathSet

BEAM = 100
TILE = 64  # questions searched together
ERROR = 1e-6  # of a score: a peer's vectors are not on the grid
GRID = 2.0**22  # components are rounded to its inverse, as the op documents

Path = tuple[int, ...]
Scored = list[tuple[float, Path]]


@dataclass(frozen=True)
class World:
    """A graph, a unit vector for each edge and for each question of the pool, its two topics i64[pool, 2], and how many
    hops are searched from each."""

    graph: PathGraph
    vectors: torch.Tensor
    queries: torch.Tensor
    topics: torch.Tensor
    depth: int

    def to(self, device: str) -> World:
        """The same on a device."""
        graph = PathGraph(csr_on(self.graph.csr, torch.device(device)), self.graph.edge.to(device))
        return World(graph, self.vectors.to(device), self.queries.to(device), self.topics.to(device), self.depth)


class Loops:
    """The same search by loops over sets, written from the definition."""

    def __init__(self, world: World):
        self.world = world
        graph = world.graph
        self.indptr, self.indices = graph.csr.indptr.numpy(), graph.csr.indices.numpy()
        self.edge = graph.edge.numpy()

    def edge_between(self, a: int, b: int) -> int:
        """The edge's number, -1 where there is none."""
        first, last = self.indptr[a], self.indptr[a + 1]
        at = first + int(np.searchsorted(self.indices[first:last], b))
        return int(self.edge[at]) if at < last and self.indices[at] == b else -1

    def edges(self, path: Path) -> list[int]:
        """The edges along a path, -1 where there is none."""
        return [self.edge_between(a, b) for a, b in itertools.pairwise(path)]

    def score(self, question: int, path: Path) -> float:
        """0.7 cos(question, mean of the edges' vectors) + 0.3 Jaccard(topics, nodes)."""
        rows = np.rint(self.world.vectors.numpy()[self.edges(path)].astype(np.float64) * GRID).sum(0)
        query = np.rint(self.world.queries.numpy()[question].astype(np.float64) * GRID)
        norm = np.sqrt((rows @ rows) * (query @ query))
        topics = set(self.world.topics[question].tolist())
        cosine = rows @ query / norm if norm > 0 else 0.0
        return float(0.7 * cosine + 0.3 * (len(topics & set(path)) / len(topics | set(path))))

    def best(self, question: int, paths: list[Path]) -> Scored:
        """The beam, ascending by nodes."""
        ranked = sorted((-self.score(question, path), path) for path in paths)[:BEAM]
        return sorted(((-score, path) for score, path in ranked), key=lambda pair: pair[1])

    def search(self, question: int) -> Scored:
        """Paths from both topics, those that meet, and the best of them."""
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
        found: list[Path] = [(one, other)] if self.edge_between(one, other) >= 0 else []
        for h in range(1, self.world.depth + 1):
            ends = sides[other][h] + (sides[other][h - 1] if h > 1 else [])
            for left, right in itertools.product(sides[one][h], ends):
                if left[-1] == right[-1] and not set(left[:-1]) & set(right[:-1]):
                    found.append(left + right[-2::-1])
        return self.best(question, found)


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
    """Every path is one, with its own score; some questions are compared with the loops. A peer gives a list of the
    best of all paths of each question, which may be better."""
    loops, pruned = Loops(world), not result or isinstance(result[0], tuple)
    rows = _listed(result, count) if pruned else result
    if len(rows) != count:
        return Checked(f"{len(rows)} questions instead of {count}")
    for question in sorted({0, count - 1}):
        found, wanted = rows[question], loops.search(question)
        reason = next(filter(None, (_broken(loops, question, *path) for path in found)), "")
        if pruned and [path for _, path in found] != [path for _, path in wanted]:
            reason = reason or "it has other paths than the loops find"
        if max((s for s, _ in found), default=-1.0) < max((s for s, _ in wanted), default=-1.0) - ERROR:
            reason = reason or "its best path is worse than that of the loops"
        if reason:
            return Checked(f"question {question}: {reason}")
    return Checked()


def _broken(loops: Loops, question: int, score: float, path: Path) -> str:
    ends, most = tuple(loops.world.topics[question].tolist()), 2 * loops.world.depth + 1
    if (path[0], path[-1]) != ends or not 1 < len(path) <= most or len(set(path)) < len(path):
        return f"{path} is no path between the topics"
    if min(loops.edges(path)) < 0:
        return f"{path} has a step that is no edge"
    return "" if abs(loops.score(question, path) - score) <= ERROR else f"the score of {path} is off"


def _listed(result: list[tuple[PathSet, torch.Tensor]], count: int) -> list[Scored]:
    rows: list[Scored] = [[] for _ in range(count)]
    for tile, (paths, scores) in enumerate(result):
        for b, nodes, score in zip(paths.question.tolist(), paths.nodes.tolist(), scores.tolist()):
            if b + tile * TILE < count:
                rows[b + tile * TILE].append((score, tuple(node for node in nodes if node >= 0)))
    return rows
