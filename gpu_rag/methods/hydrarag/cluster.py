"""Nodes of a question's subgraph that say the same: equal sets of (direction, relation, neighbour)."""

from __future__ import annotations

import torch

from gpu_rag.graph.ragged import row_of_value
from gpu_rag.methods.hydrarag.base import FactGraph, entries_inside
from gpu_rag.types import Ragged


def equal_nodes(graph: FactGraph, nodes: Ragged, alone: Ragged) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The clusters of B subgraphs: (representative i32[T], edges i64[B], triples i64[B]).

    nodes: the nodes of each subgraph, ascending; alone: nodes that are in no cluster but their own (the topics), a list
    a subgraph, ascending. Two nodes of a subgraph are in one cluster where they have the same triples inside it, up to
    their own name. representative: beside nodes.values, the smallest node of the cluster. Members of a cluster are
    never neighbours, and each has the neighbours of every other; so the subgraph of the representatives alone is the
    clustered one. edges, triples: how many lie inside each subgraph. Sets are compared by sums of 2 * 64 random bits
    of their elements, and by their size.
    """
    batch, width = nodes.batch, max(graph.n, 1)
    owner, entry = entries_inside(graph, nodes)
    subgraph = row_of_value(nodes)
    size = nodes.values.shape[0]
    degree = torch.bincount(owner, minlength=size)
    sums = torch.zeros(size, 2, dtype=torch.int64, device=owner.device).index_add_(0, owner, graph.signatures[entry])
    key = subgraph * width + nodes.values
    topics = torch.isin(key, row_of_value(alone) * width + alone.values)
    label = torch.where(topics, nodes.values.long() + 1, 0)  # a topic differs from all others
    columns = torch.stack([subgraph, label, degree, sums[:, 0], sums[:, 1]], 1)
    _, cluster = torch.unique(columns, dim=0, return_inverse=True)
    first = torch.full((size,), size, dtype=torch.int64, device=owner.device)
    place = torch.arange(size, device=owner.device)
    first = first.scatter_reduce(0, cluster, place, "amin")  # nodes ascend: the first place is the smallest node
    facts = graph.n_triples[graph.graph.edge[entry].long()]
    links = torch.zeros(batch, dtype=torch.int64, device=owner.device)
    edges = links.index_add(0, subgraph[owner], torch.ones_like(owner)) // 2
    triples = links.index_add(0, subgraph[owner], facts) // 2
    return nodes.values[first[cluster]].int(), edges, triples
