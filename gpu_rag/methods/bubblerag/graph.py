"""The graph that BubbleRAG grows in, in memory: entities and relations as nodes, made of layers that `ppr` has too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import CheckedGraph, checked
from gpu_rag.graph.ragged import ragged_of_keys
from gpu_rag.index.index import Index
from gpu_rag.types import Ragged


@dataclass(frozen=True)
class BubbleGraph:
    """N entities and R relations as the nodes [entities | relations] of one graph: relation r is node N + r.

    graph: an entry joins a relation with its subject and with its object, both directions stored; no weights. So the
    way from one entity to another has two steps. A relation of an entity with itself has one neighbour.
    passages: N + R lists of i32, ascending: for an entity the passages that mention it, for a relation those that
    state it. entity_vectors f32|f16[N, D], relation_vectors f32|f16[R, D]: unit rows, of the written name and of
    "subject label object"; see `Index.vectors`. ends: i64[R, 2], subject and object. On the device of the index.
    """

    graph: CheckedGraph
    passages: Ragged
    entity_vectors: torch.Tensor
    relation_vectors: torch.Tensor
    ends: torch.Tensor

    @property
    def n_entities(self) -> int:
        """Number of entities N: relation row r is node N + r."""
        return int(self.entity_vectors.shape[0])

    @property
    def n(self) -> int:
        """Number of nodes N + R."""
        return self.graph.csr.n


def load_bubble_graph(index: Index) -> BubbleGraph:
    """The graph of an index, for `index.loaded("bubble", load_bubble_graph)`. Raises MissingLayer, IndexCorrupt."""
    n_entities, n_relations = index.n_entities, int(index.relations.num_rows)
    ends = torch.from_numpy(np.stack(index.relation_ends, 1)).to(index.device)
    relation = torch.arange(n_relations, device=index.device) + n_entities
    csr = csr_from_edges(relation.repeat(2), torch.cat([ends[:, 0], ends[:, 1]]), n_entities + n_relations)
    vectors = (index.vectors("entity_vectors"), index.vectors("relation_vectors"))
    return BubbleGraph(checked(csr), _passages(index), *vectors, ends)


def _passages(index: Index) -> Ragged:
    """The passages of each node."""
    n_entities, n_relations, n_passages = index.n_entities, int(index.relations.num_rows), max(index.n_passages, 1)
    stated = index.relations["passages"].combine_chunks()
    sizes = np.diff(stated.offsets.to_numpy().astype(np.int64))
    relation = np.repeat(np.arange(n_relations, dtype=np.int64), sizes) + n_entities
    entity = index.mentions["entity"].to_numpy().astype(np.int64)
    node = np.concatenate([entity, relation])
    passage = np.concatenate([index.mentions["passage"].to_numpy(), stated.flatten().to_numpy()]).astype(np.int64)
    keys = np.unique(node * n_passages + passage)
    return ragged_of_keys(torch.from_numpy(keys).to(index.device), n_entities + n_relations, n_passages)
