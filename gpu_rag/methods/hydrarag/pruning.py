"""HydraRAG, step III: candidate paths by relevance (W1), by cross-source verification (W2), by the decider (W_max).

For a question with indicator I and topics T, and candidate paths p:
  rel(p)   = .7 cos(I, p) + .3 |T & Ent(p)| / |T or Ent(p)|; the W1 best are the pool
  f1(p)    = reliability of the kind of source that p is from
  f2(p)    = min(|Supp(p)|, W_max) / W_max; Supp(p) = the OTHER kinds with a path of cosine >= gamma to p in the pool
  f3(p)    = share of the entities of p that the evidence subgraph holds
  ver(p)   = (f1 + f2 + f3) / 3,  cross(p) = .7 rel + .3 ver; the W2 best are kept
A path along relations that the question asks for (`chains`) has that much more in each ranking.
A topic is one mention of the question, whichever of the nodes that it may be (homonyms, a node of each source): T is
read as one node a mention, the one on p where p has one, and other homonyms on p are entities like any other. A path
that several kinds of sources state, hop for hop, is a path of each of them, so these kinds support it too.
All pools of a batch are one padded block product. Components are taken on a grid of 2^-22, so products are exact in
f64: bits do not depend on batch, order or device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gpu_rag.graph.common.arrays import to_device
from gpu_rag.index.index import Index
from gpu_rag.methods.hydrarag.batched import TILE
from gpu_rag.methods.hydrarag.state import (
    CROSS,
    KINDS,
    OVERLAP,
    SEMANTIC,
    Analysis,
    FoundPath,
    Params,
    Scores,
    Search,
)
from gpu_rag.program.embed import embed
from gpu_rag.program.kinds import GRAPH
from gpu_rag.runtime.step import batched
from gpu_rag.types import Pool

GRID = float(2**22)
RHO = {"kg": Params.rho_kg, "document": Params.rho_document, "web": Params.rho_web}


async def pruned(
    analysis: Analysis, paths: Sequence[FoundPath], query: np.ndarray, phase: str, search: Search
) -> list[FoundPath]:
    """The w_max paths that are left, best first; what was left before goes to `search`."""
    paths, params = once(paths), search.params
    _pool(f"{phase} found", paths, search)
    if not paths:
        for step in ("w1", "w2", "w_max"):
            _pool(f"{phase} {step}", (), search)
        return []
    vectors, verified = await embed([path.text for path in paths]), params.pruning == "verified"
    candidates = Candidates(query, vectors, tuple(paths), analysis.topics)
    best, kept = await prune_paths(candidates, params.w1, params.w_max, verified)
    _pool(f"{phase} w1", best, search)
    _pool(f"{phase} w2", kept, search)
    scores = [(path.scores.cross if verified else path.scores.rel) + path.asked for path in kept]
    texts = [f"{path.text} ({path.said_by}; score {score:.2f})" for path, score in zip(kept, scores)]
    chosen = await search.choose("select", analysis, texts, params.w_max, f"{phase}/paths", scores)
    left = [kept[i] for i in chosen]
    _pool(f"{phase} w_max", left, search)
    search.run.note(f"{phase}/scores", len(paths), tuple(map(_scores, left)))
    search.kept = [*left, *(path for path in kept if path not in left)]
    return left


def once(paths: Sequence[FoundPath]) -> list[FoundPath]:
    """Paths of one text and source as one, with the answers of all: homonyms, or one path found in two phases."""
    found: dict[tuple[str, str], FoundPath] = {}
    for path in paths:
        key = path.text, path.sources
        before, asked = (found[key].answers, found[key].asked) if key in found else ((), 0.0)
        answers = tuple(dict.fromkeys((*before, *path.answers)))
        found[key] = replace(path, answers=answers, asked=max(asked, path.asked))
    return list(found.values())


def _scores(path: FoundPath) -> str:
    scores = path.scores
    support = ", ".join(scores.support) or "no other kind"
    return (
        f"{path.text} [{path.kind}]: rel {scores.rel:.3f}, reliability {scores.f1:.2f}, "
        f"support {scores.f2:.2f} ({support}), known {scores.f3:.2f}, cross {scores.cross:.3f}"
    )


def _pool(name: str, paths: Sequence[FoundPath], search: Search) -> None:
    """Keeps the names of all entities on some paths, members of clusters too."""
    names = search.kb.node_names
    nodes = dict.fromkeys(node for path in paths for place in path.places for node in place if node >= 0)
    found = dict.fromkeys([*(names[node] for node in nodes), *(name for path in paths for name in path.names)])
    search.pools.append(Pool(name, len(paths), tuple(found)))


# --- the step -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidate paths of one question. query: f32[D], the indicator; vectors: f32[P, D]; both unit rows.

    topics: for each mention the fused nodes that it may be, no node in two of them.
    """

    query: np.ndarray
    vectors: np.ndarray
    paths: tuple[FoundPath, ...]
    topics: tuple[tuple[int, ...], ...]


