"""The fused graph ranking of HiGraRetriever, for a batch of questions.

For a question with seed entities S, over the entity layer and the passage layer of `index.higra`:
  G_S         = the entities within `radius` hops of S, and the relations with both ends among them
  p           = PageRank on G_S, restart uniform on S: p = damping P^T p + (1 - damping) pi, see graph.blocks_pagerank
  relation    = the mean of p at its two ends
  G_S+        = G_S with every passage that is linked to one of its entities
  passage     = PageRank on G_S+ at the passage, same restart
  fused       = 1 / (structure_constant + rank by the graph) + 1 / (similarity_constant + rank by similarity); a rank
                that is missing gives no term. Both rankings end at `depth`.
All subgraphs of a batch are blocks of one block-diagonal graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, induced_subgraphs
from gpu_rag.graph.fuse import rrf
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.ragged import expand, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.methods.higra.graph import HigraGraph, load_higra_graph
from gpu_rag.settings.ranges import COUNT, DAMPING, NATURAL, TOLERANCE, check_fields
from gpu_rag.types import Blocks, Ragged, TopK

TILE = 64


@dataclass(frozen=True)
class HigraRank:
    """Parameters of one ranking, see the module; calls with equal parameters share a batch.

    graph: False leaves the structural rank out (the ablation "similarity alone").
    """

    radius: int = 1
    damping: float = 0.85
    structure_constant: float = 10.0
    similarity_constant: float = 10.0
    depth: int = 100
    graph: bool = True
    tol: float = 1e-6

    def __post_init__(self) -> None:
        constants = {"structure_constant": NATURAL, "similarity_constant": NATURAL}
        check_fields(self, radius=NATURAL, damping=DAMPING, **constants, depth=COUNT, tol=TOLERANCE)


@dataclass(frozen=True)
class Seeded:
    """One question's input: seed entities, and its relations and passages by similarity, best first. Rows of tables."""

    seeds: tuple[int, ...]
    relations: tuple[int, ...]
    passages: tuple[int, ...]


@dataclass(frozen=True)
class HigraScores:
    """What a batch of subgraphs came to, lists a question: the entity scores of G_S, those of all nodes of G_S+, and
    rankings by the graph alone. entities, nodes: (blocks, f32 values beside their global_ids)."""

    entities: tuple[Blocks, torch.Tensor]
    nodes: tuple[Blocks, torch.Tensor]
    relations: TopK
    passages: TopK


@dataclass(frozen=True)
class HigraOps:
    """The graph with what the ops need of it: checked adjacencies, where each entity's relations begin, and the object
    of each relation, i64[R] on the device."""

    graph: HigraGraph
    entity: CheckedGraph
    full: CheckedGraph
    first_relation: torch.Tensor
    relation_object: torch.Tensor

    @classmethod
    def load(cls, index: Index) -> HigraOps:
        """From the layers of an index, once."""
        graph = index.loaded("higra", load_higra_graph)
        first = np.searchsorted(graph.relation_ends[0], np.arange(graph.n_entities + 1))
        device = graph.entity_graph.indptr.device
        starts = torch.from_numpy(first.astype(np.int64)).to(device)
        objects = torch.from_numpy(graph.relation_ends[1]).to(device)
        return cls(graph, checked(graph.entity_graph), checked(graph.full_graph), starts, objects)


def subgraph_scores(ops: HigraOps, params: HigraRank, seeds: Ragged, threads: int = 1) -> HigraScores:
    """PageRank on G_S and G_S+ of each seed set, and the rankings that they give. seeds: rows of the entity table."""
    graph, options = ops.graph, {"damping": params.damping, "tol": params.tol, "threads": threads}
    ball = ego_balls(ops.entity, seeds, params.radius, threads=threads)
    inner = induced_subgraphs(ops.entity, ball)
    p = blocks_pagerank(inner, seeds, **options).values  # type: ignore[arg-type]
    passages = (graph.n_entities, ops.full.csr.n)
    outer = induced_subgraphs(ops.full, ego_balls(ops.full, ball, 1, include=[passages], threads=threads))
    q = blocks_pagerank(outer, seeds, **options).values  # type: ignore[arg-type]
    block, node = row_of_value(Ragged(outer.global_ids, outer.offsets)), outer.global_ids.long() - graph.n_entities
    linked = node >= 0
    by_passage = _ranked(block[linked], node[linked], q[linked], seeds.batch, params.depth)
    by_relation = _ranked(*_relations_inside(ops, inner, p), seeds.batch, params.depth)
    return HigraScores((inner, p), (outer, q), by_relation, by_passage)


