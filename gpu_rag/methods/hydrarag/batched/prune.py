"""The W1 best paths of each question by relevance, and the W2 best by cross-source verification, see `pruning`.

All pools of a batch form one padded block product. Components are rounded to a grid of 2^-22, so products are exact in
f64, and the bits do not depend on batch, order or device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.common.arrays import to_device
from gpu_rag.index.index import Index
from gpu_rag.methods.hydrarag.batched import TILE
from gpu_rag.methods.hydrarag.state import CROSS, KINDS, OVERLAP, SEMANTIC, FoundPath, Params, Scores
from gpu_rag.program.kinds import GRAPH
from gpu_rag.runtime.step import batched

GRID = float(2**22)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidate paths of one question. query: f32[D], the indicator; vectors: f32[P, D]; both have unit length.

    topics: for each mention the fused nodes that it may denote; no node is in two of them.
    """

    query: np.ndarray
    vectors: np.ndarray
    paths: tuple[FoundPath, ...]
    topics: tuple[tuple[int, ...], ...]


Pruned = tuple[list[FoundPath], list[FoundPath]]  # the W1 best by rel; the W2 best, with scores; best first


@batched(GRAPH, tile=TILE)
def prune_paths(index: Index, queries: list[Candidates], params: Params) -> list[Pruned]:
    """The best paths of each question, see the module; ranked by rel alone with pruning=relevance."""
    verified = params.pruning == "verified"
    pool = np.concatenate([query.vectors for query in queries])
    owner = np.repeat(np.arange(len(queries)), [len(query.paths) for query in queries])
    moved = to_device(index.device, pool, np.stack([query.query for query in queries]), owner)  # one copy
    vectors, indicators = on_grid(moved[0]), on_grid(moved[1])
    relevance = _relevance(queries, _cosines(vectors, indicators[moved[2]]).tolist())
    boosted = [[score + path.asked for score, path in zip(rel, query.paths)] for query, rel in zip(queries, relevance)]
    chosen = [sorted(range(len(rel)), key=lambda i: (-rel[i], i))[: params.w1] for rel in boosted]
    support = _support(queries, chosen, vectors, params.gamma)
    results = []
    for query, rel, rows, backed in zip(queries, relevance, chosen, support):
        judged = [(row, _judged(query.paths[row], rel[row], kinds, params)) for row, kinds in zip(rows, backed)]
        order = sorted(judged, key=lambda j: (-j[1].asked - (j[1].scores.cross if verified else j[1].scores.rel), j[0]))
        results.append(([query.paths[row] for row in rows], [path for _, path in order[: params.w2]]))
    return results


def _relevance(queries: Sequence[Candidates], cosines: Iterable[float]) -> list[list[float]]:
    """rel of every path of every question. cosines: of the paths of all questions in turn."""
    cosines = iter(cosines)
    shares = [_overlaps(query.topics, [path.nodes for path in query.paths]) for query in queries]
    return [[SEMANTIC * next(cosines) + OVERLAP * share for share in row] for row in shares]


def _cosines(paths: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """f64[P]: the cosine of every path and its query, both on the grid."""
    norm = (paths.square().sum(1) * queries.square().sum(1)).sqrt()
    return torch.where(norm > 0, (paths * queries).sum(1) / norm, 0.0)


def _overlaps(topics: Sequence[Sequence[int]], paths: Sequence[Sequence[int]]) -> list[float]:
    """|T & Ent| / |T or Ent| of each path. A topic is one element, no matter which of its nodes the path has."""
    mention = {node: number for number, nodes in enumerate(topics) for node in nodes}
    shares = []
    for path in paths:
        entities = set(path)
        served = len({mention[node] for node in entities if node in mention})
        shares.append(served / max(len(topics) + len(entities) - served, 1))
    return shares


def on_grid(vectors: torch.Tensor) -> torch.Tensor:
    """f64: the components as integer multiples of 2^-22."""
    return vectors.double().mul_(GRID).round_()


def _support(
    queries: Sequence[Candidates], chosen: Sequence[Sequence[int]], pool: torch.Tensor, gamma: float
) -> list[list[tuple[str, ...]]]:
    """For each chosen path the other kinds of sources with a similar path: one product [B, W, D] x [B, D, W]. pool:
    f64[P, D], the paths on the grid, grouped by question."""
    shape = len(queries), max(map(len, chosen), default=0)
    positions, of_kinds = np.full(shape, -1), np.zeros((2, *shape, len(KINDS)), bool)
    first = np.cumsum([0, *(len(query.paths) for query in queries)])
    for b, (query, rows) in enumerate(zip(queries, chosen)):
        for i, row in enumerate(rows):
            path, positions[b, i] = query.paths[row], first[b] + row
            of_kinds[:, b, i] = [k in path.kinds for k in KINDS], [k == path.kind for k in KINDS]
    places, stated, own = to_device(pool.device, positions, *of_kinds)
    vectors = torch.where(places[:, :, None] >= 0, pool[places.clamp(min=0)], 0.0)
    squares = vectors.square().sum(2)
    norm = (squares[:, :, None] * squares[:, None, :]).sqrt()
    near = (torch.bmm(vectors, vectors.mT) >= gamma * norm) & (norm > 0)
    by_others = torch.stack([(near & stated[:, None, :, k]).any(2) for k in range(len(KINDS))], 2)
    flags = ((by_others | stated) & ~own).tolist()
    return [
        [tuple(name for name, has in zip(KINDS, flags[b][i]) if has) for i in range(len(rows))]
        for b, rows in enumerate(chosen)
    ]


def _judged(path: FoundPath, rel: float, support: tuple[str, ...], params: Params) -> FoundPath:
    f1, f2 = params.reliability(path.kind, path.sources), min(len(support), params.w_max) / params.w_max
    ver = (f1 + f2 + path.known) / 3
    return path._replace(scores=Scores(rel, f1, f2, path.known, ver, CROSS * rel + (1 - CROSS) * ver, support))
