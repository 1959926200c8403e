"""Ranking by the subgraph around seed entities, for a batch of questions.

For a question with seed entities S, over the entity layer and the passage layer of `HigraGraph`:
  G_S         = the entities within `radius` hops of S, and the relations with both ends among them
  p           = PageRank on G_S, restart uniform on S: p = damping P^T p + (1 - damping) pi, see graph.local_pagerank
  relation    = the mean of p at its two ends
  G_S+        = G_S with every passage that is linked to one of its entities
  passage     = PageRank on G_S+ at the passage, same restart
All subgraphs of a batch are blocks of one block-diagonal graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.ego import ego_balls, induced_subgraphs
from gpu_rag.graph.local_pagerank import blocks_pagerank
from gpu_rag.graph.ragged import expand, ragged_of_lists, row_of_value
from gpu_rag.methods.higra.graph import HigraGraph
from gpu_rag.types import Blocks, Ragged, TopK


@dataclass(frozen=True)
class SubgraphScores:
    """The subgraphs of a batch: the entity scores of G_S, those of all nodes of G_S+, and rankings by these alone.

    entities, nodes: (blocks, f32 values beside their global_ids)."""

    entities: tuple[Blocks, torch.Tensor]
    nodes: tuple[Blocks, torch.Tensor]
    relations: TopK
    passages: TopK

    def sizes(self) -> list[tuple[int, int]]:
        """(entities, passages) in each subgraph."""
        counts = torch.stack([blocks.offsets.diff() for blocks, _ in (self.entities, self.nodes)])
        return [(n_entities, n - n_entities) for n_entities, n in zip(*counts.tolist())]


def subgraph_scores(
    graph: HigraGraph,
    seeds: Sequence[Sequence[int]],
    *,
    radius: int,
    damping: float,
    tol: float,
    depth: int,
    threads: int = 1,
) -> SubgraphScores:
    """PageRank on G_S and G_S+ of each seed set, and the rankings that they give.

    seeds: rows of the entity table for each question. depth: length of the rankings. tol: L1 error of PageRank.
    """
    starts = ragged_of_lists([sorted(set(rows)) for rows in seeds], graph.entity_graph.indptr.device)
    entity, full = graph.checked_entity_graph, graph.checked_full_graph
    ball = ego_balls(entity, starts, radius, threads=threads)
    inner = induced_subgraphs(entity, ball)
    p = blocks_pagerank(inner, starts, damping=damping, tol=tol, threads=threads).values
    passages = (graph.n_entities, full.csr.n)
    outer = induced_subgraphs(full, ego_balls(full, ball, 1, include=[passages], threads=threads))
    q = blocks_pagerank(outer, starts, damping=damping, tol=tol, threads=threads).values
    block, node = row_of_value(Ragged(outer.global_ids, outer.offsets)), outer.global_ids.long() - graph.n_entities
    linked = node >= 0
    by_passage = _ranked(block[linked], node[linked], q[linked], starts.batch, depth)
    by_relation = _ranked(*_relations_inside(graph, inner, p), starts.batch, depth)
    return SubgraphScores((inner, p), (outer, q), by_relation, by_passage)


def _relations_inside(
    graph: HigraGraph, inner: Blocks, p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(block, relation row, score) of every relation with both ends in a block."""
    first, objects = graph.relations_by_subject
    n = max(graph.n_entities, 1)
    node = inner.global_ids.long()
    base = row_of_value(Ragged(inner.global_ids, inner.offsets)) * n
    keys = base + node  # ascending: blocks in order, nodes ascending in each
    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = [(node[:0], node[:0], p[:0])]
    for owner, row in expand(first[node], first[node + 1]):
        wanted = base[owner] + objects[row]
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