def _relations_inside(ops: HigraOps, inner: Blocks, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(block, relation row, score) of every relation with both ends in a block."""
    n = max(ops.graph.n_entities, 1)
    node = inner.global_ids.long()
    base = row_of_value(Ragged(inner.global_ids, inner.offsets)) * n
    keys = base + node  # ascending: blocks in order, nodes ascending in each
    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = [(node[:0], node[:0], p[:0])]
    for owner, row in expand(ops.first_relation[node], ops.first_relation[node + 1]):
        wanted = base[owner] + ops.relation_object[row]
        at = torch.searchsorted(keys, wanted).clamp(max=keys.shape[0] - 1)
        hit = keys[at] == wanted
        score = ((p[owner[hit]].double() + p[at[hit]].double()) / 2).float()
        found.append((base[owner[hit]] // n, row[hit], score))
    block, rows, scores = (torch.cat(parts) for parts in zip(*found))
    return block, rows, scores


def _ranked(block: torch.Tensor, ids: torch.Tensor, scores: torch.Tensor, batch: int, depth: int) -> TopK:
    """The best `depth` of each block, by (-score, id), padded."""
    of, key = torch.stack([block, ids]).cpu().numpy()
    value = scores.cpu().numpy()
    order = np.lexsort((key, -value, of))
    of, key, value = of[order], key[order], value[order]
    place = np.arange(len(of)) - np.searchsorted(of, of)
    kept = place < depth
    out_ids = np.full((batch, depth), -1, np.int32)
    out_scores = np.full((batch, depth), -np.inf, np.float32)
    out_ids[of[kept], place[kept]], out_scores[of[kept], place[kept]] = key[kept], value[kept]
    return TopK(torch.from_numpy(out_ids), torch.from_numpy(out_scores))


def _given(lists: Sequence[Sequence[int]], depth: int) -> TopK:
    """Rankings that a program brought along; only their order counts."""
    ids = torch.full((len(lists), depth), -1, dtype=torch.int32)
    for row, ranked in enumerate(lists):
        kept = list(ranked)[:depth]
        ids[row, : len(kept)] = torch.tensor(kept, dtype=torch.int32)
    return TopK(ids, torch.where(ids >= 0, 0.0, -torch.inf))


def seed_lists(seeds: Sequence[Sequence[int]], device: torch.device) -> Ragged:
    """Seed sets as Ragged i64, each ascending and without repetition."""
    return ragged_of_lists([sorted(set(one)) for one in seeds], device)


Fused = tuple[TopK, TopK, list[tuple[int, int]]]  # relations, passages, (entities, passages) in each subgraph
Ranker = Callable[[HigraRank, Sequence[Seeded]], Fused]


def higra_ranker(index: Index, threads: int) -> Ranker:
    """rank(params, questions) -> (relations, passages, subgraph sizes); the layers are read at the first use."""

    def rank(params: HigraRank, asked: Sequence[Seeded]) -> Fused:
        relations, passages, sizes = [], [], []
        graph = index.loaded("higra", load_higra_graph)
        most = max(len(graph.relation_ends[0]), graph.full_graph.n)  # relations, or passages and more
        params = replace(params, depth=min(params.depth, max(1, most)))  # rankings are as wide as depth
        for start in range(0, len(asked), TILE):
            r, p, s = _rank_tile(index, params, asked[start : start + TILE], threads)
            relations.append(r)
            passages.append(p)
            sizes.extend(s)
        return _joined(relations), _joined(passages), sizes

    return rank


def _rank_tile(index: Index, params: HigraRank, asked: Sequence[Seeded], threads: int) -> Fused:
    by_similarity = [
        _given([a.relations for a in asked], params.depth),
        _given([a.passages for a in asked], params.depth),
    ]
    if not params.graph:
        constants = [params.similarity_constant]
        fused = [rrf([ranking], params.depth, constants=constants) for ranking in by_similarity]
        return fused[0], fused[1], [(0, 0)] * len(asked)
    ops = index.loaded("higra_ops", HigraOps.load)
    seeds = seed_lists([a.seeds for a in asked], ops.entity.csr.indptr.device)
    scores = subgraph_scores(ops, params, seeds, threads)
    constants = [params.structure_constant, params.similarity_constant]
    structural = (scores.relations, scores.passages)
    fused = [rrf([s, b], params.depth, constants=constants) for s, b in zip(structural, by_similarity)]
    sizes = torch.stack([blocks.offsets.diff() for blocks, _ in (scores.entities, scores.nodes)])
    n_entities, n_nodes = sizes.tolist()
    return fused[0], fused[1], [(e, n - e) for e, n in zip(n_entities, n_nodes)]


def _joined(tops: Sequence[TopK]) -> TopK:
    return TopK(torch.cat([t.ids for t in tops]), torch.cat([t.scores for t in tops]))
