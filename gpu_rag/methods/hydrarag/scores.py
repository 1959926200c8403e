"""Pruning of paths by relevance and by what other kinds of sources say (HydraRAG, steps 1 and 2 of its pruning).

For a question with indicator I and topics T, and candidate paths p:
  rel(p)   = .7 cos(I, p) + .3 |T & Ent(p)| / |T or Ent(p)|; the W1 best are the pool
  f1(p)    = reliability of the kind of source that p is from
  f2(p)    = min(|Supp(p)|, W_max) / W_max; Supp(p) = the OTHER kinds with a path of cosine >= gamma to p in the pool
  f3(p)    = share of the entities of p that the evidence subgraph holds
  ver(p)   = (f1 + f2 + f3) / 3,  cross(p) = .7 rel + .3 ver; the W2 best are kept
A topic is one mention of the question, whichever of the nodes that it may be (homonyms, a node of each source): T is
read as one node a mention, the one on p where p has one, and other homonyms on p are entities like any other. A path
that several kinds of sources state, hop for hop, is a path of each of them, so these kinds support it too.
All pools of a batch are one padded block product. Components are taken on a grid of 2^-22, so products are exact in
f64: bits do not depend on batch, order or device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.settings.ranges import COSINE, COUNT, SHARE, check_fields, check_value

GRID = float(2**22)
KINDS = ("kg", "document", "web")
TILE = 16  # questions of one block product


@dataclass(frozen=True)
class Pruning:
    """Parameters of one pruning, see the module. pool: W1; kept: W2; most: W_max; gamma: least cosine of support.

    rho: reliability of each of KINDS. verified: False ranks by rel alone. relevance: weights of cosine and overlap;
    cross: weight of rel in cross.
    """

    pool: int = 100
    kept: int = 20
    most: int = 3
    gamma: float = 0.8
    rho: tuple[float, float, float] = (1.0, 0.8, 0.7)
    verified: bool = True
    relevance: tuple[float, float] = (0.7, 0.3)
    cross: float = 0.7

    def __post_init__(self) -> None:
        check_fields(self, pool=COUNT, kept=COUNT, most=COUNT, gamma=COSINE, cross=SHARE)
        if len(self.rho) != len(KINDS):
            raise UsageError("a kind of source has a reliability", given=self.rho, expected=f"{len(KINDS)} numbers")
        for name, values in (("rho", self.rho), ("relevance", self.relevance)):
            for value in values:
                check_value(name, value, SHARE)


@dataclass(frozen=True, eq=False)
class PathPool:
    """The candidate paths of one question. query: f32[D], the indicator; vectors: f32[P, D]; both unit rows.

    kinds: for each path the kinds of sources that state all of it, the one that it counts as first; entities: its
    nodes, fused or (< 0) known to no knowledge graph; topics: for each mention the fused nodes that it may be, no node
    in two of them; known: for each path the share of its entities that the evidence subgraph holds.
    """

    query: np.ndarray
    vectors: np.ndarray
    kinds: tuple[tuple[str, ...], ...]
    entities: tuple[tuple[int, ...], ...]
    topics: tuple[tuple[int, ...], ...]
    known: tuple[float, ...]

    def __post_init__(self) -> None:
        nodes = [node for mention in self.topics for node in set(mention)]
        if len(set(nodes)) != len(nodes):
            raise BadInput("a node belongs to two topics", given=self.topics, expected="mentions without common nodes")
        if not all(self.kinds):
            raise BadInput("a path is of no kind of source", given=self.kinds, expected=f"one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Judged:
    """One path that was kept: its place in the pool, its scores, and the other kinds of sources that support it."""

    row: int
    rel: float
    f1: float
    f2: float
    f3: float
    ver: float
    cross: float
    support: tuple[str, ...]


@dataclass(frozen=True)
class Pruned:
    """by_relevance: rows of the W1 best by rel; kept: the W2 best, best first; ties go to the earlier row."""

    by_relevance: tuple[int, ...]
    kept: tuple[Judged, ...]


def pruned(params: Pruning, pools: Sequence[PathPool], device: str | torch.device = "cpu") -> list[Pruned]:
    """Prunes every pool."""
    found: list[Pruned] = []
    for first in range(0, len(pools), TILE):
        found.extend(_tile(params, pools[first : first + TILE], torch.device(device)))
    return found


def _tile(params: Pruning, pools: Sequence[PathPool], device: torch.device) -> list[Pruned]:
    relevance = _relevance(params, pools, device)
    chosen = [sorted(range(len(rel)), key=lambda i: (-rel[i], i))[: params.pool] for rel in relevance]
    support = _support(params, pools, chosen, device)
    found = []
    for pool, rel, rows, backed in zip(pools, relevance, chosen, support):
        judged = [_judged(params, pool, rel[row], row, kinds) for row, kinds in zip(rows, backed)]
        order = sorted(judged, key=lambda j: (-(j.cross if params.verified else j.rel), j.row))
        found.append(Pruned(tuple(rows), tuple(order[: params.kept])))
    return found


def _relevance(params: Pruning, pools: Sequence[PathPool], device: torch.device) -> list[list[float]]:
    """rel of every path of every pool."""
    cosines = torch.cat([_cosines(pool, device) for pool in pools]).tolist()  # one wait for the device
    semantic, overlap = params.relevance
    found, first = [], 0
    for pool in pools:
        shares = _overlaps(pool.topics, pool.entities)
        own = cosines[first : first + len(pool.vectors)]
        found.append([semantic * cos + overlap * share for cos, share in zip(own, shares)])
        first += len(own)
    return found


def _cosines(pool: PathPool, device: torch.device) -> torch.Tensor:
    """f64[P]: the cosine of the query and every path."""
    held = _on_grid(torch.from_numpy(pool.vectors).to(device))
    query = _on_grid(torch.from_numpy(pool.query).to(device))
    norm = (held.square().sum(1) * query.square().sum()).sqrt()
    return torch.where(norm > 0, (held * query).sum(1) / norm, 0.0)


def _overlaps(topics: Sequence[Sequence[int]], paths: Sequence[Sequence[int]]) -> list[float]:
    """|T & Ent| / |T or Ent| of each path, a topic being one element whichever of its nodes the path has."""
    mention = {node: number for number, nodes in enumerate(topics) for node in nodes}
    found = []
    for path in paths:
        entities = set(path)
        served = len({mention[node] for node in entities if node in mention})
        found.append(served / max(len(topics) + len(entities) - served, 1))
    return found


def _on_grid(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.double().mul_(GRID).round_()


def _support(
    params: Pruning, pools: Sequence[PathPool], chosen: Sequence[Sequence[int]], device: torch.device
) -> list[list[tuple[str, ...]]]:
    """For each chosen path the other kinds that have a path like it: one product [B, W, D] x [B, D, W]."""
    width, size = max(map(len, chosen), default=0), pools[0].vectors.shape[1]
    held = torch.zeros(len(pools), width, size, dtype=torch.float64, device=device)
    stated = torch.zeros(len(pools), width, len(KINDS), dtype=torch.bool, device=device)
    own = torch.zeros_like(stated)
    for b, (pool, rows) in enumerate(zip(pools, chosen)):
        if rows:
            held[b, : len(rows)] = _on_grid(torch.from_numpy(pool.vectors[list(rows)]).to(device))
            stated[b, : len(rows)] = torch.tensor([[k in pool.kinds[i] for k in KINDS] for i in rows], device=device)
            own[b, : len(rows)] = torch.tensor([[k == pool.kinds[i][0] for k in KINDS] for i in rows], device=device)
    squares = held.square().sum(2)
    norm = (squares[:, :, None] * squares[:, None, :]).sqrt()
    near = (torch.bmm(held, held.mT) >= params.gamma * norm) & (norm > 0)
    by_others = torch.stack([(near & stated[:, None, :, k]).any(2) for k in range(len(KINDS))], 2)
    flags = ((by_others | stated) & ~own).tolist()
    return [
        [tuple(name for name, has in zip(KINDS, flags[b][i]) if has) for i in range(len(rows))]
        for b, rows in enumerate(chosen)
    ]


def _judged(params: Pruning, pool: PathPool, rel: float, row: int, support: tuple[str, ...]) -> Judged:
    f1 = params.rho[KINDS.index(pool.kinds[row][0])]
    f2 = min(len(support), params.most) / params.most
    f3 = pool.known[row]
    ver = (f1 + f2 + f3) / 3
    return Judged(row, rel, f1, f2, f3, ver, params.cross * rel + (1 - params.cross) * ver, support)
