"""Walks over given nodes as paths in words."""

from __future__ import annotations

import torch

from gpu_rag.index.index import Index
from gpu_rag.methods.hydrarag.batched.facts import FactChoice, facts_of, in_words
from gpu_rag.methods.hydrarag.state import FoundPath
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched

Walked = tuple[tuple[int, ...], tuple[int, ...]]  # nodes of the walk, and the topics of the question


@batched(GRAPH)
def worded_paths(index: Index, queries: list[Walked], choice: FactChoice) -> list[FoundPath | None]:
    """Each walk as a path in words; None if a hop is not an edge of the chosen sources."""
    kb, facts = kb_of(index), facts_of(index, choice)
    width = max(len(nodes) for nodes, _ in queries)
    rows = [[*nodes, *[-1] * (width - len(nodes))] for nodes, _ in queries]
    walks = torch.tensor(rows, dtype=torch.int32, device=facts.keys.device)
    node, other = walks[:, :-1].long(), walks[:, 1:].long()
    keys = torch.minimum(node, other) * facts.n + torch.maximum(node, other)
    edges = facts.edges_along(walks).clamp(max=facts.keys.shape[0] - 1)
    lines = torch.where(facts.keys[edges.long()] == keys, edges, -1).tolist()
    paths: list[FoundPath | None] = []
    for (nodes, topics), line in zip(queries, lines):
        hops = line[: len(nodes) - 1]
        places = tuple((node,) for node in nodes)
        stated = min(hops, default=-1) >= 0
        paths.append(in_words(kb, facts, nodes, places, hops, topics) if stated else None)
    return paths