Pruned = tuple[list[FoundPath], list[FoundPath]]  # the W1 best by rel; the W2 best with their scores; best first


@batched(GRAPH, tile=TILE)
def prune_paths(index: Index, queries: list[Candidates], w1: int, w_max: int, verified: bool) -> list[Pruned]:
    """The best paths of each question, see the module; by rel alone unless `verified`."""
    pool = np.concatenate([one.vectors for one in queries])
    vectors, indicators = to_device(index.device, pool, np.stack([one.query for one in queries]))  # all in one copy
    relevance = _relevance(queries, vectors, indicators)
    asked = [[score + path.asked for score, path in zip(rel, one.paths)] for one, rel in zip(queries, relevance)]
    chosen = [sorted(range(len(rel)), key=lambda i: (-rel[i], i))[:w1] for rel in asked]
    support = _support(queries, chosen, vectors)
    found = []
    for one, rel, rows, backed in zip(queries, relevance, chosen, support):
        judged = [(row, _judged(one.paths[row], rel[row], kinds, w_max)) for row, kinds in zip(rows, backed)]
        order = sorted(judged, key=lambda j: (-j[1].asked - (j[1].scores.cross if verified else j[1].scores.rel), j[0]))
        found.append(([one.paths[row] for row in rows], [path for _, path in order[: Params.w2]]))
    return found


def _relevance(queries: Sequence[Candidates], vectors: torch.Tensor, indicators: torch.Tensor) -> list[list[float]]:
    """rel of every path of every question. vectors: f32[P, D], those of each question in turn."""
    parts = vectors.split([len(one.paths) for one in queries])
    cosines = iter(torch.cat([*map(_cosines, parts, indicators)]).tolist())  # one wait for the device
    shares = [_overlaps(one.topics, [path.nodes for path in one.paths]) for one in queries]
    return [[SEMANTIC * next(cosines) + OVERLAP * share for share in of] for of in shares]


def _cosines(paths: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """f64[P]: the cosine of the query and every path."""
    paths, query = on_grid(paths), on_grid(query)
    norm = (paths.square().sum(1) * query.square().sum()).sqrt()
    return torch.where(norm > 0, (paths * query).sum(1) / norm, 0.0)


def _overlaps(topics: Sequence[Sequence[int]], paths: Sequence[Sequence[int]]) -> list[float]:
    """|T & Ent| / |T or Ent| of each path, a topic being one element whichever of its nodes the path has."""
    mention = {node: number for number, nodes in enumerate(topics) for node in nodes}
    found = []
    for path in paths:
        entities = set(path)
        served = len({mention[node] for node in entities if node in mention})
        found.append(served / max(len(topics) + len(entities) - served, 1))
    return found


def on_grid(vectors: torch.Tensor) -> torch.Tensor:
    """f64: components as whole numbers of 2^-22."""
    return vectors.double().mul_(GRID).round_()


def _support(
    queries: Sequence[Candidates], chosen: Sequence[Sequence[int]], pool: torch.Tensor
) -> list[list[tuple[str, ...]]]:
    """For each chosen path the other kinds that have a path like it: one product [B, W, D] x [B, D, W]. pool:
    f32[P, D], the paths of each question in turn."""
    shape = len(queries), max(map(len, chosen), default=0)
    at, of_kinds = np.full(shape, -1), np.zeros((2, *shape, len(KINDS)), bool)
    first = np.cumsum([0, *(len(one.paths) for one in queries)])
    for b, (one, rows) in enumerate(zip(queries, chosen)):
        for i, row in enumerate(rows):
            path, at[b, i] = one.paths[row], first[b] + row
            of_kinds[:, b, i] = [k in path.kinds for k in KINDS], [k == path.kind for k in KINDS]
    places, stated, own = to_device(pool.device, at, *of_kinds)
    vectors = torch.where(places[:, :, None] >= 0, on_grid(pool[places.clamp(min=0)]), 0.0)
    squares = vectors.square().sum(2)
    norm = (squares[:, :, None] * squares[:, None, :]).sqrt()
    near = (torch.bmm(vectors, vectors.mT) >= Params.gamma * norm) & (norm > 0)
    by_others = torch.stack([(near & stated[:, None, :, k]).any(2) for k in range(len(KINDS))], 2)
    flags = ((by_others | stated) & ~own).tolist()
    return [
        [tuple(name for name, has in zip(KINDS, flags[b][i]) if has) for i in range(len(rows))]
        for b, rows in enumerate(chosen)
    ]


def _judged(path: FoundPath, rel: float, support: tuple[str, ...], w_max: int) -> FoundPath:
    """The path with its scores."""
    f1, f2 = RHO[path.kind], min(len(support), w_max) / w_max
    ver = (f1 + f2 + path.known) / 3
    return replace(path, scores=Scores(rel, f1, f2, path.known, ver, CROSS * rel + (1 - CROSS) * ver, support))
